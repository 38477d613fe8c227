"""Effects and verdicts in `results.json` (see `stats.results`)."""

from collections.abc import Sequence
from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

Interval: TypeAlias = Sequence[float]
"""The lower and the upper end."""
Verdict = Literal["better", "worse", "equivalent", "inconclusive"]


class EstimatedEffect(TypedDict):
    """An effect with its interval."""

    effect: float | None  # None for a baseline, and without finished runs on both sides
    ci95: Interval | None  # None for a single seed


class ImputedEffect(EstimatedEffect, closed=True):
    """The effect if each diverged run counts with the worst value of any finished run."""


class TestedEffect(EstimatedEffect):
    """An effect with its p-value."""

    p: float | None  # None unless the results are final, and without noise


class JudgedEffect(TestedEffect):
    """The effect of an arm or a contrast, and its verdict."""

    ci90: Interval | None
    ci_simultaneous: Interval | None  # 95 % for all arms of the baseline together
    effect_sd: float | None  # the effect in standard deviations of one run's noise
    p_holm: float | None  # corrected for planned analyses and the number of arms and contrasts
    p_equivalent: float | None  # None without a margin
    divergence_p: float | None  # of equal rates of divergence; None if no run diverged
    worst_case: ImputedEffect | None  # None if no run diverged
    guarded: bool  # whether an arm is noisier than the others, in plans whose noise model is `guard`
    verdict: Verdict | None  # None for a baseline, for a single seed, and unless the results are final
    evidence: str  # the reasons of the verdict in a sentence
    more_seeds: int | None  # seeds that would detect an effect of this size; None unless inconclusive


class Excess(TypedDict, closed=True):
    """The joint effect of all parts minus the sum of their single effects."""

    arm: str  # the arm of all parts
    parts: list[str]  # the arms of single parts
    excess: float | None
    ci95: Interval | None
    p: float | None


class BothWays(TypedDict, closed=True):
    """The change of a part made alone, and made last: the arm of all parts minus that of all others."""

    part: str
    alone: float | None
    last: float | None
    difference: float | None  # last minus alone: the interaction of the part with all others
    ci95: Interval | None
    p: float | None
    p_holm: float | None  # corrected for the number of parts


class Parts(TypedDict, closed=True):
    """The analysis of `leave_one_out` or `add_one_in`."""

    scales: dict[str, Excess | None]  # by rung, `` without a ladder; None without an arm of all parts
    both_ways: NotRequired[list[BothWays]]
    last: NotRequired[Excess]  # with `both_ways`: of the effects of parts that change last, `parts` being all others
