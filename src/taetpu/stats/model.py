"""The seed-blocked linear model: one effect for each arm and each seed, and one noise level for all of them.

`y[arm, seed] = arm + seed + noise`. The seed's effect is shared by all arms (same data order, same initial weights), so
taking it out leaves less noise; pooling what is left over all arms gives many degrees of freedom from few seeds. With
every cell filled, an arm's effect is the difference of the means, with standard error `sqrt(2 s^2 / seeds)`.

Pooling assumes that all arms are equally noisy. The guard tests this for each arm, the baseline included: an effect
between two arms of which one is noisier than the rest gets the larger p and the wider interval of the pooled model and
of the paired t-test, which assumes nothing about other arms. A noisy baseline therefore guards every effect.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
class Effect:
    """An arm against the baseline. What cannot be estimated is None."""

    effect: float | None = None
    """Arm minus baseline, in the metric's unit."""
    interval: tuple[float, float] | None = None
    """At `CONFIDENCE`, for this effect alone (not simultaneous)."""
    p: float | None = None
    """Two-sided, for this effect alone."""
    standard_error: float | None = None
    df: float | None = None
    """Degrees of freedom behind the standard error."""
    guarded: bool = False
    """The arm or the baseline is noisier than the other arms."""


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
        if {arm, baseline} <= set(columns):
            contrast = np.array([float(name == arm) - float(name == baseline) for name in columns])
            pooled = _pooled(y, x, contrast, rss, df)
            effects[arm] = _guarded(pooled, values[arm], values[baseline]) if {arm, baseline} & noisy else pooled
    return Fit(effects, math.sqrt(rss / df) if df else None, df, _levene(y, x, arms), noisy)


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
    if not rss or not df:
        return Effect(float(contrast @ inverse @ y))
    test = OLS(y, x).fit().t_test(contrast)
    low, high = np.ravel(test.conf_int(alpha=1 - CONFIDENCE)).tolist()
    effect, error, p = (float(np.squeeze(part)) for part in (test.effect, test.sd, test.pvalue))
    return Effect(effect, (low, high), p, error, df)


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


def _guarded(pooled: Effect, arm: Mapping[int, float], baseline: Mapping[int, float]) -> Effect:
    """The more cautious of the pooled model and the paired t-test over the seeds that both arms have."""
    if pooled.effect is None or pooled.p is None or pooled.interval is None:
        return pooled
    shared = sorted(arm.keys() & baseline.keys())
    if len(shared) < 2:
        return Effect(pooled.effect, guarded=True)  # the pooled noise is not this arm's, and its own cannot be seen
    ours, theirs = np.array([arm[seed] for seed in shared]), np.array([baseline[seed] for seed in shared])
    if np.std(ours - theirs) <= ROUNDING * np.abs(ours).max():
        return replace(pooled, guarded=True)
    test = stats.ttest_rel(ours, theirs)
    paired = test.confidence_interval(CONFIDENCE)
    half, p = float(paired.high - paired.low) / 2, max(pooled.p, float(test.pvalue))
    if half <= pooled.effect - pooled.interval[0]:
        return replace(pooled, p=p, guarded=True)
    interval = pooled.effect - half, pooled.effect + half
    error = float(stats.sem(ours - theirs))
    return Effect(pooled.effect, interval, p, error, len(shared) - 1, guarded=True)


def _levene(y: Array, x: Array, arms: NDArray[np.object_]) -> float | None:
    residuals = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    groups = [residuals[arms == arm] for arm in dict.fromkeys(arms)]
    if len(groups) < 2 or min(map(len, groups)) < 3 or not _residual(y, x)[0]:
        return None
    with np.errstate(all="ignore"):
        p = float(stats.levene(*groups, center="median").pvalue)
    return p if math.isfinite(p) else None
