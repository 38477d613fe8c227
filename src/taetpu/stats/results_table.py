"""Table of a study's runs, with the outcome and the value for each arm and seed."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from taetpu.core.errors import UserError, suggest
from taetpu.stats.blocked_anova import Array
from taetpu.stats.divergence import Count
from taetpu.stats.load import COMPLETED, read_config, read_result
from taetpu.stats.results import Hardware, Run, Stratum
from taetpu.store.frozen_study import FrozenStudy
from taetpu.store.metrics import Series
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder


@dataclass(frozen=True)
class Cell:
    """Outcome and value of one arm on one seed.

    Attributes:
        seed: the seed.
        outcome: outcome of the run; `unfinished` if it has not ended, `missing` if a judged table does not have it,
            `untrained` if a search left it out.
        value: value of the primary metric; None unless the run finished or stopped.
        run: the run's folder; None if the run has not ended.
        result: the run's `result.json`; None if the run has not ended.
    """

    seed: int
    outcome: Literal["finished", "stopped", "diverged", "unfinished", "missing", "untrained"]
    value: float | None = None
    run: RunFolder | None = None
    result: Mapping[str, Any] | None = None

    @cached_property
    def curves(self) -> Mapping[str, Series]:
        """Metrics during training. Reading this property raises `UserError` if the stored metrics are damaged."""
        return self.run.metrics() if self.run else {}

    @cached_property
    def evaluation(self) -> Mapping[str, Array]:
        """Metric sums for each evaluation block. Reading this property raises `UserError` if the sums are damaged."""
        return self.run.evaluation() if self.run else {}

    @property
    def facts(self) -> Run:
        """Entry of the run in `results.json`."""
        run_id = self.run.id if self.run else None
        return {"seed": self.seed, "id": run_id, "outcome": self.outcome, "value": self.value}


@dataclass(frozen=True)
class Table:
    """Table of runs, with a row of cells for each arm and one cell per seed, in the study's order.

    Attributes:
        cells: cells by arm.
        block: the block of each seed if runs with equal seeds share nothing; None if each seed is a block.
        stratum: the stratum of each seed, such as its data set, over which effects and means are averages with equal
            weights; None if all seeds have the same weight.
    """

    cells: Mapping[str, list[Cell]]
    block: Mapping[int, int] | None = None
    stratum: Mapping[int, int] | None = None

    @property
    def paired(self) -> bool:
        """Whether runs with equal seeds can be compared."""
        return self.block is None

    @property
    def searched(self) -> bool:
        """Whether a search left runs untrained."""
        return any(cell.outcome == "untrained" for row in self.cells.values() for cell in row)

    @property
    def complete(self) -> bool:
        """Whether all runs have ended. Missing and untrained runs are never expected to end."""
        return all(cell.outcome != "unfinished" for row in self.cells.values() for cell in row)

    def values(self, arm: str) -> dict[int, float]:
        """Return the values of an arm's runs that finished or stopped, by seed."""
        return {cell.seed: cell.value for cell in self.cells[arm] if cell.value is not None}

    def mean(self, arm: str) -> float | None:
        """Return the mean of an arm's finished runs; with strata, that of the means of its strata."""
        means = [np.mean([*values.values()]) for values in self.by_stratum(self.values(arm)).values()]
        return float(np.mean(means)) if means else None

    def by_stratum(self, values: Mapping[int, float]) -> dict[int, dict[int, float]]:
        """Return values by seed in groups by stratum. Without strata, all are in one group."""
        groups: dict[int, dict[int, float]] = {}
        for seed, value in values.items():
            groups.setdefault(self.stratum[seed] if self.stratum else 0, {})[seed] = value
        return groups

    def effects_by_stratum(self, arm: str, baseline: str) -> list[Stratum]:
        """Return the stratum, the mean difference and the number of pairs of each stratum that both arms have.

        If runs are not paired, the difference is that of the means, and the number is that of the arm's runs.
        """
        ours, theirs = (self.by_stratum(self.values(name)) for name in (arm, baseline))
        rows = list[Stratum]()
        for stratum in sorted(ours.keys() & theirs.keys()):
            arms, bases = ours[stratum], theirs[stratum]
            if self.paired:
                differences = [arms[seed] - bases[seed] for seed in arms if seed in bases]
            else:
                base = np.mean([*bases.values()])
                differences = [value - base for value in arms.values()]
            if differences:
                rows.append({"stratum": stratum, "effect": float(np.mean(differences)), "pairs": len(differences)})
        return rows

    def diverged_seeds(self, arm: str) -> frozenset[int]:
        """Return the seeds on which an arm diverged."""
        return frozenset(cell.seed for cell in self.cells[arm] if cell.outcome == "diverged")

    def count(self, *arms: str) -> Count:
        """Count the runs of arms that have a value, and the arms' diverged runs."""
        return Count(sum(len(self.values(arm)) for arm in arms), sum(len(self.diverged_seeds(arm)) for arm in arms))

    def results(self, arm: str) -> list[Mapping[str, Any]]:
        """Return the contents of `result.json` for the arm's runs that have ended."""
        return [cell.result for cell in self.cells[arm] if cell.result is not None]

    def finished(self, arm: str) -> list[Cell]:
        """Return the cells of an arm's runs that finished or stopped."""
        return [cell for cell in self.cells[arm] if cell.outcome in COMPLETED]


def read_table(folder: StudyFolder, study: FrozenStudy, metric: str | Mapping[str, str]) -> Table:
    """Read the table of a study's runs.

    Args:
        folder: the study's folder.
        study: the frozen study.
        metric: the primary metric, or that of each arm.

    Raises:
        UserError: If two runs have the same arm and seed, a finished run lacks the metric, or a finished run ended
            before its last step.
    """
    done: dict[tuple[str, int], tuple[RunFolder, dict[str, Any]]] = {}
    for run in folder.runs():
        if run.status() != "done":
            continue
        if (run.arm, run.seed) in done:
            other = done[run.arm, run.seed][0]
            problem = f"two finished runs are of arm {run.arm!r} and seed {run.seed}: {other.id} and {run.id}"
            remedy = "Move the run that is not part of the study out of the study's folder."
            raise UserError(problem, file=run.where, remedy=remedy)
        done[run.arm, run.seed] = run, read_result(run) or {}
    searched = folder.read_search()
    asked = {(arm, seed) for step in searched for arm in step["arms"] for seed in step["seeds"]}
    absent = "missing" if "judged" in study else "untrained" if searched else "unfinished"
    rows = {arm: [(seed, done.get((arm, seed))) for seed in study["seeds"]] for arm in study["arms"]}
    numbers = study.get("blocks"), study.get("strata")
    block, stratum = (None if part is None else dict(zip(study["seeds"], part, strict=True)) for part in numbers)
    if block is not None:  # seeds number the runs of an arm, of which arms may have different numbers
        rows = {arm: [(seed, ended) for seed, ended in row if ended] for arm, row in rows.items()}
    by = {arm: metric if isinstance(metric, str) else metric[arm] for arm in rows}
    cells = {
        arm: [
            _cell(*ended, s, by[arm]) if ended else Cell(s, "unfinished" if (arm, s) in asked else absent)
            for s, ended in rows[arm]
        ]
        for arm in rows
    }
    return Table(cells, block, stratum)


def _cell(run: RunFolder, result: dict[str, Any], seed: int, metric: str) -> Cell:
    if result["outcome"] in COMPLETED and metric not in result["metrics"]:
        known = suggest(metric, result["metrics"])
        raise UserError(f"no metric {metric!r} was measured", path=("measure", "primary"), file=run.where, remedy=known)
    _check_length(run, result)
    value = result["metrics"].get(metric)
    if result["outcome"] not in COMPLETED or value is None or not math.isfinite(value):
        return Cell(seed, "diverged", run=run, result=result)
    return Cell(seed, result["outcome"], value, run, result)


def _check_length(run: RunFolder, result: Mapping[str, Any]) -> None:
    """Raise `UserError` if a finished run ended early. The learning-rate schedule of such a run is incomplete.

    Runs that stopped have a schedule without an end (`optim.schedules.ScheduleConfig.has_end`).
    """
    asked = read_config(run).get("config", {}).get("train", {}).get("steps")
    if result["outcome"] == "finished" and asked is not None and result["steps"] < asked:
        problem = f"this run ended after {result['steps']} of its {asked} steps and cannot be compared"
        raise UserError(problem, file=run.where, remedy="Delete the run's folder and run the study again.")


def check_same_evaluation_set(table: Table, groups: Iterable[Collection[str]], metric: str) -> None:
    """Check that the finished runs of arms that are compared were evaluated on the same number of positions.

    Args:
        table: the study's runs.
        groups: arms that are compared with each other, e.g. a baseline with its arms.
        metric: the primary metric.

    Raises:
        UserError: If two finished runs of a group were evaluated on different numbers of positions.
    """
    split, _, what = metric.partition("/")
    if what == "bits_per_byte":  # arms may split a text into different numbers of tokens
        return
    for group in groups:
        first: tuple[str, float] | None = None
        items: tuple[str, str] | None = None
        for cell in (cell for arm in group for cell in table.finished(arm)):
            digest = (cell.result or {}).get("items", {}).get(split, {}).get("sha256")
            if digest is not None and cell.run is not None:
                items = items or (cell.run.where, digest)
                if digest != items[1]:
                    problem = f"the items of {split!r} of this run have the SHA-256 {digest[:8]}, but {items[0]} "
                    problem += f"scored those with {items[1][:8]}"
                    remedy = "Delete the folder of the run that scored the wrong items and run the study again."
                    raise UserError(problem, file=cell.run.where, remedy=remedy)
            weight = cell.evaluation.get(f"{split}/weight")
            if weight is None or cell.run is None:
                continue
            first = first or (cell.run.where, float(weight.sum()))
            if (positions := float(weight.sum())) != first[1]:
                problem = (
                    f"this run was evaluated on {positions:g} positions of {split}, but {first[0]} on {first[1]:g}"
                )
                remedy = "Delete the folder of the invalid run and run the study again."
                raise UserError(problem, file=cell.run.where, remedy=remedy)


def count_devices(table: Table) -> list[Hardware]:
    """Return each kind of device with the number of runs trained on it."""
    trained_on = (result.get("environment", {}) for arm in table.cells for result in table.results(arm))
    counts = Counter((about["device"], about.get("machine", "")) for about in trained_on if "device" in about)
    return [{"device": device, "machine": machine, "runs": runs} for (device, machine), runs in counts.items()]


def count_packs(table: Table) -> list[dict[str, Any]]:
    """Return each pack layout with the reason for choosing it, and the number of `runs` trained with this layout."""
    layouts: dict[str, dict[str, Any]] = {}
    for result in (result for arm in table.cells for result in table.results(arm)):
        pack = {key: value for key, value in result.get("pack", {}).items() if key != "id"}
        layouts.setdefault(str(sorted(pack.items())), {**pack, "runs": 0})["runs"] += 1
    return list(layouts.values())


def sd(values: Mapping[int, float]) -> float | None:
    """Return the standard deviation; None for fewer than two values."""
    return float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else None


def mean_metrics(metrics: list[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the mean of each metric over the runs that have the metric; NaN if any of its values is None."""
    columns: dict[str, list[float]] = {}
    for row in metrics:
        for name, value in row.items():
            columns.setdefault(name, []).append(math.nan if value is None else value)
    return {name: float(np.mean(column)) for name, column in sorted(columns.items())}
