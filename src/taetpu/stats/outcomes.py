"""Outcomes other than the primary metric: whether runs solve their task, and the time to a value of the metric.

**Solved or not.** A run solves its task if it did not diverge and its value is at least (for losses, at most) the level
of the plan. Arms are compared by their shares of solved runs, with the exact test that also compares rates of
divergence. It assumes that runs are independent. Seeds that runs share correlate them positively, which makes the test
conservative. Intervals are Newcombe's.

**Time to a value.** A run arrives at the first evaluation at which its metric has reached the value. Nothing is
interpolated, so the plan freezes the steps between evaluations and the evaluated windows. A run that never arrives is
censored at the horizon: the cost of the shortest training of the arms that are compared. All runs are observed until
then. A run that diverged or stopped before it did not arrive, and never will. The Kaplan-Meier estimate of the share
that has arrived is therefore the observed share, and the restricted mean time is the mean of the times, in which each
run without an arrival counts with the horizon. As a mean over runs it is compared by the model of
`stats.linear_model`, which removes the effects of seeds. A rank test of the two arms alone (log-rank) is more
conservative with shared seeds, and needs 4 seeds for a p below 0.05; benchmarks/time_to_target.py compares both.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from jaxtyping import Float

from taetpu.core.errors import UserError
from taetpu.stats.divergence import Count, boschloo_p
from taetpu.stats.linear_model import Effect, Fit
from taetpu.stats.plan import Plan
from taetpu.stats.results import Run
from taetpu.stats.results_table import Cell, Table
from taetpu.store.documents import RETRAIN

MANY = 1e6
"""Degrees of freedom at which Student's t is the normal distribution, for intervals of shares."""
NO_RUNS = Count(0, 0)
MAX_SEEDS = 40
"""Maximum number of seeds that `ShareEffect.seeds_needed` and `seeds_for_level` consider."""


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a study's runs.

    Attributes:
        table: the study's runs, in which the value of a run is its outcome: 1 or 0, or the restricted time.
        reached: the seeds on which each arm solved its task or arrived.
        horizons: the horizon of each baseline and its arms, by arm; empty for shares of solved runs.
    """

    table: Table
    reached: Mapping[str, frozenset[int]]
    horizons: Mapping[str, float]


def read_outcomes(table: Table, against: Mapping[str, str], plan: Plan) -> Outcomes | None:
    """Return the outcomes of a study's runs; None if arms are compared by the primary metric itself.

    Args:
        table: the study's runs, with the values of the primary metric.
        against: the baseline of each arm that is not a baseline.
        plan: the analysis plan.

    Raises:
        UserError: If runs were evaluated at other steps or on other windows than the plan says.
    """
    if plan.reach is not None:
        return _times(table, against, plan)
    if plan.solved is None:
        return None
    sign = 1 if plan.direction == "max" else -1
    level = sign * plan.solved
    reached = {
        arm: frozenset(cell.seed for cell in row if cell.value is not None and sign * cell.value >= level)
        for arm, row in table.cells.items()
    }
    return _with_values(table, reached, lambda arm, cell: float(cell.seed in reached[arm]), {})


def _with_values(
    table: Table,
    reached: Mapping[str, frozenset[int]],
    value: Callable[[str, Cell], float],
    horizons: Mapping[str, float],
) -> Outcomes:
    """Return the outcomes of the runs that have ended. A diverged run has an outcome, so it counts as finished."""
    cells = {
        arm: [replace(cell, outcome="finished", value=value(arm, cell)) if cell.result else cell for cell in row]
        for arm, row in table.cells.items()
    }
    return Outcomes(replace(table, cells=cells), reached, horizons)


def describe_runs(name: str, table: Table, outcomes: Outcomes | None) -> list[Run]:
    """Return the runs of an arm. `value` is the outcome of a run, if there are outcomes, and `measured` its metric."""
    if outcomes is None:
        return [cell.facts for cell in table.cells[name]]
    values, reached = outcomes.table.values(name), outcomes.reached[name]
    return [
        {**cell.facts, "value": values.get(cell.seed), "measured": cell.value, "reached": cell.seed in reached}
        for cell in table.cells[name]
    ]


# --- shares of solved runs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShareEffect(Effect):
    """The difference of two shares of solved runs.

    Attributes:
        ours: the arm's runs that solved the task, as `finished`, and those that did not, as `diverged`.
        theirs: the baseline's runs.
    """

    ours: Count = NO_RUNS
    theirs: Count = NO_RUNS

    @property
    def p(self) -> float | None:
        """Two-sided p-value of Boschloo's exact test of equal shares; None with fewer than two runs of an arm."""
        return None if min(self.ours.ended, self.theirs.ended) < 2 else (boschloo_p(self.ours, self.theirs) or 1.0)

    def interval_with(self, critical: Callable[[float], float]) -> tuple[float, float] | None:
        """Return Newcombe's interval; None with fewer than two runs of an arm.

        Source: Newcombe (1998), Interval estimation for the difference between independent proportions, method 10.
        """
        if self.effect is None or min(self.ours.ended, self.theirs.ended) < 2:
            return None
        (p, low, high), (q, below, above) = (wilson(count, critical(MANY)) for count in (self.ours, self.theirs))
        return p - q - math.hypot(p - low, above - q), p - q + math.hypot(high - p, q - below)

    def p_inside(self, bound: float) -> float | None:
        """Return None: a plan with shares has no margin of equivalence."""
        return None

    def seeds_needed(self, level: float) -> int | None:
        """Return the smallest number of seeds at which the observed shares differ at a level of the exact test."""
        if not self.effect:
            return None
        shares = [count.finished / count.ended for count in (self.ours, self.theirs)]
        for seeds in range(max(self.ours.ended, self.theirs.ended) + 1, MAX_SEEDS + 1):
            ours, theirs = (Count(round(share * seeds), seeds - round(share * seeds)) for share in shares)
            if (boschloo_p(ours, theirs) or 1.0) < level:
                return seeds
        return None


def wilson(count: Count, z: float) -> tuple[float, float, float]:
    """Return the share of solved runs and the ends of its interval.

    Source: Wilson (1927), Probable inference, the law of succession, and statistical inference.

    Args:
        count: the runs that solved the task, as `finished`, and those that did not, as `diverged`.
        z: the critical value of the normal distribution.
    """
    n, p = count.ended, count.finished / count.ended
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return p, max(0.0, (centre - half) / (1 + z * z / n)), min(1.0, (centre + half) / (1 + z * z / n))


def count_solved(values: Collection[float]) -> Count:
    """Return the number of runs with the value 1, as `finished`, and of those with the value 0, as `diverged`."""
    solved = sum(value == 1.0 for value in values)
    return Count(solved, len(values) - solved)


def compare_shares(values: Mapping[str, Mapping[int, float]], baseline: str) -> Fit:
    """Return the difference of each arm's share of solved runs to the baseline's.

    Args:
        values: 1 or 0 for each run that has ended, by arm and seed.
        baseline: the name of the baseline.
    """
    counts = {arm: count_solved(row.values()) for arm, row in values.items()}
    effects: dict[str, Effect] = {}
    for arm, ours in counts.items():
        theirs = counts[baseline]
        if arm != baseline:
            known = ours.ended and theirs.ended
            value = ours.finished / ours.ended - theirs.finished / theirs.ended if known else None
            effects[arm] = ShareEffect(value, ours=ours, theirs=theirs)
    variances = [c.finished * c.diverged / c.ended**2 for c in counts.values() if c.ended]
    sd = math.sqrt(float(np.mean(variances))) if any(variances) else None
    return Fit(effects, sd, 0.0, None)


def smallest_p(seeds: int) -> float | None:
    """Return the smallest p-value that the exact test of shares reaches: all runs of one arm solve, none of the other.

    It is None for fewer than two seeds.
    """
    return boschloo_p(Count(seeds, 0), Count(0, seeds))


def seeds_for_level(level: float) -> int | None:
    """Return the smallest number of seeds whose `smallest_p` is below a level; None beyond `MAX_SEEDS`."""
    return next((n for n in range(2, MAX_SEEDS + 1) if (smallest_p(n) or 1.0) < level), None)


# --- time to a value --------------------------------------------------------------------------------------------------


def first_reached(values: Float[np.ndarray, " points"], target: float) -> int | None:
    """Return the index of the first value at or below the target; None if there is none."""
    below = np.flatnonzero(values <= target)
    return int(below[0]) if len(below) else None


def _times(table: Table, against: Mapping[str, str], plan: Plan) -> Outcomes:
    """Return the restricted times to the plan's value."""
    windows: set[str] = set()
    times: dict[tuple[str, int], float] = {}
    longest: dict[str, float] = {}
    for arm, row in table.cells.items():
        for cell in (cell for cell in row if cell.result is not None):
            times[arm, cell.seed], whole = _time(cell, plan, windows)
            if cell.outcome == "finished":
                longest[arm] = max(longest.get(arm, 0.0), whole)
    horizons = dict.fromkeys(table.cells, math.inf)
    for base in dict.fromkeys(against.get(arm, arm) for arm in table.cells):
        group = [arm for arm in table.cells if against.get(arm, arm) == base]
        ends = [longest[arm] for arm in group if arm in longest]
        # Without a finished run, nothing says how long training was planned to be, except the longest run.
        ends = ends or [max((_spent(c, plan) for arm in group for c in table.cells[arm] if c.result), default=math.inf)]
        horizons |= dict.fromkeys(group, min(ends))
    reached = {
        arm: frozenset(cell.seed for cell in row if times.get((arm, cell.seed), math.inf) <= horizons[arm])
        for arm, row in table.cells.items()
    }
    return _with_values(table, reached, lambda arm, cell: min(times[arm, cell.seed], horizons[arm]), horizons)


def _time(cell: Cell, plan: Plan, windows: set[str]) -> tuple[float, float]:
    """Return the time at which a run arrives, infinite if it does not, and the cost of its whole training.

    Args:
        cell: the run, which has ended.
        plan: the analysis plan.
        windows: the samples of the validation split on which earlier runs were evaluated; extended by that of this run.
    """
    result, curve = cell.result or {}, cell.curves.get(plan.primary)
    if curve is None:
        problem = f"{plan.primary} was not logged in this run, so its time to {plan.reach} is not known"
        raise UserError(problem, path=("measure", "reach"), file=_where(cell), remedy=RETRAIN)
    windows.add(str(result.get("val_sample")))
    every = plan.eval_every
    steps = [*range(every, int(result["steps"]) + 1, every)] if every else []  # programs choose their own steps
    where = f"at other steps than every {every}" if cell.outcome != "diverged" and {*steps} - {*curve.step} else ""
    where = "on other windows than other runs" if len(windows) > 1 else where
    if where:
        problem = f"this run was evaluated {where}, so its time to {plan.reach} cannot be compared"
        remedy = "Train the run again with the eval_every and eval_windows of the plan."
        raise UserError(problem, path=("measure", "reach"), file=_where(cell), remedy=remedy)
    sign = 1 if plan.direction == "min" else -1
    at = first_reached(sign * np.asarray(curve.value, float), sign * float(plan.reach or 0.0))
    spent = _spent(cell, plan)
    return (math.inf if at is None else float(curve.step[at]) / result["steps"] * spent), spent


def _where(cell: Cell) -> str | None:
    return cell.run.where if cell.run else None


def _spent(cell: Cell, plan: Plan) -> float:
    """Return what the training of a run cost, in the unit of the plan."""
    return float((cell.result or {})[plan.by])


def log_rank_p(ours: Sequence[tuple[float, bool]], theirs: Sequence[tuple[float, bool]]) -> float | None:
    """Return the p-value of the log-rank test of equal times to a value, without a correction.

    It is None with fewer than two runs of an arm, without any arrival, and if all runs arrived at once.

    Args:
        ours: the restricted time of each run of an arm, and whether the run arrived.
        theirs: the same for its baseline.
    """
    every = [*ours, *theirs]
    if min(len(ours), len(theirs)) < 2 or not any(arrived for _, arrived in every) or len(set(every)) == 1:
        return None
    x, y = (
        scipy.stats.CensoredData.right_censored([time for time, _ in side], [not arrived for _, arrived in side])
        for side in (ours, theirs)
    )
    with np.errstate(all="ignore"):
        p = float(scipy.stats.logrank(x, y).pvalue)
    return p if math.isfinite(p) else None
