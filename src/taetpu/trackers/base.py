"""Slot `tracker`: what a study hands its runs to while they train. A study names its trackers under `trackers`.

A tracker reads what is stored and changes nothing: no run's identity or number depends on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from taetpu.core.config import Component

NO_LIMIT = 1_000_000


class Row(NamedTuple):
    """What was measured after `step` updates, and the text that the model made then."""

    step: int
    values: dict[str, float]
    text: str | None = None


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker knows it.

    Attributes:
        id: the run's in this study's folder and in no other; the same after a stop.
        settings: its config, flat (see `store.settings`).
        folder: the tracker's own in the study's folder; made by who writes there.
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
    """One run in one tracker. What it raises switches its tracker off, and training goes on."""

    def log(self, rows: Sequence[Row]) -> None:
        """Take in rows, their steps increasing, also from one call to the next."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run is done, and this is its result (`RunFolder.result`); nothing comes after it."""

    def close(self) -> None:
        """The run is not done, and this process does not go on with it; another may, from an `open` of its own."""


class Tracker(Component):
    """Base of all trackers, whose fields are the settings. A library is imported in `open`, not before.

    Attributes:
        max_open: runs that may be open at a time; those beyond are handed over whole when they are done.
    """

    max_open: ClassVar[int] = NO_LIMIT

    def open(self, run: TrackedRun) -> Sink:
        """Begin a run. All its rows are given, from the first: what an earlier process left of the run must be
        replaced, or not be written again."""
        raise NotImplementedError


def final_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """The final metrics of a result by the name under which they are shown; those that are no number left out."""
    return {f"final/{name}": value for name, value in result["metrics"].items() if value is not None}
