"""The part of `results.json` on the worth of arms in compute (see `stats.worth`)."""

from typing import Literal

from typing_extensions import TypedDict

from taetpu.stats.effect_results import Interval

Bound = Literal["at_least", "at_most"]


class LawRung(TypedDict, closed=True):
    """The baseline at a rung."""

    rung: str
    compute: float  # training FLOPs of a run
    mean: float
    fitted: float  # the value of the law
    error: float | None  # the standard error of the mean; None for a single seed
    off: float  # the compute at which the law has the mean, divided by `compute`, to first order


class ScalingLaw(TypedDict, closed=True):
    """The law `floor + scale * (at / compute) ** exponent`."""

    floor: float
    scale: float
    exponent: float
    at: float  # the geometric mean of the rungs' compute
    rungs: list[LawRung]  # in ascending order of compute
    p_misfit: float | None  # of deviations that are noise; None without noise


class RungWorth(TypedDict, closed=True):
    """A compute multiplier."""

    multiplier: float
    ci95: Interval | None  # None for a single seed, without noise, and for a bound
    bound: Bound | None  # whether the multiplier is only a bound
    extrapolated: list[str]  # the rungs at which the law was read outside of its rungs


class WorthArm(TypedDict, closed=True):
    """The worth of an arm."""

    names: dict[str, str]  # its name at each rung
    refused: Literal["rungs", "diverged"] | None  # why it has no multiplier
    diverged: list[str]  # the names of arms with diverged runs
    all: RungWorth | None  # one multiplier for all rungs
    rungs: dict[str, RungWorth]  # that of each rung alone


class Worth(TypedDict, closed=True):
    """The worth of all arms of a ladder in compute."""

    refused: Literal["rungs", "diverged", "rising", "poor"] | None  # why the baseline has no law
    diverged: list[str]  # the baselines with diverged runs
    law: ScalingLaw | None
    arms: dict[str, WorthArm]  # by the arm's name without the rung
