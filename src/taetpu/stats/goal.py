"""The smallest candidate whose metric meets a threshold, with the confidence that it is.

Each candidate is tested against the threshold on both sides: it meets it, or it fails. Exactly one of the two is false
for each candidate, so there are as many true hypotheses as candidates, and Holm's procedure with directional decisions
bounds the probability of any false decision (Shaffer 1980, Control of directional errors with stagewise multiple test
procedures). Candidates that were not trained count in it.

If the metric is monotone in the cost, a decision on one candidate decides others: cheaper ones than one that fails also
fail, and dearer ones than one that meets the threshold also meet it. Only undecided candidates count in the next step.

The smallest candidate is among those that are not decided to fail, up to the first that is decided to meet the
threshold. If that is a single candidate, it is named. A study with several tasks will have a p-value for each task: a
candidate meets all thresholds if the largest p-value is small, and fails if the smallest one is, times the number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from taetpu.stats.goal_results import GoalAnswer, GoalCandidate
from taetpu.stats.levels import level_errors
from taetpu.stats.results_table import Table
from taetpu.store.frozen_study import PlannedGoal, SearchStep

Side = Literal["meets", "fails"]

POWER = 0.8
MOST_SEEDS = 1000
"""Number of further seeds beyond which none is stated."""


@dataclass(frozen=True)
class Level:
    """What is known of a candidate's mean.

    Attributes:
        name: the name of the candidate.
        cost: its cost.
        values: the values of its runs by seed, NaN for diverged runs and for runs that were not trained.
        diverged: the number of its diverged runs.
    """

    name: str
    cost: float
    values: tuple[float, ...] = ()
    diverged: int = 0

    @property
    def trained(self) -> bool:
        """Whether a run of the candidate has ended."""
        return bool(self.diverged) or bool(np.isfinite(self.values).any())


@dataclass(frozen=True)
class Comparison:
    """A candidate with its tests.

    Attributes:
        level: the candidate.
        mean: the mean of its runs; NaN without any.
        error: the standard error of the mean; NaN if it is unknown.
        df: the degrees of freedom of the error.
        p: the p-value of each side: that a candidate on the other side of the threshold gives such runs.
    """

    level: Level
    mean: float
    error: float
    df: float
    p: Mapping[Side, float]

    @property
    def side(self) -> Side:
        """The side on which the candidate seems to be."""
        return "meets" if self.p["meets"] <= self.p["fails"] else "fails"


@dataclass(frozen=True)
class Decision:
    """The side of a candidate, and the smallest error rate at which the procedure decides for it."""

    side: Side
    p: float


def compare_levels(goal: PlannedGoal, levels: Sequence[Level]) -> list[Comparison]:
    """Return the candidates in the order of their costs, each with the tests of both sides."""
    levels = sorted(levels, key=lambda level: level.cost)
    trained = [i for i, level in enumerate(levels) if level.trained]
    errors, dfs = np.full(len(levels), np.nan), np.full(len(levels), np.nan)
    if trained:
        width = max(len(levels[i].values) for i in trained)
        padded = [np.pad(levels[i].values, (0, width - len(levels[i].values)), constant_values=np.nan) for i in trained]
        errors[trained], dfs[trained] = level_errors(padded)
    return [_test(goal, level, float(errors[i]), float(dfs[i])) for i, level in enumerate(levels)]


def _test(goal: PlannedGoal, level: Level, error: float, df: float) -> Comparison:
    values = np.array(level.values)[np.isfinite(level.values)] if level.values else np.array([])
    mean = float(values.mean()) if len(values) else math.nan
    better = (goal["level"] - mean) * (1 if goal["side"] == "at_most" else -1)
    p: dict[Side, float] = {"meets": 1.0, "fails": 1.0}
    if not len(values):
        p["fails"] = 0.5**level.diverged if level.diverged else 1.0
    elif error > 0:
        p = {"meets": float(stats.t.sf(better / error, df)), "fails": float(stats.t.cdf(better / error, df))}
    elif error == 0:  # no noise: the sign test over seeds
        p["meets" if better >= 0 else "fails"] = 0.5 ** len(values)
    if level.diverged:  # the mean of the other runs is better than that of all
        p["meets"] = 1.0
    return Comparison(level, mean, error, df, p)


def decide(tested: Sequence[Comparison], monotone: bool, looks: int = 1) -> list[Decision | None]:
    """Return a decision for each candidate by Holm's procedure; None for one that no candidate decides.

    Args:
        tested: the candidates in the order of their costs.
        monotone: whether a decision on a candidate decides cheaper or dearer ones.
        looks: how often each candidate may be tested, with more seeds each time.
    """
    decided: list[Decision | None] = [None] * len(tested)
    costs = [each.level.cost for each in tested]
    reached = 0.0
    while True:
        left = [i for i, decision in enumerate(decided) if decision is None]
        best = min((i for i in left if tested[i].level.trained), key=lambda i: min(tested[i].p.values()), default=None)
        if best is None:
            return decided
        side = tested[best].side
        reached = max(reached, min(1.0, looks * len(left) * tested[best].p[side]))
        decided[best] = Decision(side, reached)
        for i in left if monotone else ():
            implied = costs[i] < costs[best] if side == "fails" else costs[i] > costs[best]
            if implied and decided[i] is None:
                decided[i] = Decision(side, reached)


def is_decided(decision: Decision | None, side: Side, alpha: float) -> bool:
    """Return whether the procedure decides for a side at an error rate."""
    return decision is not None and decision.side == side and decision.p <= alpha


def possible(tested: Sequence[Comparison], decided: Sequence[Decision | None], alpha: float) -> tuple[list[int], bool]:
    """Return the indices of the candidates that may be the smallest, and whether perhaps none meets the threshold."""
    kept = list[int]()
    for cost in sorted({each.level.cost for each in tested}):
        equal = [i for i, each in enumerate(tested) if each.level.cost == cost]
        meeting = [i for i in equal if is_decided(decided[i], "meets", alpha)]
        if meeting:
            best = min(meeting, key=lambda i: tested[i].p["meets"])
            return [*kept, best], False
        kept += [i for i in equal if not is_decided(decided[i], "fails", alpha)]
    return kept, True


def answer_goal(goal: PlannedGoal, levels: Sequence[Level], alpha: float, *, looks: int = 1) -> GoalAnswer:
    """Return the answer to a goal: the smallest candidate that meets the threshold, with its confidence.

    Args:
        goal: the goal as planned.
        levels: all candidates.
        alpha: the largest probability of a false decision on any candidate.
        looks: how often each candidate may be tested.
    """
    tested = compare_levels(goal, levels)
    decided = decide(tested, goal["monotone"], looks)
    indices, none = possible(tested, decided, alpha)
    named = tested[indices[0]].level.name if len(indices) == 1 and not none else None
    best = next((i for i, decision in enumerate(decided) if decision is not None and decision.side == "meets"), None)
    meets = smaller = together = None
    if best is not None:
        cheaper = [decided[i] for i, each in enumerate(tested) if each.level.cost < tested[best].level.cost]
        ours = decided[best]
        meets = 1 - ours.p if ours else 0.0
        smaller = 1 - max((1.0 if known is None else known.p for known in cheaper), default=0.0)
        together = min(meets, smaller)
    return {
        **goal,
        "alpha": alpha,
        "smallest": named,
        "none": not indices,
        "best": None if best is None else tested[best].level.name,
        "meets": meets,
        "no_smaller": smaller,
        "confidence": together,
        "possible": [tested[i].level.name for i in indices],
        "none_possible": none,
        "more_seeds": None if named or best is None else _more_seeds(goal, tested, indices, best, alpha, looks),
        "candidates": [_candidate(each, decision, alpha) for each, decision in zip(tested, decided, strict=True)],
    }


def _candidate(each: Comparison, decision: Decision | None, alpha: float) -> GoalCandidate:
    half = float(stats.t.ppf(0.975, each.df)) * each.error if each.error >= 0 else None
    settled = decision is not None and decision.p <= alpha
    return {
        "name": each.level.name,
        "cost": each.level.cost,
        "trained": each.level.trained,
        "seeds": int(np.isfinite(each.level.values).sum()) if each.level.values else 0,
        "diverged": each.level.diverged,
        "mean": None if math.isnan(each.mean) else each.mean,
        "ci95": None if half is None else [each.mean - half, each.mean + half],
        "side": decision.side if settled and decision else None,
        "p": None if decision is None else decision.p,
    }


def _more_seeds(
    goal: PlannedGoal, tested: Sequence[Comparison], indices: Sequence[int], best: int, alpha: float, looks: int
) -> int | None:
    """Return about how many more seeds would name `best`, if the true means are the observed ones; None if many.

    Every candidate of `indices` that is not dearer than `best` must be decided with a power of 80 %, each at the error
    rate that the first step of Holm's procedure has among them.
    """
    asked = [i for i in indices if tested[i].level.trained and tested[i].level.cost <= tested[best].level.cost]
    needed = 0
    for i in asked:
        each, count = tested[i], int(np.isfinite(tested[i].level.values).sum())
        gap = abs(goal["level"] - each.mean)
        if each.level.diverged or not each.error >= 0 or not gap:
            return None
        sd = each.error * math.sqrt(count)
        quantiles = stats.norm.isf(alpha / looks / len(asked)) + stats.norm.ppf(POWER)
        needed = max(needed, math.ceil((quantiles * sd / gap) ** 2) - count)
    return max(1, needed) if needed <= MOST_SEEDS else None


def read_levels(table: Table, costs: Mapping[str, float], steps: Sequence[SearchStep] | None = None) -> list[Level]:
    """Return the candidates with the values of their runs.

    Args:
        table: the study's runs with the metric of the goal.
        costs: the cost of each candidate.
        steps: the decisions of a search whose runs are read; None for all runs.
    """
    asked = None if steps is None else {(arm, seed) for step in steps for arm in step["arms"] for seed in step["seeds"]}
    levels = []
    for name, row in table.cells.items():
        cells = [cell for cell in row if asked is None or (name, cell.seed) in asked]
        known = {cell.seed: cell.value for cell in cells}
        values = [known.get(cell.seed) for cell in row]
        diverged = sum(cell.outcome == "diverged" for cell in cells)
        levels.append(Level(name, costs[name], tuple(math.nan if v is None else v for v in values), diverged))
    return levels
