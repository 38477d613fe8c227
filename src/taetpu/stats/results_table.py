"""A study's runs as the table that is analysed: for each arm and seed how the run ended, and with which value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from taetpu.core.errors import UserError, suggest
from taetpu.stats.blocked_anova import Array
from taetpu.stats.divergence import Count
from taetpu.stats.load import read_config, read_result
from taetpu.store.metrics import Series
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

    @cached_property
    def curves(self) -> Mapping[str, Series]:
        """Its metrics over training. Raises `UserError` where they are damaged."""
        return self.run.metrics() if self.run else {}

    @cached_property
    def evaluation(self) -> Mapping[str, Array]:
        """Its sums over blocks of the evaluation sets. Raises `UserError` where they are damaged."""
        return self.run.evaluation() if self.run else {}

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

    def diverged_seeds(self, arm: str) -> frozenset[int]:
        """The seeds on which it diverged."""
        return frozenset(cell.seed for cell in self.cells[arm] if cell.outcome == "diverged")

    def count(self, arm: str) -> Count:
        return Count(len(self.values(arm)), len(self.diverged_seeds(arm)))

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
        if run.status() != "done":
            continue
        if (run.arm, run.seed) in done:
            other = done[run.arm, run.seed][0]
            problem = f"two finished runs are of arm {run.arm!r} and seed {run.seed}: {other.id} and {run.id}"
            raise UserError(
                problem, file=run.where, remedy="move the one that does not belong out of the study's folder"
            )
        done[run.arm, run.seed] = run, read_result(run) or {}
    return Table({arm: [_cell(done.get((arm, s)), s, metric) for s in study["seeds"]] for arm in study["arms"]})


def _cell(found: tuple[RunFolder, dict[str, Any]] | None, seed: int, metric: str) -> Cell:
    if found is None:
        return Cell(seed, "unfinished")
    run, result = found
    if result["outcome"] == "finished" and metric not in result["metrics"]:
        known = suggest(metric, result["metrics"])
        raise UserError(f"no metric {metric!r} was measured", path=("measure", "primary"), file=run.where, remedy=known)
    _check_length(run, result)
    value = result["metrics"].get(metric)
    if result["outcome"] != "finished" or value is None or not math.isfinite(value):
        return Cell(seed, "diverged", run=run, result=result)
    return Cell(seed, "finished", value, run, result)


def _check_length(run: RunFolder, result: Mapping[str, Any]) -> None:
    """A run that ended early is at another learning rate than the end of its schedule, and cannot be compared."""
    asked = read_config(run).get("config", {}).get("train", {}).get("steps")
    if result["outcome"] == "finished" and asked is not None and result["steps"] < asked:
        problem = f"this run ended after {result['steps']} of its {asked} steps, so that it cannot be compared"
        raise UserError(problem, file=run.where, remedy="delete its folder and run the study again")


def check_same_evaluation_set(table: Table, metric: str) -> None:
    """Refuse to compare runs that were evaluated on different numbers of positions.

    Raises:
        UserError: two of them were.
    """
    split, _, what = metric.partition("/")
    if what == "bits_per_byte":  # the same text may be of more tokens for one arm than for another
        return
    first: tuple[str, float] | None = None
    for cell in (cell for row in table.cells.values() for cell in row if cell.outcome == "finished"):
        weight = cell.evaluation.get(f"{split}/weight")
        if weight is None or cell.run is None:
            continue
        first = first or (cell.run.where, float(weight.sum()))
        if weight.sum() != first[1]:
            problem = f"this run was evaluated on {weight.sum():g} positions of {split}, and {first[0]} on {first[1]:g}"
            remedy = "the two cannot be compared: delete the folder of the wrong one and run the study again"
            raise UserError(problem, file=cell.run.where, remedy=remedy)


def count_devices(table: Table) -> list[dict[str, Any]]:
    """The kinds of device that runs were trained on, each with how many."""
    found: dict[tuple[str, str], int] = {}
    for result in (result for arm in table.cells for result in table.results(arm)):
        about = result.get("environment", {})
        if "device" in about:
            kind = about["device"], about.get("machine", "")
            found[kind] = found.get(kind, 0) + 1
    return [{"device": device, "machine": machine, "runs": runs} for (device, machine), runs in found.items()]


def sd(values: Mapping[int, float]) -> float | None:
    """The standard deviation; None of fewer than two."""
    return float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else None


def mean_metrics(metrics: list[Mapping[str, float | None]]) -> dict[str, float]:
    """Each metric's mean over runs; NaN where one of them has no number for it."""
    columns: dict[str, list[float]] = {}
    for row in metrics:
        for name, value in row.items():
            columns.setdefault(name, []).append(math.nan if value is None else value)
    return {name: float(np.mean(column)) for name, column in sorted(columns.items())}
