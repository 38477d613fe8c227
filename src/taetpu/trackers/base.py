"""Slot `tracker`: the interface of experiment trackers, which a study lists under `trackers`.

A tracker receives stored values. Neither the identity nor the result of a run depends on trackers.
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
    """The description of a run that a tracker receives.

    Attributes:
        study: the study's name.
        arm: the arm's name.
        seed: the run's seed.
        id: an identifier of the run in this study's folder. It does not change if the run is resumed.
        settings: the run's config as a flat table (see `store.flat_config`).
        folder: the tracker's folder in the study's folder. It need not exist yet.
    """

    study: str
    arm: str
    seed: int
    id: str
    settings: Mapping[str, Any]
    folder: Path

    @property
    def name(self) -> str:
        """The name of the run, `arm/seed`."""
        return f"{self.arm}/{self.seed}"


class Sink:
    """One run in one tracker. If a method raises an exception, the tracker is disabled and training continues."""

    def log(self, rows: Sequence[Row]) -> None:
        """Log rows of metrics and texts. Steps increase within a call and from one call to the next."""

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the result (`RunFolder.result`) of a run that is done. No other method is called afterwards."""

    def close(self) -> None:
        """Close a run that is not done. Another process may resume the run and call `open` again."""


class Tracker(Component):
    """The base class of all trackers. The fields of a subclass are the tracker's settings.

    A subclass imports the tracker's library only in `open`.

    Attributes:
        max_open: the maximum number of runs that are open at the same time. Each further run is logged as a whole when
            the run is done.
    """

    max_open: ClassVar[int] = NO_LIMIT

    def open(self, run: TrackedRun) -> Sink:
        """Open a run and return the sink that receives the run's rows.

        All rows of the run are then logged, starting with the first row. An implementation must replace or skip the
        rows that an earlier process has logged.
        """
        raise NotImplementedError


def final_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the final metrics of a result as `final/<name>`. Metrics that are None are left out."""
    return {f"final/{name}": value for name, value in result["metrics"].items() if value is not None}
