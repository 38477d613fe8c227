"""The seed-blocked linear model: one effect for each arm and each seed, and one noise level for all of them.

`y[arm, seed] = arm + seed + noise`. The seed's effect is shared by all arms (same data order, same initial weights), so
taking it out leaves less noise; pooling what is left over all arms gives many degrees of freedom from few seeds. With
every cell filled, an arm's effect is the difference of the means, with standard error `sqrt(2 s^2 / seeds)`.

Pooling assumes that all arms are equally noisy. The guard tests this for each arm, the baseline included: an effect
between two arms of which one is noisier than the rest gets the larger p of the pooled model and of the paired t-test,
which assumes nothing about other arms, and an interval that covers those of both. A noisy baseline therefore guards every
effect.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from statsmodels.regression.linear_model import OLS

Array = NDArray[np.float64]
Values = Mapping[str, Mapping[int, float]]
"""The finished runs' values: arm -> seed -> value."""

CONFIDENCE = 0.95
GUARD_ALPHA = 0.10
"""Level of the test for a noisy arm: lenient, because missing one costs more than a wider interval does."""

ROUNDING = 1e-12
"""A spread below this share of the values' size is rounding, not noise."""


@dataclass(frozen=True)
class Estimate:
    """A difference with a standard error, to be judged by a t distribution."""

    value: float
    standard_error: float
    df: float

    @property
    def p(self) -> float:
        """Two-sided."""
        return float(2 * stats.t.sf(abs(self.value) / self.standard_error, self.df))

    def interval(self, critical: float) -> tuple[float, float]:
        """So many standard errors to both sides."""
        half = critical * self.standard_error
        return self.value - half, self.value + half

    def p_inside(self, bound: float) -> float:
        """The larger p of the two one-sided tests that the difference lies within `-bound` and `bound`.

        Source: Schuirmann (1987), A comparison of the two one-sided tests procedure and the power approach.
        """
        return float(stats.t.sf((bound - abs(self.value)) / self.standard_error, self.df))


@dataclass(frozen=True)
class Effect:
    """An arm against the baseline. What cannot be estimated is None.

    Attributes:
        effect: arm minus baseline, in the metric's unit.
        estimates: what it is judged by: that of the pooled model, and of the paired t-test where the guard asks for it.
            An interval covers those of all, a p is the largest.
        guarded: the arm or the baseline is noisier than the other arms.
    """

    effect: float | None = None
    estimates: tuple[Estimate, ...] = ()
    guarded: bool = False

    @property
    def p(self) -> float | None:
        """Two-sided, for this effect alone."""
        return max((estimate.p for estimate in self.estimates), default=None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """At `CONFIDENCE`, for this effect alone."""
        return self.at(CONFIDENCE)

    def at(self, confidence: float) -> tuple[float, float] | None:
        """The interval of this effect alone."""
        return self.covering(lambda df: float(stats.t.isf((1 - confidence) / 2, df)))

    def covering(self, critical: Callable[[float], float]) -> tuple[float, float] | None:
        """The interval with so many standard errors, by degrees of freedom, to both sides."""
        if not self.estimates:
            return None
        lows, highs = zip(*(estimate.interval(critical(estimate.df)) for estimate in self.estimates), strict=True)
        return min(lows), max(highs)

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


def fit(values: Values, baseline: str = "baseline") -> Fit:
    """Estimate every arm's effect.

    Args:
        values: one value for each finished run; a missing one is simply not there.
        baseline: the arm that the others are compared with.
    """
    effects = {arm: Effect() for arm in values if arm != baseline}
    y, x, arms, columns = _design(values)
    if not len(y):
        return Fit(effects, None, 0, None)
    rss, df = _residual(y, x)
    noisy = _noisy_arms(y, x, arms)
    for arm in effects:
        effects[arm] = _effect(values, {arm: 1.0, baseline: -1.0}, (y, x, columns, rss, df), noisy)
    return Fit(effects, math.sqrt(rss / df) if df else None, df, _levene(y, x, arms), noisy)


def contrast(values: Values, weights: Mapping[str, float]) -> Effect:
    """The weighted sum of several arms' means, as `fit` estimates the difference of two; the weights sum to 0."""
    y, x, arms, columns = _design(values)
    if not len(y):
        return Effect()
    return _effect(values, weights, (y, x, columns, *_residual(y, x)), _noisy_arms(y, x, arms))


def _effect(values: Values, weights: Mapping[str, float], model: Any, noisy: frozenset[str]) -> Effect:
    y, x, columns, rss, df = model
    if not set(weights) <= set(columns):
        return Effect()
    pooled = _pooled(y, x, np.array([weights.get(name, 0.0) for name in columns]), rss, df)
    return _guarded(pooled, values, weights) if set(weights) & noisy else pooled


def _design(values: Values) -> tuple[Array, Array, NDArray[np.object_], list[str | int]]:
    """Values, the matrix of indicators, each row's arm, and the columns' names: every arm, every seed but the first."""
    cells = [(arm, seed, value) for arm, row in values.items() for seed, value in row.items()]
    arms = np.array([arm for arm, _, _ in cells], dtype=object)
    seeds = np.array([seed for _, seed, _ in cells], dtype=object)
    present = [arm for arm, row in values.items() if row]
    blocks = sorted(set(seeds))[1:]
    indicators = [arms == arm for arm in present] + [seeds == seed for seed in blocks]
    y = np.array([value for _, _, value in cells], dtype=np.float64)
    return y, np.array(indicators, dtype=np.float64).T, arms, [*present, *blocks]


def _residual(y: Array, x: Array) -> tuple[float, int]:
    """Residual sum of squares, with rounding taken for zero, and its degrees of freedom."""
    if not len(y):
        return 0.0, 0
    coefficients, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
    rss = float(((y - x @ coefficients) ** 2).sum())
    return (rss if rss > len(y) * (ROUNDING * np.abs(y).max()) ** 2 else 0.0), len(y) - int(rank)


def _pooled(y: Array, x: Array, contrast: Array, rss: float, df: int) -> Effect:
    """One contrast under the model: with an interval where there is noise to build one from."""
    inverse = np.linalg.pinv(x)
    if not np.allclose(contrast @ inverse @ x, contrast, atol=1e-8):
        return Effect()  # no chain of shared seeds links the arm with the baseline
    effect = float(contrast @ inverse @ y)
    if not rss or not df:
        return Effect(effect)
    test = OLS(y, x).fit().t_test(contrast)
    return Effect(effect, (Estimate(effect, float(np.squeeze(test.sd)), df),))


def _noisy_arms(y: Array, x: Array, arms: NDArray[np.object_]) -> frozenset[str]:
    """Arms that are noisier than the rest taken together.

    Taking an arm out of the model takes out its part of the residual sum of squares; under equal noise that part and
    what remains are independent chi-squares, so that their ratio is exactly F distributed, empty cells or not.
    """
    total, df = _residual(y, x)
    noisy = []
    for arm in dict.fromkeys(arms):
        rest, rest_df = _residual(y[arms != arm], x[arms != arm])
        own, own_df = total - rest, df - rest_df
        if own_df <= 0 or rest_df <= 0 or own <= 0:
            continue
        if rest == 0 or stats.f.sf((own / own_df) / (rest / rest_df), own_df, rest_df) < GUARD_ALPHA:
            noisy.append(arm)
    return frozenset(noisy)


def _guarded(pooled: Effect, values: Values, weights: Mapping[str, float]) -> Effect:
    """The more cautious of the pooled model and the paired t-test over the seeds that all these arms have."""
    if not pooled.estimates:
        return pooled
    shared = sorted(set.intersection(*(set(values[arm]) for arm in weights)))
    if len(shared) < 2:
        return Effect(pooled.effect, guarded=True)  # the pooled noise is not this arm's, and its own cannot be seen
    rows = np.array([[weight * values[arm][seed] for seed in shared] for arm, weight in weights.items()])
    sums = rows.sum(0)
    if np.std(sums) <= ROUNDING * np.abs(rows).max():
        return replace(pooled, guarded=True)
    paired = Estimate(float(sums.mean()), float(stats.sem(sums)), len(shared) - 1)
    return Effect(pooled.effect, (*pooled.estimates, paired), guarded=True)


def _levene(y: Array, x: Array, arms: NDArray[np.object_]) -> float | None:
    residuals = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    groups = [residuals[arms == arm] for arm in dict.fromkeys(arms)]
    if len(groups) < 2 or min(map(len, groups)) < 3 or not _residual(y, x)[0]:
        return None
    with np.errstate(all="ignore"):
        p = float(stats.levene(*groups, center="median").pvalue)
    return p if math.isfinite(p) else None
