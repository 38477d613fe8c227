"""The part of `results.json` on a ladder (see `stats.ladder` and `stats.worth`)."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from taetpu.stats.effect_results import Interval
from taetpu.stats.worth_results import Worth
from taetpu.store.frozen_study import LadderDesign

Fate = Literal["holds", "grows", "shrinks", "vanishes", "reverses", "unclear"]
"""How an effect changes over the scales of a ladder (see `stats.ladder.classify_trend`)."""


class Scale(TypedDict, closed=True):
    """The size of a rung."""

    baseline: str
    params: float | None
    tokens_per_parameter: float | None


class Trend(TypedDict, closed=True):
    """The line fitted to the effects over the logarithm of the scales' size."""

    per_doubling: float
    ci95: Interval
    p: float | None


class Extrapolated(TypedDict, closed=True):
    """The effect at a larger scale, which was not measured. The size is under one of the first two keys."""

    params: NotRequired[float]
    flops: NotRequired[float]
    effect: float
    ci95: Interval


class ArmTrend(TypedDict):
    """The trend of an arm over the scales. All but the fate is None without one."""

    fate: Fate
    trend: Trend | None
    p_differs: float | None  # of equal effects at all scales
    extrapolated: Extrapolated | None


class LadderArm(ArmTrend, closed=True):
    """An arm of a ladder."""

    rungs: dict[str, str]  # its name at each scale


class Ladder(LadderDesign, closed=True):
    """The analysis of a ladder."""

    scales: dict[str, Scale]
    arms: dict[str, LadderArm]  # by the arm's name without the scale
    worth: NotRequired[Worth]  # absent unless the plan asks for it
