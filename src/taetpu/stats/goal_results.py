"""The part of `results.json` on a study's goal (see `stats.goal`)."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from taetpu.store.frozen_study import PlannedGoal


class GoalLevel(TypedDict):
    """The runs of a candidate, or of its arm on a task."""

    seeds: int  # the number of runs with a value; with tasks, the smallest number
    diverged: int
    mean: float | None  # None for a candidate with tasks
    ci95: list[float] | None  # of the mean, for this candidate alone


class GoalCandidate(GoalLevel, closed=True):
    """A candidate of a goal."""

    name: str
    cost: float
    trained: bool
    side: Literal["meets", "fails"] | None  # None if it is not decided at the error rate of the plan
    p: float | None  # the smallest error rate at which the procedure decides; None if nothing decides
    tasks: NotRequired[dict[str, GoalLevel]]


class GoalAnswer(PlannedGoal, closed=True):
    """The answer to a goal (see `stats.goal`)."""

    alpha: float  # the largest probability of a false decision on any candidate
    smallest: str | None  # the candidate that is named
    none: bool  # whether no candidate meets the threshold
    best: str | None  # the smallest candidate that seems to meet the threshold
    meets: float | None  # the confidence that it does
    no_smaller: float | None  # the confidence that no smaller one does
    confidence: float | None  # the smaller of the two
    possible: list[str]  # the candidates that may be the smallest
    none_possible: bool  # whether perhaps no candidate meets the threshold
    more_seeds: int | None  # about how many more seeds would name `best`
    candidates: list[GoalCandidate]  # in the order of their costs
