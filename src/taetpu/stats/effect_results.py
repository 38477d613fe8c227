"""Effects and verdicts in `results.json` (see `stats.results`)."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

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
