"""Statistical tests for many simulated studies at once, for `benchmarks.calibration`.

`moderated` and `guard` are the noise models of `taetpu.stats`, for studies in which every run finished.
`tests/benchmarks` checks that they are the same. All tests correct their p-values by Holm's method.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from taetpu.stats.blocked_anova import GUARD_ALPHA, sphericity_threshold
from taetpu.stats.linear_model import CONFIDENCE
from taetpu.stats.moderated import copied, mixed
from taetpu.stats.variances import log_moments, matched, weigh_arms

Array = NDArray[np.float64]

RESAMPLES = 999
CHUNK = 400  # arms of all studies that are weighed at once, whose arrays fit into a processor's cache


@dataclass(frozen=True)
class Judged:
    """Results of a test: corrected p by study and arm, and each effect's uncorrected 95 % interval."""

    p: Array
    low: Array
    high: Array


def holm(p: Array) -> Array:
    """Return p values with Holm's correction over the last axis."""
    order = np.argsort(p, axis=-1)
    ranked = np.take_along_axis(p, order, -1) * np.arange(p.shape[-1], 0, -1)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.minimum(np.maximum.accumulate(ranked, axis=-1), 1.0), -1)
    return corrected


def _t(effect: Array, error: Array, df: float | Array) -> Judged:
    """Return Student's test of effects with these standard errors, without correction."""
    half = stats.t.isf((1 - CONFIDENCE) / 2, df) * error
    return Judged(2 * stats.t.sf(np.abs(effect) / error, df), effect - half, effect + half)


def _corrected(judged: Judged) -> Judged:
    return replace(judged, p=holm(judged.p))


# --- ours ------------------------------------------------------------------------------------------------------------


def residuals(y: Array) -> Array:
    """Return the residuals of the model `arm + seed`, with equal weights of arms."""
    return y - y.mean(2, keepdims=True) - y.mean(1, keepdims=True) + y.mean((1, 2), keepdims=True)


def pooled(y: Array) -> Judged:
    """Apply the seed-blocked model with one noise for all arms."""
    _, arms, seeds = y.shape
    df = (arms - 1) * (seeds - 1)
    error = np.sqrt(2 * (residuals(y) ** 2).sum((1, 2)) / df / seeds)[:, None]
    return _corrected(_t((y[:, 1:] - y[:, :1]).mean(2), error, df))


def moderated(y: Array) -> Judged:
    """Apply the seed-blocked model with weighed noise, as `taetpu.stats.linear_model.fit_model` does."""
    return _corrected(_t((y[:, 1:] - y[:, :1]).mean(2), *weighed_errors(y)))


def weighed_errors(y: Array) -> tuple[Array, Array]:
    """Return standard errors and degrees of freedom of the effects, `(studies, arms - 1)`, with weighed noise."""
    studies, arms, seeds = y.shape
    total = (arms - 1) * (seeds - 1)
    if arms < 3:
        return (y[:, 1:] - y[:, :1]).std(2, ddof=1) / np.sqrt(seeds), np.full((studies, 1), float(total))
    parts = np.array_split(y, max(1, studies * arms // CHUNK))
    moments = np.concatenate([_weighed_moments(part) for part in parts], axis=1)
    squared, df = matched(moments[0], moments[1])
    return np.sqrt(squared), np.minimum(df, total)


def _weighed_moments(y: Array) -> Array:
    """Return mean and variance of the logarithm of the effects' squared standard errors, `(2, studies, arms - 1)`."""
    studies, arms, seeds = y.shape
    centred = y - y.mean(2, keepdims=True)

    def fit(weights: Array) -> tuple[Array, Array]:
        shares = weights / weights.sum(1, keepdims=True)
        left = centred - (shares[:, :, None] * centred).sum(1, keepdims=True)
        return (left**2).sum(2), (seeds - 1) * (1 - shares)

    known, weights = weigh_arms(fit, studies, arms)
    moments = np.array(known.pairs(0, 1 / seeds))[:, :, 1:]
    if seeds < 3:
        return moments
    share = copied(y, np.sqrt(weights))[:, None]
    squared = (y[:, 1:] - y[:, :1]).var(2, ddof=1) / seeds
    return np.array(mixed(moments, np.array(log_moments(squared, seeds - 1)), share))


def guard(y: Array) -> Judged:
    """Apply the seed-blocked model with the guard of earlier plans, as `taetpu.stats.linear_model.fit_model` does."""
    _, arms, seeds = y.shape
    difference = y[:, 1:] - y[:, :1]
    residual = residuals(y)
    rss, df = (residual**2).sum((1, 2)), (arms - 1) * (seeds - 1)
    judged = _t(difference.mean(2), np.sqrt(2 * rss / df / seeds)[:, None], df)
    if arms < 3:
        return _corrected(judged)
    rest_df = (arms - 2) * (seeds - 1)
    own = arms / (arms - 1) * (residual**2).sum(2) / (seeds - 1)
    rest = (rss[:, None] - own * (seeds - 1)) / rest_df
    noisy = stats.f.sf(own / rest, seeds - 1, rest_df) < GUARD_ALPHA
    arm, baseline = noisy[:, 1:], np.broadcast_to(noisy[:, :1], difference.shape[:2])
    own, rest = own * arms / (arms - 1), rest * (arms - 2) / (arms - 1)
    error, df = np.sqrt((own + rest) / seeds), (own + rest) ** 2 / (own**2 / (seeds - 1) + rest**2 / rest_df)
    effect = difference.mean(2)
    paired = _t(effect, difference.std(2, ddof=1) / np.sqrt(seeds), seeds - 1)
    judged = _most_cautious(judged, _t(effect, error[:, 1:], df[:, 1:]), arm)
    judged = _most_cautious(judged, _t(effect, error[:, :1], df[:, :1]), baseline)
    return _corrected(_most_cautious(judged, paired, arm & baseline | copies(residual, noisy)[:, None]))


def copies(residual: Array, noisy: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return by study whether arms share their noise, as `taetpu.stats.blocked_anova.Blocked.copies` does."""
    _, arms, seeds = residual.shape
    quiet = np.where(noisy[:, :, None], np.nan, residual)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of studies in which every arm is noisy
        quiet = np.nan_to_num(quiet - np.nanmean(quiet, axis=1, keepdims=True))
        products = np.einsum("nas,nat->nst", quiet, quiet)
        share = (products**2).sum((1, 2)) / np.trace(products, axis1=1, axis2=2) ** 2
    left = arms - noisy.sum(1)
    sizes = [(max(n, seeds) - 1, min(n, seeds) - 1) for n in range(arms + 1)]
    bound = np.array([sphericity_threshold(*size) if size[1] > 1 else np.inf for size in sizes])
    return share > bound[left]


def _most_cautious(one: Judged, other: Judged, where: NDArray[np.bool_]) -> Judged:
    """Return the larger p and wider interval of two tests where the mask is true, else the first test's."""
    return Judged(
        np.where(where, np.maximum(one.p, other.p), one.p),
        np.where(where, np.minimum(one.low, other.low), one.low),
        np.where(where, np.maximum(one.high, other.high), one.high),
    )


# --- the tests that papers use ---------------------------------------------------------------------------------------


def paired_t(y: Array) -> Judged:
    difference = y[:, 1:] - y[:, :1]
    seeds = y.shape[2]
    return _corrected(_t(difference.mean(2), difference.std(2, ddof=1) / np.sqrt(seeds), seeds - 1))


def welch(y: Array) -> Judged:
    seeds, variance = y.shape[2], y.var(2, ddof=1)
    a, b = variance[:, 1:] / seeds, variance[:, :1] / seeds
    df = (a + b) ** 2 / ((a**2 + b**2) / (seeds - 1))
    return _corrected(_t((y[:, 1:] - y[:, :1]).mean(2), np.sqrt(a + b), df))


def wilcoxon(y: Array) -> Judged:
    """Apply the exact signed-rank test, without intervals."""
    difference = y[:, 1:] - y[:, :1]
    seeds = y.shape[2]
    ranks = np.abs(difference).argsort(2).argsort(2) + 1
    positive = np.where(difference > 0, ranks, 0).sum(2)
    signs = np.array(list(product((0, 1), repeat=seeds)))
    counts = np.bincount(signs @ np.arange(1, seeds + 1), minlength=seeds * (seeds + 1) // 2 + 1) / 2**seeds
    below, above = np.cumsum(counts)[positive], np.cumsum(counts[::-1])[::-1][positive]
    nowhere = np.full(positive.shape, np.nan)
    return Judged(holm(np.minimum(1.0, 2 * np.minimum(below, above))), nowhere, nowhere)


def bootstrap(y: Array) -> Judged:
    """Bootstrap the mean difference over seeds: percentile intervals, and twice the smaller tail as p."""
    difference, seeds = y[:, 1:] - y[:, :1], y.shape[2]
    weights = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES).T / seeds
    p, low, high = (np.empty(difference.shape[:2]) for _ in range(3))
    for part in np.array_split(np.arange(len(y)), max(1, len(y) // 200)):
        means = difference[part] @ weights
        p[part] = np.minimum(1, 2 * (1 + np.minimum((means <= 0).sum(2), (means >= 0).sum(2))) / (RESAMPLES + 1))
        low[part], high[part] = np.quantile(means, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), axis=2)
    return Judged(holm(p), low, high)


TESTS = {
    "moderated": moderated,
    "guard": guard,
    "pooled": pooled,
    "paired t": paired_t,
    "Welch": welch,
    "Wilcoxon": wilcoxon,
    "bootstrap": bootstrap,
}


def judge_with_effects(method: str, y: Array, effects: Sequence[Array]) -> Iterator[Judged]:
    """Yield a test's results after each set of effects `(arms - 1,)` is added to the arms' values."""
    errors = weighed_errors(y) if method == "moderated" else None  # effects of arms change no standard error
    for effect in effects:
        if errors is not None:
            yield _corrected(_t((y[:, 1:] - y[:, :1]).mean(2) + effect, *errors))
        else:
            yield TESTS[method](y + np.concatenate([[0.0], effect])[:, None])
