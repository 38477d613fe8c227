"""Slot `tracker`: the interface of experiment trackers, which a study lists under `trackers`.

A tracker receives stored values. No run's identity or result depends on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from taetpu.core.config import Component

NO_LIMIT = 1_000_000


class Row(NamedTuple):
    """The metrics after `step` updates, and the text that the model generated at that step."""

    step: int
    values: dict[str, float]
    text: str | None = None


@dataclass(frozen=True)
class TrackedRun:
    """A run for a tracker.

    Attributes:
        study: the study's name.
        arm: the arm's name.
        seed: the seed.
        id: identifies the run and the study's folder; the same after a resume.
        settings: the flat config (see `store.settings`).
        folder: the tracker's folder in the study's folder, not yet created.
    """

    study: str
    arm: str
    seed: int
    id: str
    settings: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        """`arm/seed`."""
        return f"{self.arm}/{self.seed}"


class Sink:
    """One run in one tracker. An exception disables the tracker, and training continues."""

    def log(self, rows: Sequence[Row]) -> None:
        """Log rows. Steps increase within a call and from one call to the next."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the result (`RunFolder.result`) of a run that is done. This is the last call."""

    def close(self) -> None:
        """Close a run that is not done. Another process may resume it and call `open` again."""


class Tracker(Component):
    """Base of all trackers; its fields are their settings. Libraries are imported in `open`, not before.

    Attributes:
        max_open: number of runs that may be open at a time. Further runs are logged as a whole when they are done.
    """

    max_open: ClassVar[int] = NO_LIMIT

    def open(self, run: TrackedRun) -> Sink:
        """Open a run.

        All rows of the run follow, from the first. Rows that an earlier process logged must be replaced or skipped.
        """
        raise NotImplementedError


def final_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the final metrics of a result, without those that are None, as `final/<name>`."""
    return {f"final/{name}": value for name, value in result["metrics"].items() if value is not None}
