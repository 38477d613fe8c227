"""Intervals and tests of the absolute means of arms. What runs of a seed share does not cancel in them.

The variance of an arm's runs is the sum of the noise and of what all arms of a seed share. Each arm's variance is
weighed between its own and that of most arms (`stats.variances`). Arms that share seeds say less about it than
independent arms: if the shared part dominates, all arms have the same deviations, and together they say no more than
one. The degrees of freedom are therefore those of the mean of the arms' variances by Satterthwaite's formula, from the
mean squares of seeds and of the noise. An arm's standard error is at least the one computed from its runs alone. A goal
needs many tests at a low error rate, and a noisy arm whose variance is weighed towards that of quiet ones would be
decided wrongly too often.

Source of the formula: Satterthwaite (1946), An approximate distribution of estimates of variance components.
"""

from collections.abc import Sequence

import numpy as np

from taetpu.stats.blocked_anova import Array
from taetpu.stats.variances import Posterior, matched, posterior

WEIGHED_ARMS = 3
"""Smallest number of arms whose variances are weighed. Each of fewer arms has its own."""

ROUNDING = 1e-12
"""Share of the largest value, squared, up to which a variance is a rounding error."""


def level_errors(values: Sequence[Array]) -> tuple[Array, Array]:
    """Return the standard error of each arm's mean, and its degrees of freedom.

    Args:
        values: values by seed of each arm, `(seeds,)`, NaN for a run without a value.

    Returns:
        Two arrays `(arms,)`; NaN for an arm with fewer than two values. The error is 0 for an arm without noise.
    """
    y = np.array(values, np.float64)[None]
    errors, df = np.full(y.shape[1], np.nan), np.full(y.shape[1], np.nan)
    known = np.isfinite(y[0]).sum(1) > 1
    if known.any():
        errors[known], df[known] = (part[0] for part in errors_of_studies(y[:, known]))
    return errors, df


def errors_of_studies(y: Array) -> tuple[Array, Array]:
    """Return the standard errors and degrees of freedom of the arms' means in many studies, each `(studies, arms)`.

    Args:
        y: values, `(studies, arms, seeds)`, NaN for runs without a value, at least two values of each arm.
    """
    counts = np.isfinite(y).sum(2)
    own_df = (counts - 1).astype(np.float64)
    centred = y - np.nanmean(y, 2, keepdims=True)
    squares = np.nansum(centred**2, 2)
    quiet = squares <= ROUNDING * np.nanmax(np.abs(y), 2) ** 2
    squares[quiet] = 0.0
    if y.shape[1] < WEIGHED_ARMS or not (squares.sum(1) > 0).all():
        return np.sqrt(squares / own_df / counts), own_df
    share = _independent_share(centred)[:, None]
    mean, variance = _log_moments(posterior(squares * share, own_df * share))
    squared, df = matched(mean, variance)
    total = (own_df * share).sum(1, keepdims=True)
    errors = np.sqrt(np.maximum(squared, squares / own_df) / counts)
    return errors, np.minimum(df, np.maximum(total, 1.0))


def _independent_share(centred: Array) -> Array:
    """Return the share of the arms' degrees of freedom that are independent, `(studies,)`, from 1 / arms to 1.

    Args:
        centred: values minus the arm's mean, `(studies, arms, seeds)`. Seeds without a value of some arm are left out.
    """
    whole = np.isfinite(centred).all((0, 1))
    arms, seeds = centred.shape[1], int(whole.sum())
    if seeds < 2:  # nothing shows how much is shared
        return np.full(len(centred), 1 / arms)
    y = centred[:, :, whole]
    y = y - y.mean(2, keepdims=True)
    by_seed = y.mean(1)
    shared = (by_seed**2).sum(1) / (seeds - 1)  # the mean square of seeds / arms
    noise = ((y - by_seed[:, None]) ** 2).sum((1, 2)) / ((seeds - 1) * arms)
    total = shared + noise
    spread = shared**2 + noise**2 / (arms - 1)
    return np.where(total > 0, total**2 / np.where(spread > 0, spread, 1) / arms, 1.0).clip(1 / arms, 1)


def _log_moments(known: Posterior) -> tuple[Array, Array]:
    """Return mean and variance of the logarithm of each arm's variance, `(studies, arms)`."""
    total = np.einsum("sp,spal->sa", known.points, known.weights)
    logs = np.log(known.levels)
    mean = np.einsum("sp,spal,spl->sa", known.points, known.weights, logs, optimize=True) / total
    square = np.einsum("sp,spal,spl->sa", known.points, known.weights, logs**2, optimize=True) / total
    return mean + np.log(known.factors), square - mean**2
