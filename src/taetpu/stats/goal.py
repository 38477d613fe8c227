"""The smallest candidate whose metric meets a threshold, with the confidence that it is.

Each candidate is tested against the threshold on both sides: it meets it, or it fails. Exactly one of the two is false
for each candidate, so there are as many true hypotheses as candidates, and Holm's procedure with directional decisions
bounds the probability of any false decision (Shaffer 1980, Control of directional errors with stagewise multiple test
procedures). Candidates that were not trained count in it.

If the metric is monotone in the cost, a decision on one candidate decides others: cheaper ones than one that fails also
fail, and dearer ones than one that meets the threshold also meet it. Only undecided candidates count in the next step.

The smallest candidate is among those that are not decided to fail, up to the first that is decided to meet the
threshold. If that is a single candidate, it is named.

With several tasks, a candidate is to meet the threshold of each, and is tested on each. That it meets all of them has
the largest p-value of the tasks (the intersection-union test of Berger 1982, Multiparameter hypothesis testing and
acceptance sampling). That it fails some has the smallest one times the number of tasks (Bonferroni).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy

from taetpu.stats.goal_results import GoalAnswer, GoalCandidate, GoalLevel
from taetpu.stats.levels import level_errors
from taetpu.stats.repeats import repeated_names
from taetpu.stats.results_table import Table
from taetpu.store.frozen_study import FrozenStudy, PlannedGoal, PlannedThreshold, SearchStep

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
        tasks: its arm on each task of the goal, in which case `values` is empty; empty without tasks.
    """

    name: str
    cost: float
    values: tuple[float, ...] = ()
    diverged: int = 0
    tasks: tuple["Level", ...] = ()

    @property
    def trained(self) -> bool:
        """Whether a run of the candidate has ended, on each task."""
        if self.tasks:
            return all(task.trained for task in self.tasks)
        return bool(self.diverged) or bool(np.isfinite(self.values).any())

    @property
    def finished(self) -> int:
        """The number of runs with a value; the smallest number of all tasks."""
        return min((task.finished for task in self.tasks), default=int(np.isfinite(self.values).sum()))

    @property
    def lost(self) -> int:
        """The number of diverged runs, on all tasks."""
        return sum((task.lost for task in self.tasks), self.diverged)

    @property
    def ended(self) -> int:
        """The number of runs that have ended; the smallest number of all tasks."""
        return min((task.ended for task in self.tasks), default=int(np.isfinite(self.values).sum()) + self.diverged)

    @property
    def arms(self) -> list[str]:
        """The names of its arms."""
        return [task.name for task in self.tasks] or [self.name]


@dataclass(frozen=True)
class Comparison:
    """A candidate with its tests.

    Attributes:
        level: the candidate.
        mean: the mean of its runs; NaN without any.
        error: the standard error of the mean; NaN if it is unknown.
        df: the degrees of freedom of the error.
        p: the p-value of each side: that a candidate on the other side of the threshold gives such runs.
        tasks: the tests on each task. The mean is then NaN.
    """

    level: Level
    mean: float
    error: float
    df: float
    p: Mapping[Side, float]
    tasks: tuple["Comparison", ...] = ()

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
    if "tasks" in goal:
        of_tasks = [
            _compare(threshold, [level.tasks[number] for level in levels])
            for number, threshold in enumerate(goal["tasks"].values())
        ]
        return [_together(level, tested) for level, tested in zip(levels, zip(*of_tasks, strict=True), strict=True)]
    return _compare(goal, levels)


def _compare(threshold: PlannedThreshold, levels: Sequence[Level]) -> list[Comparison]:
    trained = [i for i, level in enumerate(levels) if level.trained]
    errors, dfs = np.full(len(levels), np.nan), np.full(len(levels), np.nan)
    if trained:
        width = max(len(levels[i].values) for i in trained)
        padded = [np.pad(levels[i].values, (0, width - len(levels[i].values)), constant_values=np.nan) for i in trained]
        errors[trained], dfs[trained] = level_errors(padded)
    return [_test(threshold, level, float(errors[i]), float(dfs[i])) for i, level in enumerate(levels)]


def _together(level: Level, tested: tuple[Comparison, ...]) -> Comparison:
    """Return the test of a candidate that is to meet the thresholds of all tasks."""
    fails = min(1.0, len(tested) * min(task.p["fails"] for task in tested))
    p: dict[Side, float] = {"meets": max(task.p["meets"] for task in tested), "fails": fails}
    return Comparison(level, math.nan, math.nan, math.nan, p, tested)


def _test(threshold: PlannedThreshold, level: Level, error: float, df: float) -> Comparison:
    values = np.array(level.values)[np.isfinite(level.values)] if level.values else np.array([])
    mean = float(values.mean()) if len(values) else math.nan
    better = (threshold["level"] - mean) * (1 if threshold["side"] == "at_most" else -1)
    p: dict[Side, float] = {"meets": 1.0, "fails": 1.0}
    if not len(values):
        p["fails"] = 0.5**level.diverged if level.diverged else 1.0
    elif error > 0:
        p = {
            "meets": float(scipy.stats.t.sf(better / error, df)),
            "fails": float(scipy.stats.t.cdf(better / error, df)),
        }
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
            return [*kept, min(meeting, key=lambda i: tested[i].p["meets"])], False
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
        "candidates": [_candidate(goal, each, of, alpha) for each, of in zip(tested, decided, strict=True)],
    }


def _candidate(goal: PlannedGoal, each: Comparison, decision: Decision | None, alpha: float) -> GoalCandidate:
    settled = decision is not None and decision.p <= alpha
    candidate: GoalCandidate = {
        **_measured(each),
        "name": each.level.name,
        "cost": each.level.cost,
        "trained": each.level.trained,
        "side": decision.side if settled and decision else None,
        "p": None if decision is None else decision.p,
    }
    if "tasks" in goal:
        candidate["tasks"] = {name: _measured(task) for name, task in zip(goal["tasks"], each.tasks, strict=True)}
    return candidate


def _measured(each: Comparison) -> GoalLevel:
    half = float(scipy.stats.t.ppf(0.975, each.df)) * each.error if each.error >= 0 else None
    return {
        "seeds": each.level.finished,
        "diverged": each.level.lost,
        "mean": None if math.isnan(each.mean) else each.mean,
        "ci95": None if half is None else [each.mean - half, each.mean + half],
    }


def _more_seeds(
    goal: PlannedGoal, tested: Sequence[Comparison], indices: Sequence[int], best: int, alpha: float, looks: int
) -> int | None:
    """Return about how many more seeds would name `best`, if the true means are the observed ones; None if many.

    Every candidate of `indices` that is not dearer than `best` must be decided with a power of 80 %, each at the error
    rate that the first step of Holm's procedure has among them.
    """
    asked = [i for i in indices if tested[i].level.trained and tested[i].level.cost <= tested[best].level.cost]
    needed = max((_seeds_for(goal, tested[i], alpha / looks / len(asked)) for i in asked), default=0)
    return max(1, int(needed)) if needed <= MOST_SEEDS else None


def _seeds_for(goal: PlannedGoal, each: Comparison, alpha: float) -> float:
    """Return about how many more seeds decide a candidate with a power of 80 %; infinity if none would."""
    if "tasks" in goal:
        pairs = [*zip(goal["tasks"].values(), each.tasks, strict=True)]
        if each.side == "meets":
            return max(_seeds_of(threshold, task, alpha) for threshold, task in pairs)
        return min(_seeds_of(*pair, alpha / len(pairs)) for pair in pairs if pair[1].side == "fails")
    return _seeds_of(goal, each, alpha)


def _seeds_of(threshold: PlannedThreshold, each: Comparison, alpha: float) -> float:
    gap = abs(threshold["level"] - each.mean)
    if each.level.diverged or not each.error >= 0 or not gap:
        return math.inf
    sd = each.error * math.sqrt(each.level.finished)
    quantiles = scipy.stats.norm.isf(alpha) + scipy.stats.norm.ppf(POWER)
    return max(0, math.ceil((quantiles * sd / gap) ** 2) - each.level.finished)


def goal_arms(goal: PlannedGoal, study: FrozenStudy) -> dict[str, list[str]]:
    """Return the arms of each candidate: itself, or the arm on each task of the goal."""
    if "tasks" not in goal:
        return {arm: [arm] for arm in study["arms"]}
    return {name: [rungs[task] for task in goal["tasks"]] for name, rungs in repeated_names(study).items()}


def goal_metrics(goal: PlannedGoal, study: FrozenStudy) -> dict[str, str]:
    """Return the metric of the goal by arm."""
    metrics = [each["metric"] for each in goal["tasks"].values()] if "tasks" in goal else [goal["metric"]]
    return {arm: metric for arms in goal_arms(goal, study).values() for arm, metric in zip(arms, metrics, strict=True)}


def read_levels(
    table: Table,
    costs: Mapping[str, float],
    arms: Mapping[str, Sequence[str]],
    steps: Sequence[SearchStep] | None = None,
) -> list[Level]:
    """Return the candidates with the values of their runs.

    Args:
        table: the study's runs with the metric of the goal (see `goal_metrics`).
        costs: the cost of each candidate.
        arms: the arms of each candidate (see `goal_arms`).
        steps: the decisions of a search whose runs are read; None for all runs.
    """
    asked = None if steps is None else {(arm, seed) for step in steps for arm in step["arms"] for seed in step["seeds"]}
    levels = []
    for name, parts in arms.items():
        known = tuple(_level(arm, costs[name], table, asked) for arm in parts)
        levels.append(known[0] if len(known) == 1 else Level(name, costs[name], tasks=known))
    return levels


def _level(arm: str, cost: float, table: Table, asked: Collection[tuple[str, int]] | None) -> Level:
    row = table.cells[arm]
    cells = [cell for cell in row if asked is None or (arm, cell.seed) in asked]
    known = {cell.seed: cell.value for cell in cells}
    values = [known.get(cell.seed) for cell in row]
    diverged = sum(cell.outcome == "diverged" for cell in cells)
    return Level(arm, cost, tuple(math.nan if v is None else v for v in values), diverged)
