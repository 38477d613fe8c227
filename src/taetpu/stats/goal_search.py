"""The order in which a search trains the candidates of a goal. A decision is a function of the results so far.

If the metric is monotone in the cost, candidates are bisected: by their means until two neighbours are on different
sides of the threshold, then the next one on each side, if these are not decided.

Otherwise, candidates are raced in the order of their costs: each is trained on two seeds, and on all seeds unless these
decide that it fails or meets the threshold, until one is decided to meet it. A raced candidate may be tested twice, so
its p-values are doubled.
"""

import math
from collections.abc import Sequence

from taetpu.core.errors import UserError
from taetpu.stats.goal import Comparison, Decision, Level, compare_levels, decide, is_decided
from taetpu.store.frozen_study import PlannedGoal, SearchStep

RACING_SEEDS = 2
"""Number of seeds on which a raced candidate is trained first."""


def count_looks(steps: Sequence[SearchStep], goal: PlannedGoal, seeds: int) -> int:
    """Return how often a candidate may be tested: twice in a race, once otherwise."""
    return 2 if steps and not goal["monotone"] and seeds > RACING_SEEDS else 1


def next_step(goal: PlannedGoal, levels: Sequence[Level], seeds: Sequence[int], alpha: float) -> SearchStep | None:
    """Return what a search trains next; None if nothing is left that narrows the answer.

    Args:
        goal: the goal as planned.
        levels: all candidates with the results so far, each with one value for each seed or none.
        seeds: the seeds of the study.
        alpha: the largest probability of a false decision.
    """
    tested = compare_levels(goal, levels)
    raced = not goal["monotone"] and len(seeds) > RACING_SEEDS
    decided = decide(tested, goal["monotone"], 2 if raced else 1)
    chosen = _bisect(tested, decided, alpha) if goal["monotone"] else _race(tested, decided, alpha, len(seeds))
    if chosen is None:
        return None
    first = raced and not tested[chosen].level.trained
    return {"arms": tested[chosen].level.arms, "seeds": list(seeds[:RACING_SEEDS] if first else seeds)}


def _bisect(tested: Sequence[Comparison], decided: Sequence[Decision | None], alpha: float) -> int | None:
    """Return the index of the next candidate of a monotone metric.

    `low` and `high` are decided; between them, `below` and `above` are the neighbours of the threshold by their means.
    """
    low = max((i for i, decision in enumerate(decided) if is_decided(decision, "fails", alpha)), default=-1)
    meeting = [i for i, decision in enumerate(decided) if is_decided(decision, "meets", alpha) and i > low]
    high = min(meeting, default=len(tested))
    trained = [i for i in range(low + 1, high) if tested[i].level.trained]
    above = min((i for i in trained if tested[i].side == "meets"), default=high)
    below = max((i for i in trained if i < above), default=low)
    if above - below > 1:
        return (below + above) // 2
    beside = [i for i in (above + 1, below - 1) if low < i < high and not tested[i].level.trained]
    return beside[0] if beside else None


def _race(tested: Sequence[Comparison], decided: Sequence[Decision | None], alpha: float, seeds: int) -> int | None:
    """Return the index of the next candidate in the order of costs."""
    for i, each in enumerate(tested):
        if is_decided(decided[i], "meets", alpha):
            return None
        if not is_decided(decided[i], "fails", alpha) and each.level.ended < seeds:
            return i
    return None


def count_runs(steps: Sequence[SearchStep]) -> int:
    """Return the number of runs of a search."""
    return len({(arm, seed) for step in steps for arm in step["arms"] for seed in step["seeds"]})


def check_max_runs(goal: PlannedGoal, candidates: int, seeds: int, max_runs: int | None) -> None:
    """Raise `UserError` if a search with at most `max_runs` runs cannot find any answer."""
    steps = math.ceil(math.log2(candidates + 1)) if goal["monotone"] else 1
    needed = steps * seeds * len(goal.get("tasks", {"": None}))
    if max_runs is not None and max_runs < needed:
        what = f"a bisection of {candidates} candidates" if goal["monotone"] else "the first candidate"
        problem = f"{what} needs {needed} runs with {seeds} seeds, and --max-runs is {max_runs}"
        raise UserError(problem, path=("--max-runs",), remedy=f"Use --max-runs {needed}, or fewer seeds.")
