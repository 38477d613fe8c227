"""A study's runs as the table that is analysed: for each arm and seed how the run ended, and with which value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from taetpu.core.errors import UserError, suggest
from taetpu.stats.divergence import Count
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder


@dataclass(frozen=True)
class Cell:
    """One arm on one seed.

    Attributes:
        run: where it is stored, and what it came to; None while it has not ended.
        value: of the metric that arms are compared by; None unless the run finished.
    """

    seed: int
    outcome: Literal["finished", "diverged", "unfinished"]
    value: float | None = None
    run: RunFolder | None = None
    result: Mapping[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """As `results.json` has it."""
        run_id = self.run.id if self.run else None
        return {"seed": self.seed, "id": run_id, "outcome": self.outcome, "value": self.value}


@dataclass(frozen=True)
class Table:
    """Every arm's runs, one for each seed, in the study's order."""

    cells: Mapping[str, list[Cell]]

    @property
    def complete(self) -> bool:
        return all(cell.outcome != "unfinished" for row in self.cells.values() for cell in row)

    def values(self, arm: str) -> dict[int, float]:
        """Those of the runs that finished."""
        return {cell.seed: cell.value for cell in self.cells[arm] if cell.value is not None}

    def lost(self, arm: str) -> frozenset[int]:
        """The seeds on which it diverged."""
        return frozenset(cell.seed for cell in self.cells[arm] if cell.outcome == "diverged")

    def count(self, arm: str) -> Count:
        return Count(len(self.values(arm)), len(self.lost(arm)))

    def results(self, arm: str) -> list[Mapping[str, Any]]:
        """What its ended runs came to."""
        return [cell.result for cell in self.cells[arm] if cell.result is not None]

    def finished(self, arm: str) -> list[Cell]:
        return [cell for cell in self.cells[arm] if cell.outcome == "finished"]


def read_table(folder: StudyFolder, study: Mapping[str, Any], metric: str) -> Table:
    """The runs of a study.

    Raises:
        UserError: two runs claim one arm and seed; a finished run lacks the metric, or ended before its schedule did.
    """
    done: dict[tuple[str, int], tuple[RunFolder, dict[str, Any]]] = {}
    for run in folder.runs():
        result = run.result()
        if result is None:
            continue
        if (run.arm, run.seed) in done:
            other = done[run.arm, run.seed][0]
            problem = f"two finished runs are of arm {run.arm!r} and seed {run.seed}: {other.id} and {run.id}"
            raise UserError(
                problem, file=run.where, remedy="move the one that does not belong out of the study's folder"
            )
        done[run.arm, run.seed] = run, result
    return Table({arm: [_cell(done.get((arm, s)), s, metric) for s in study["seeds"]] for arm in study["arms"]})


def _cell(found: tuple[RunFolder, dict[str, Any]] | None, seed: int, metric: str) -> Cell:
    if found is None:
        return Cell(seed, "unfinished")
    run, result = found
    if result["outcome"] == "finished" and metric not in result["metrics"]:
        known = suggest(metric, result["metrics"])
        raise UserError(f"no metric {metric!r} was measured", path=("measure", "primary"), file=run.where, remedy=known)
    value = result["metrics"].get(metric)
    if result["outcome"] != "finished" or value is None or not math.isfinite(value):
        return Cell(seed, "diverged", run=run, result=result)
    return Cell(seed, "finished", value, run, result)


def sd(values: Mapping[int, float]) -> float | None:
    """The standard deviation; None of fewer than two."""
    return float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else None


def means(metrics: list[Mapping[str, float | None]]) -> dict[str, float]:
    """Each metric's mean over runs; NaN where one of them has no number for it."""
    columns: dict[str, list[float]] = {}
    for row in metrics:
        for name, value in row.items():
            columns.setdefault(name, []).append(math.nan if value is None else value)
    return {name: float(np.mean(column)) for name, column in sorted(columns.items())}
