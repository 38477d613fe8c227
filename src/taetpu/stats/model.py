"""The seed-blocked linear model: one effect for each arm and each seed, and one noise level for all of them.

`y[arm, seed] = arm + seed + noise`. The seed's effect is shared by all arms (same data order, same initial weights), so
taking it out leaves less noise; pooling what is left over all arms gives many degrees of freedom from few seeds. With
every cell filled, an arm's effect is the difference of the means, with standard error `sqrt(2 s^2 / seeds)`.

A mean of an accuracy lies between 0 and 1, so a difference of two lies between -1 and 1. Effects are estimated in the
metric's unit, whatever its bounds; intervals are cut to what the true difference can be. That never excludes the truth,
so a cut interval covers it as often as the uncut one.

Pooling assumes that all arms are equally noisy. The guard tests this for each arm, the baseline included. Where one
that takes part in an effect is noisier than the rest, the effect is judged also with that arm's own noise beside the
pooled noise of the others; where several are, also by the paired t-test, which assumes nothing about other arms. Its p
is then the largest, and its interval covers those of all. A noisy baseline therefore guards every effect.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from taetpu.stats.blocked_anova import ROUNDING, Array, Blocked, Estimate, Values

CONFIDENCE = 0.95
UNBOUNDED = (-math.inf, math.inf)


@dataclass(frozen=True)
class Effect:
    """An arm against the baseline. What cannot be estimated is None.

    Attributes:
        effect: arm minus baseline, in the metric's unit.
        estimates: what it is judged by: that of the pooled model, and those that the guard asks for. An interval covers
            those of all, a p is the largest.
        guarded: the arm or the baseline is noisier than the other arms.
        copies: arms of the study copy each other's noise.
        room: the least and the most that the true effect can be.
    """

    effect: float | None = None
    estimates: tuple[Estimate, ...] = ()
    guarded: bool = False
    copies: bool = False
    room: tuple[float, float] = UNBOUNDED

    @property
    def p(self) -> float | None:
        """Two-sided, for this effect alone."""
        return max((estimate.p for estimate in self.estimates), default=None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """At `CONFIDENCE`, for this effect alone."""
        return self.interval_at(CONFIDENCE)

    def interval_at(self, confidence: float) -> tuple[float, float] | None:
        """The interval of this effect alone."""
        return self.interval_with(lambda df: float(stats.t.isf((1 - confidence) / 2, df)))

    def interval_with(self, critical: Callable[[float], float]) -> tuple[float, float] | None:
        """The interval with so many standard errors, by degrees of freedom, to both sides, cut to `room`."""
        if not self.estimates:
            return None
        lows, highs = zip(*(estimate.interval(critical(estimate.df)) for estimate in self.estimates), strict=True)
        return clip(min(lows), self.room), clip(max(highs), self.room)

    @property
    def is_clipped(self) -> bool:
        """Whether the interval at `CONFIDENCE` is cut to `room`."""
        return self.interval is not None and any(a == b for a, b in zip(self.interval, self.room, strict=True))

    def p_inside(self, bound: float) -> float | None:
        """The p of the claim that the true effect is smaller than `bound`, either way."""
        return max((estimate.p_inside(bound) for estimate in self.estimates), default=None)


@dataclass(frozen=True)
class Fit:
    """The model over all arms."""

    effects: dict[str, Effect]
    """Every arm but the baseline."""
    residual_sd: float | None
    """The noise of one run after its seed's effect is taken out. None where nothing is left to measure it by."""
    df: int
    levene_p: float | None
    """Brown-Forsythe test of equal noise in all arms, on the residuals. Small means unequal."""
    noisy: frozenset[str] = field(default_factory=frozenset)
    """Arms that the guard found noisier than the rest."""
    copies: bool = False
    """Whether arms copy each other's noise."""


def clip(value: float, room: tuple[float, float]) -> float:
    """The value in `room` that is nearest to this one."""
    return min(max(value, room[0]), room[1])


def contrast_bounds(weights: Mapping[str, float], bounds: tuple[float, float]) -> tuple[float, float]:
    """The least and the most that a weighted sum of means can be, when each mean lies within `bounds`."""
    ends = [sorted(weight * bound for bound in bounds) for weight in weights.values() if weight]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def fit_model(values: Values, baseline: str = "baseline", bounds: tuple[float, float] = UNBOUNDED) -> Fit:
    """Estimate every arm's effect.

    Args:
        values: one value for each finished run; a missing one is simply not there.
        baseline: the arm that the others are compared with.
        bounds: the least and the most that a value can be.
    """
    cells = Blocked.from_values(values)
    noisy = cells.noisy
    effects = {arm: _effect(cells, {arm: 1.0, baseline: -1.0}, bounds) for arm in values if arm != baseline}
    sd = math.sqrt(cells.rss / cells.df) if cells.df else None
    return Fit(effects, sd, cells.df, _levene(cells), frozenset(noisy), cells.copies)


def estimate_contrast(values: Values, weights: Mapping[str, float], bounds: tuple[float, float] = UNBOUNDED) -> Effect:
    """The weighted sum of several arms' means, as `fit` estimates the difference of two; the weights sum to 0."""
    return _effect(Blocked.from_values(values), weights, bounds)


def _effect(cells: Blocked, contrast: Mapping[str, float], bounds: tuple[float, float]) -> Effect:
    """One contrast under the model: with estimates where there is noise to build them from."""
    weights = cells.weights(contrast)
    if weights is None:
        return Effect()
    value, squares = float((weights * cells.y).sum()), (weights**2).sum(1)
    guards = [arm for arm in cells.arms if contrast.get(arm) and arm in cells.noisy]
    if not cells.rss or not cells.df:
        return Effect(value)
    pooled = Estimate(value, math.sqrt(cells.rss / cells.df * squares.sum()), cells.df)
    more = [
        cells.noisy[arm].estimate(value, own, squares.sum() - own)
        for arm, own in zip(cells.arms, squares, strict=True)
        if arm in guards
    ]
    if len(guards) > 1 or cells.copies:
        differences = cells.contrast_by_seed(contrast)
        if len(differences) < 2:  # the others' noise is not that of these arms
            return Effect(value, guarded=bool(guards), copies=cells.copies)
        more += _paired(differences, ROUNDING * np.abs(cells.y).max())
    return Effect(value, (pooled, *more), bool(guards), cells.copies, contrast_bounds(contrast, bounds))


def _paired(differences: Array, rounding: float) -> list[Estimate]:
    """The paired t-test's; none where the differences show no noise."""
    if np.std(differences) <= rounding:
        return []
    return [Estimate(float(differences.mean()), float(stats.sem(differences)), len(differences) - 1)]


def _levene(cells: Blocked) -> float | None:
    groups = [row[filled > 0] for row, filled in zip(cells.residuals, cells.filled, strict=True)]
    if len(groups) < 2 or min(map(len, groups)) < 3 or not cells.rss:
        return None
    with np.errstate(all="ignore"):
        p = float(stats.levene(*groups, center="median").pvalue)
    return p if math.isfinite(p) else None
