"""Variances of arms, estimated from few seeds by weighing each arm's own noise against the noise that arms share.

An arm is either *ordinary* or *apart*. The variances of ordinary arms are equal or scatter about a common variance. The
variance of an arm apart is larger, by a factor that the arm's runs alone determine. Whether an arm is apart is never
decided: the probability that it is weighs both cases, so a small change of a value changes a variance only a little. An
arm apart hardly affects the common variance, so it does not hide the effects of other arms.

The posterior distribution is computed on a grid: exactly, without samples. Constants were chosen with
`benchmarks.calibration` (docs/statistics.md has its table). The idea of a common prior for variances is that of Smyth
(2004), Linear models and empirical Bayes methods for assessing differential expression in microarray experiments; that
of a separate prior for outlying variances is that of Phipson et al. (2016), Robust hyperparameter estimation protects
against hypervariable genes and improves power to detect differential expression.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

SCATTER = ((0.05, 0.8), (0.7, 0.2))
"""Standard deviations of the logarithm of ordinary variances, with their prior probabilities: nearly equal, or not."""

APART = np.linspace(0.5, 8.0, 9)
"""Logarithms of the variance of an arm apart relative to the common variance, which are equally probable a priori."""

FAR_APART = 5.0
"""Logarithm of an arm's mean square relative to the common variance from which on its levels move up with it.

The levels then cover any noise, and an arm far apart cannot raise the common variance.
"""

MOST_APART, APART_DF = 0.3, 64
"""Largest prior probability that an arm is apart, and the degrees of freedom up to which it applies."""

TWO_RUNS = 2 / 3
"""Factor of this probability for arms with two runs, which say little: at 1, even effects of 10 sd are often missed."""

SHARPNESS = 1.5
"""Power to which the odds that an arm is apart are raised.

At 1, arms whose noise looks ordinary cost too much power, because each may still be apart.
"""

CENTRES, SPAN = 21, 4.0
"""Number of grid points of the logarithm of the common variance, and their largest distance from its estimate."""

NEGLIGIBLE = 1e-3
"""Share of the largest weight below which an arm's variance is left out of a sum of variances."""

MOST_SUMS, BINS = 1024, 48
"""Largest number of distinct sums for each point of the grid, and the number of bins to which more are reduced."""

NO_NOISE, LEAST_NOISE = 1e-24, 1e-6
"""Share of the mean variance up to which the median one is a rounding error, and the share that then replaces it."""

LEAST_DF = 1e-6
"""Degrees of freedom up to which an arm shows no noise, because it has one run."""

ROUNDS = 3
"""Number of times that weights and variances are estimated again."""

_NORMAL, _NORMAL_WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_NORMAL_WEIGHTS = _NORMAL_WEIGHTS / _NORMAL_WEIGHTS.sum()
_ORDINARY = len(_NORMAL)  # the first levels of the grid; the others are those of arms apart


def prior_apart(df: float, arms: int) -> float:
    """Return the prior probability that an arm is apart: `MOST_APART`, or less with few or many degrees of freedom.

    With many degrees of freedom, the runs themselves show which arms are apart. The prior then only costs power.

    Args:
        df: degrees of freedom of all arms together.
        arms: number of arms.
    """
    return MOST_APART * min(1.0, math.sqrt(APART_DF / df)) * (TWO_RUNS if df < arms else 1.0)


@dataclass(frozen=True)
class Posterior:
    """Joint posterior distribution of the variances of arms, for any number of studies at once.

    Given a point of the grid of common variances, the variances of arms are independent.

    Attributes:
        levels: variances of arms whose factor is 1, `(studies, points, levels)`.
        weights: probability of each level, `(studies, points, arms, levels)`. The sum over levels is 1 before the
            probabilities of arms apart are sharpened.
        points: probability of each point of the grid, `(studies, points)`.
        apart: probability that each arm is apart, `(studies, arms)`.
        common: the common variances, `(studies, points)`.
        centre: posterior mean of the logarithm of the common variance, `(studies,)`.
        factors: factors of the levels of each arm, `(studies, arms)`, above 1 for arms far apart only.
    """

    levels: Array
    weights: Array
    points: Array
    apart: Array
    common: Array
    centre: Array
    factors: Array

    @property
    def log_means(self) -> Array:
        """Posterior means of the logarithms of the variances, `(studies, arms)`."""
        total = np.einsum("sp,spal->sa", self.points, self.weights)
        logs = np.einsum("sp,spal,spl->sa", self.points, self.weights, np.log(self.levels), optimize=True)
        return logs / total + np.log(self.factors)

    def pairs(self, first: int, scale: float) -> tuple[Array, Array]:
        """Return log-moments of the squared standard error of the difference of each arm's mean to another's.

        Args:
            first: the index of the arm with which the others are compared.
            scale: 1 / seeds.

        Returns:
            Mean and variance of the logarithm, `(studies, arms)`; the entries of `first` itself have no meaning.
        """
        weights = self.points[:, :, None] * self.weights[:, :, first]
        far = (self.factors != 1).any(0)
        moments = np.empty((3, *self.factors.shape))
        for arms in (np.flatnonzero(~far), *np.flatnonzero(far)[:, None]):
            sums = np.einsum("s,spl->spl", self.factors[:, first], self.levels)[:, :, :, None]
            sums = sums + np.einsum("s,spl->spl", self.factors[:, arms].max(1, initial=1.0), self.levels)[:, :, None]
            logs = np.log(sums * scale)
            for power in (0, 1, 2):
                inner = np.einsum("spl,splm->spm", weights, logs**power, optimize=True)
                moments[power][:, arms] = np.einsum("spm,spam->sa", inner, self.weights[:, :, arms], optimize=True)
        mean = moments[1] / moments[0]
        return mean, moments[2] / moments[0] - mean**2

    def log_moments(self, scales: Array) -> tuple[float, float]:
        """Return mean and variance of the logarithm of a weighted sum of the variances of one study.

        Args:
            scales: weight of each arm's variance, `(arms,)`, not negative.
        """
        scales = scales * self.factors[0]
        order = [arm for arm in np.argsort(-scales, kind="stable") if scales[arm] > NEGLIGIBLE * scales.max()]
        sums, weights = np.zeros((len(self.points[0]), 1)), self.points[0][:, None]
        for arm in order:
            if sums.shape[1] * self.levels.shape[2] > MOST_SUMS:
                sums, weights = _binned(sums, weights)
            sums = (sums[:, :, None] + scales[arm] * self.levels[0][:, None, :]).reshape(len(sums), -1)
            weights = (weights[:, :, None] * self.weights[0][:, arm, None, :]).reshape(len(sums), -1)
        logs, total = np.log(sums), weights.sum()
        mean = float((weights * logs).sum() / total)
        return mean, float((weights * (logs - mean) ** 2).sum() / total)


def matched(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return squared standard error and degrees of freedom of the inverse chi-squared law with these log-moments.

    Args:
        mean: mean of the logarithm of a squared standard error.
        variance: variance of this logarithm.
    """
    df = 2 * inverse_trigamma(np.maximum(variance, 1e-6))
    return np.exp(mean - np.log(df / 2) + scipy.special.digamma(df / 2)), df


def log_moments(squared_error: Array, df: float) -> tuple[Array, Array]:
    """Return mean and variance of the logarithm of squared standard errors: the inverse of `matched`."""
    mean = np.log(squared_error) + math.log(df / 2) - scipy.special.digamma(df / 2)
    return mean, np.broadcast_to(scipy.special.polygamma(1, df / 2), mean.shape)


def inverse_trigamma(value: Array) -> Array:
    """Return the argument at which the trigamma function has this value, by Newton's method (Smyth 2004, appendix)."""
    x = 0.5 + 1 / value
    for _ in range(20):
        current = scipy.special.polygamma(1, x)
        x = x + current * (1 - current / value) / scipy.special.polygamma(2, x)
    return np.asarray(x, np.float64)


def _binned(sums: Array, weights: Array) -> tuple[Array, Array]:
    """Return sums and weights by point of the grid, reduced to `BINS` bins of the logarithm that keep the mean."""
    logs = np.log(sums)
    low, high = logs.min(1, keepdims=True), logs.max(1, keepdims=True)
    bins = ((logs - low) / np.maximum(high - low, 1e-12) * (BINS - 1)).astype(int)
    flat, size = (bins + BINS * np.arange(len(sums))[:, None]).ravel(), BINS * len(sums)
    weight = np.bincount(flat, weights.ravel(), size).astype(np.float64)
    total = np.bincount(flat, (weights * sums).ravel(), size).astype(np.float64)
    mean = np.divide(total, weight, out=np.ones(size), where=weight > 0)
    return mean.reshape(-1, BINS), weight.reshape(-1, BINS)


def weigh_arms(fit: Callable[[Array], tuple[Array, Array]], studies: int, arms: int) -> tuple[Posterior, Array]:
    """Return the posterior of the arms' variances, and the arms' weights in the effects of the seeds.

    A noisy arm says little about the effect of a seed. Arms are therefore weighted by the inverse of their variances
    when the effects of seeds are estimated. The variances are in turn those of the residuals.

    Args:
        fit: function that returns residual sums of squares and degrees of freedom, each `(studies, arms)`, for weights
            of that shape.
        studies: number of studies.
        arms: number of arms.
    """
    weights = np.ones((studies, arms))
    known = posterior(*fit(weights))
    for _ in range(ROUNDS):
        logs = known.log_means
        weights = np.exp(logs.min(1, keepdims=True) - logs)
        known = posterior(*fit(weights), known.centre)
    return known, weights


def posterior(rss: Array, df: Array, centre: Array | None = None) -> Posterior:
    """Return the posterior distribution of the arms' variances.

    Args:
        rss: residual sums of squares, `(studies, arms)`. Not all of a study's are 0.
        df: their degrees of freedom, `(studies, arms)`.
        centre: logarithm of the common variance about which the grid is centred, `(studies,)`; by default, and if the
            grid would not reach it, that of the median mean square.
    """
    square = np.divide(rss, df, out=np.full(rss.shape, np.nan), where=df > LEAST_DF)
    median, mean = np.nanmedian(square, axis=1), np.nanmean(square, axis=1)
    middle = np.log(np.where(median > NO_NOISE * mean, median, LEAST_NOISE * mean))
    centre = middle if centre is None else np.where(np.abs(middle - centre) > SPAN / 2, middle, centre)
    factors = np.maximum(1.0, np.nan_to_num(square) / np.exp(centre + FAR_APART)[:, None])
    total_df = round(float(df.sum(1).mean()), 6)
    points, point_weights, logs = _grid(total_df)
    logs = logs[None] + centre[:, None, None]
    prior = np.log(np.concatenate([_NORMAL_WEIGHTS, np.full(len(APART), 1 / len(APART))]))
    fit = (
        -0.5 * df[:, None, :, None] * logs[:, :, None, :]
        - 0.5 * (rss / factors)[:, None, :, None] * np.exp(-logs)[:, :, None, :]
        + prior
    )
    top = fit.max(3, keepdims=True)
    fit = np.exp(fit - top)
    share = prior_apart(total_df, rss.shape[1])
    fit[..., :_ORDINARY] *= 1 - share
    fit[..., _ORDINARY:] *= share
    total = fit.sum(3)
    at = (np.log(total) + top[..., 0]).sum(2) + point_weights
    at = np.exp(at - at.max(1, keepdims=True))
    at /= at.sum(1, keepdims=True)
    weights = fit / total[..., None]
    apart = np.clip(np.einsum("sp,spal->sa", at, weights[..., _ORDINARY:]), 0, 1)
    sharp = apart**SHARPNESS / (apart**SHARPNESS + (1 - apart) ** SHARPNESS)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights[..., :_ORDINARY] *= np.nan_to_num((1 - sharp) / (1 - apart))[:, None, :, None]
        weights[..., _ORDINARY:] *= np.nan_to_num(sharp / apart)[:, None, :, None]
    common = np.exp(centre[:, None] + points)
    return Posterior(np.exp(logs), weights, at, sharp, common, centre + at @ points, factors)


@lru_cache(maxsize=64)
def _grid(df: float) -> tuple[Array, Array, Array]:
    """Return the grid for about `df` degrees of freedom in all.

    Returns:
        The logarithms of the common variance relative to the centre, `(points,)`, the logarithms of their prior
        weights, `(points,)`, and the logarithms of the levels, `(points, levels)`. The points are dense near the
        centre, where the posterior is narrow if there are many degrees of freedom.
    """
    width = 2 * math.sqrt(2 / df)
    line = width * np.sinh(np.linspace(-1, 1, CENTRES) * math.asinh(SPAN / width))
    scatter = np.repeat([sd for sd, _ in SCATTER], CENTRES)
    points = np.tile(line, len(SCATTER))
    weights = np.log(np.concatenate([share * np.gradient(line) for _, share in SCATTER]))
    apart = np.broadcast_to(APART, (len(points), len(APART)))
    return points, weights, np.concatenate([scatter[:, None] * _NORMAL, apart], 1) + points[:, None]


@lru_cache(maxsize=4096)
def expected_estimate(arms: int, seeds: int) -> tuple[float, float]:
    """Return standard error, in standard deviations of a run, and degrees of freedom of an effect in a typical study.

    All arms are equally noisy there, and their residuals have their expected squares.

    Args:
        arms: number of arms, the baseline included.
        seeds: number of seeds.
    """
    total = (arms - 1) * (seeds - 1)
    if arms < 3:
        return math.sqrt(2 / seeds), float(total)
    df = np.full((1, arms), total / arms)
    squared, freedom = matched(*posterior(df, df).pairs(0, 1 / seeds))
    return math.sqrt(squared[0, 1]), min(float(freedom[0, 1]), float(total))
