"""Seed-blocked linear model with additive effects of arms and seeds and one noise level.

The model is `y[arm, seed] = arm + seed + noise`. All arms share the effect of a seed (same data order, same initial
weights), so removing this effect reduces the noise. Pooling the remaining noise over arms gives many degrees of freedom
from few seeds. Without empty cells, an arm's effect is the difference of the means, with standard error
`sqrt(2 s^2 / seeds)`.

The mean of a bounded metric is bounded. For example, accuracies are between 0 and 1, so their differences are between
-1 and 1. Effects are estimated in the metric's unit. Intervals are clipped to the possible range. Clipping does not
change their coverage.

Pooling assumes equal noise in all arms. The guard tests this assumption for each arm, including the baseline. An effect
compares an arm with its baseline. For each of these two arms that is noisier than the rest, the guard adds an estimate
from the noise of this arm and the pooled noise of the other arms. If both are noisier, the guard also adds the paired
t-test. This test assumes nothing about other arms. The effect's p-value is the largest p-value of all estimates, and
its interval covers the intervals of all estimates. A noisy baseline therefore guards every effect.

Plans with the noise model `moderated` have no guard: noise is weighed (see `stats.moderated`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import scipy

from taetpu.core.metric_spec import UNBOUNDED
from taetpu.stats.blocked_anova import ROUNDING, Array, Blocked, Estimate, Values
from taetpu.stats.divergence import Count, boschloo_p
from taetpu.stats.moderated import Moderated
from taetpu.stats.plan import NoiseModel

CONFIDENCE = 0.95
NOISY = 0.8
"""Probability of noise apart from which on an arm is called noisy, for readers; no test depends on it."""


@dataclass(frozen=True)
class ExactTests:
    """Exact tests of an effect between runs without noise, which leave the model without a standard error.

    The tests count seeds instead: equal runs may owe their equality to a coarse metric, so few of them prove little.

    Attributes:
        effect: the effect, the same for every seed.
        p: two-sided p-value of no effect.
        p_side: p-value of the sign test that the median effect is on one side of any other value: `0.5**seeds`.
    """

    effect: float
    p: float
    p_side: float

    def p_inside(self, bound: float) -> float:
        """Return the p-value for the claim that the true effect is between `-bound` and `bound`."""
        return self.p_side if abs(self.effect) < bound else 1.0


@dataclass(frozen=True)
class Effect:
    """Effect of an arm relative to its baseline. Values that cannot be estimated are None.

    Attributes:
        effect: arm minus baseline, in the metric's unit.
        estimates: the pooled estimate, and the estimates added because of noisy arms or correlated noise.
        guarded: whether the arm or the baseline is noisier than the other arms.
        copies: whether the noise is correlated between arms.
        room: smallest and largest possible true effect.
        exact: the tests that replace the estimates if the runs show no noise.
        noisier: arms of the effect whose weighed noise is probably apart from that of the others.
    """

    effect: float | None = None
    estimates: tuple[Estimate, ...] = ()
    guarded: bool = False
    copies: bool = False
    room: tuple[float, float] = UNBOUNDED
    exact: ExactTests | None = None
    noisier: tuple[str, ...] = ()

    @property
    def p(self) -> float | None:
        """Two-sided p-value, not corrected for other arms: the largest p-value of all estimates."""
        return max((estimate.p for estimate in self.estimates), default=None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval at `CONFIDENCE`, without correction for other arms."""
        return self.interval_at(CONFIDENCE)

    def interval_at(self, confidence: float) -> tuple[float, float] | None:
        """Return the interval at a confidence level, without correction for other arms."""
        return self.interval_with(lambda df: float(scipy.stats.t.isf((1 - confidence) / 2, df)))

    def interval_with(self, critical: Callable[[float], float]) -> tuple[float, float] | None:
        """Return the interval that covers the intervals of all estimates, clipped to `room`.

        Args:
            critical: function that returns the critical value for the given degrees of freedom.
        """
        if not self.estimates:
            return None
        lows, highs = zip(*(estimate.interval(critical(estimate.df)) for estimate in self.estimates), strict=True)
        return clip(min(lows), self.room), clip(max(highs), self.room)

    @property
    def is_clipped(self) -> bool:
        """Whether the interval at `CONFIDENCE` is clipped to `room`."""
        return self.interval is not None and any(a == b for a, b in zip(self.interval, self.room, strict=True))

    def p_inside(self, bound: float) -> float | None:
        """Return the p-value for the claim that the true effect is between `-bound` and `bound`."""
        return max((estimate.p_inside(bound) for estimate in self.estimates), default=None)


@dataclass(frozen=True)
class Fit:
    """Model fitted to the values of all arms."""

    effects: dict[str, Effect]
    """Effect of each arm except the baseline."""
    residual_sd: float | None
    """Standard deviation of a run's noise without the seed's effect; None without residual degrees of freedom."""
    df: float
    """Degrees of freedom of `residual_sd`."""
    levene_p: float | None
    """p-value of the Brown-Forsythe test for equal noise in all arms, computed from the residuals."""
    noisy: frozenset[str] = field(default_factory=frozenset)
    """Arms that the guard flags as noisier than the other arms."""
    copies: bool = False
    """Whether the noise is correlated between arms."""
    sds: dict[str, float] | None = None
    """Standard deviation of each arm's runs without the seed's effect; None with the guard."""
    apart: dict[str, float] | None = None
    """Probability that each arm's noise is apart from that of the others; None with the guard."""


def clip(value: float, room: tuple[float, float]) -> float:
    """Return the value clipped to `room`."""
    return min(max(value, room[0]), room[1])


def contrast_bounds(weights: Mapping[str, float], bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the bounds on a weighted sum of means that are each within `bounds`."""
    ends = [sorted(weight * bound for bound in bounds) for weight in weights.values() if weight]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def fit_model(
    values: Values,
    baseline: str = "baseline",
    bounds: tuple[float, float] = UNBOUNDED,
    noise: NoiseModel = "moderated",
    block: Mapping[int, int] | None = None,
    stratum: Mapping[int, int] | None = None,
) -> Fit:
    """Estimate every arm's effect.

    Args:
        values: values of the finished runs, by arm and seed. Seeds may be missing for any arm.
        baseline: name of the arm with which all other arms are compared.
        bounds: smallest and largest possible value.
        noise: how unequal noise is treated, as the plan says.
        block: the block of each seed, from 0 on; by default, each seed is a block (see `Blocked`).
        stratum: the stratum of each seed, over which effects are means with equal weights (see `Blocked`).
    """
    cells = Blocked.from_values(values, block, stratum)
    weighed = Moderated.of(cells) if noise == "moderated" and cells.df and cells.rss else None
    effects = {arm: _effect(cells, weighed, {arm: 1.0, baseline: -1.0}, bounds) for arm in values if arm != baseline}
    if noise == "guard":
        sd = math.sqrt(cells.rss / cells.df) if cells.df else None
        return Fit(effects, sd, cells.df, _levene(cells), frozenset(cells.noisy), cells.copies)
    if weighed is None:
        return Fit(effects, 0.0 if cells.df else None, cells.df, None)
    variance, df = weighed.variance
    noisy, copies = frozenset(arm for arm, share in weighed.apart.items() if share > NOISY), weighed.copied > NOISY
    return Fit(effects, math.sqrt(variance), df, _levene(cells), noisy, copies, weighed.sds, weighed.apart)


def estimate_contrast(
    values: Values,
    weights: Mapping[str, float],
    bounds: tuple[float, float] = UNBOUNDED,
    noise: NoiseModel = "moderated",
    block: Mapping[int, int] | None = None,
) -> Effect:
    """Estimate a weighted sum of the arms' means, with weights that sum to 0, under the model of `fit_model`."""
    cells = Blocked.from_values(values, block)
    weighed = Moderated.of(cells) if noise == "moderated" and cells.df and cells.rss else None
    return _effect(cells, weighed, weights, bounds)


def subtract(first: Effect, second: Effect) -> Effect:
    """Return the difference of two effects of different arms, which come from fits of two groups of arms.

    The noise of the groups is independent, so squared standard errors are added, with the degrees of freedom of
    Satterthwaite (1946). Noise that a group shares with its baseline cancels within it, which one fit of both groups
    would count in full.
    """
    if first.effect is None or second.effect is None:
        return Effect()
    value = first.effect - second.effect
    pairs = product(first.estimates, second.estimates)
    squares = [((a.standard_error**2, a.df), (b.standard_error**2, b.df)) for a, b in pairs]
    estimates = tuple(
        Estimate(value, math.sqrt(s + t), (s + t) ** 2 / (s**2 / df + t**2 / other)) for (s, df), (t, other) in squares
    )
    return Effect(value, estimates, room=(first.room[0] - second.room[1], first.room[1] - second.room[0]))


def _effect(
    cells: Blocked, weighed: Moderated | None, contrast: Mapping[str, float], bounds: tuple[float, float]
) -> Effect:
    """Return the effect for one contrast. The effect has no estimates if the runs show no noise."""
    weights = cells.weights(contrast)
    if weights is None:
        return Effect()
    value = float((weights * cells.y).sum())
    if not cells.df:
        return Effect(value)
    if not cells.rss:
        return Effect(value, exact=_exact_tests(cells, contrast, value))
    room = contrast_bounds(contrast, bounds)
    if weighed is None:
        return _guarded(cells, contrast, weights, room)
    estimate = weighed.estimate(contrast)
    if estimate is None:
        return Effect()
    noisier = tuple(arm for arm in cells.arms if contrast.get(arm) and weighed.apart[arm] > NOISY)
    return Effect(estimate.value, (estimate,), copies=weighed.copied > NOISY, noisier=noisier, room=room)


def _guarded(cells: Blocked, contrast: Mapping[str, float], weights: Array, room: tuple[float, float]) -> Effect:
    """Return the effect with the pooled estimate and those that the guard adds."""
    value, squares = float((weights * cells.y).sum()), (weights**2).sum(1)
    guards = [arm for arm in cells.arms if contrast.get(arm) and arm in cells.noisy]
    pooled = Estimate(value, math.sqrt(cells.rss / cells.df * squares.sum()), cells.df)
    more = [
        cells.noisy[arm].estimate(value, squared, squares.sum() - squared)
        for arm, squared in zip(cells.arms, squares, strict=True)
        if arm in guards
    ]
    if len(guards) > 1 or cells.copies:
        differences = cells.contrast_by_seed(contrast)
        if len(differences) < 2:  # the pooled noise does not apply to these arms
            return Effect(value, guarded=bool(guards), copies=cells.copies)
        more += _paired(differences, ROUNDING * np.abs(cells.y).max())
    return Effect(value, (pooled, *more), bool(guards), cells.copies, room)


def _exact_tests(cells: Blocked, contrast: Mapping[str, float], value: float) -> ExactTests | None:
    """Return the exact tests for runs without noise, or None if the arms share fewer than two seeds.

    If neither arm's runs vary over seeds, Boschloo's test compares how often the two arms give each of the two values.
    Otherwise the sign test compares the arms seed by seed, which needs seeds that arms share.
    """
    rows = [i for i, arm in enumerate(cells.arms) if contrast.get(arm)]
    runs = [cells.y[i][cells.filled[i] > 0] for i in rows]
    seeds = len(cells.contrast_by_seed(contrast)) if cells.paired else min(map(len, runs))
    rounding = ROUNDING * np.abs(cells.y).max()
    if seeds < 2:
        return None
    side = 0.5**seeds if cells.paired else 1.0
    if abs(value) <= rounding:
        return ExactTests(value, 1.0, side)
    p = None
    if len(runs) == 2 and all(np.ptp(values) <= rounding for values in runs):
        p = boschloo_p(Count(len(runs[0]), 0), Count(0, len(runs[1])))
    return ExactTests(value, min(1.0, 2 * side) if p is None else p, side)


def _paired(differences: Array, rounding: float) -> list[Estimate]:
    """Return a list with the estimate of the paired t-test, or an empty list if the differences show no noise."""
    if np.std(differences) <= rounding:
        return []
    return [Estimate(float(differences.mean()), float(scipy.stats.sem(differences)), len(differences) - 1)]


def _levene(cells: Blocked) -> float | None:
    groups = [row[filled > 0] for row, filled in zip(cells.residuals, cells.filled, strict=True)]
    if len(groups) < 2 or min(map(len, groups)) < 3 or not cells.rss:
        return None
    with np.errstate(all="ignore"):
        p = float(scipy.stats.levene(*groups, center="median").pvalue)
    return p if math.isfinite(p) else None
