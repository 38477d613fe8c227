"""Effects whose noise is weighed: each arm's variance lies between its own and that of the other arms.

The model is that of `stats.linear_model` with a variance for each arm (`stats.variances`). Seeds' effects are estimated
with arms weighted by the inverse of their variances, so a noisy arm does not blur the comparison of quiet ones.

The variances of the two arms of an effect are uncertain. Their sum's posterior distribution is summarised by a squared
standard error and degrees of freedom, so that tests and intervals are those of Student's t. A noisy baseline shares in
every effect, because its variance does.

Nearly identical arms train nearly identical runs, which the model does not expect. John's test of sphericity shows how
much the noise is correlated. As its p-value falls from `COPIES_FROM` to `COPIES_TO`, the standard error moves to that
of the paired t-test, where this is the larger one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taetpu.stats.blocked_anova import ROUNDING, Array, Blocked, Estimate, null_sphericity
from taetpu.stats.variances import Posterior, log_moments, matched, weigh_arms

COPIES_FROM, COPIES_TO = 0.06, 0.01
"""p-values of John's test from which on correlated noise counts, and from which on it counts fully."""


@dataclass(frozen=True)
class Moderated:
    """The fit of a table with weighed noise.

    Attributes:
        cells: the table. At least one of its residuals is not 0.
        posterior: the posterior of the arms' variances.
        weights: the arms' weights in the seeds' effects, `(arms,)`.
    """

    cells: Blocked
    posterior: Posterior
    weights: Array

    @classmethod
    def of(cls, cells: Blocked) -> "Moderated":
        """Fit the table."""

        def fit(weights: Array) -> tuple[Array, Array]:
            residuals, df = cells.weighted_residuals(weights[0])
            return (residuals**2).sum(1)[None], df[None]

        known, weights = weigh_arms(fit, 1, len(cells.arms))
        return cls(cells, known, weights[0])

    @property
    def variance(self) -> tuple[float, float]:
        """The common variance of runs without the seed's effect, and its degrees of freedom."""
        if not self._separable:
            return self.cells.rss / self.cells.df, self.cells.df
        logs = np.log(self.posterior.common[0])
        mean = float(self.posterior.points[0] @ logs)
        squared, df = matched(np.array(mean), self.posterior.points[0] @ (logs - mean) ** 2)
        return float(squared), min(float(df), self.cells.df)

    @property
    def _separable(self) -> bool:
        """Whether each arm has a variance of its own. Two arms that share seeds show that of their difference only."""
        return len(self.cells.arms) > 2 or self.cells.columns.shape[1] == 1

    @property
    def sds(self) -> dict[str, float]:
        """Standard deviation of each arm's runs without the seed's effect: the geometric mean of its posterior."""
        return dict(zip(self.cells.arms, np.exp(self.posterior.log_means[0] / 2).tolist(), strict=True))

    @property
    def apart(self) -> dict[str, float]:
        """Probability of each arm that its noise is apart from that of the others."""
        return dict(zip(self.cells.arms, self.posterior.apart[0].tolist(), strict=True))

    @cached_property
    def copied(self) -> float:
        """How much correlated noise counts, from 0 to 1."""
        y = self.cells.y[:, self.cells.filled.all(0)]
        if min(y.shape) < 3 or not self.cells.paired:
            return 0.0
        return float(copied(y[None], np.sqrt(self.weights)[None])[0])

    def estimate(self, contrast: Mapping[str, float]) -> Estimate | None:
        """Return the estimate of a weighted sum of the arms' means; None if it cannot be estimated."""
        weights = self.cells.weights(contrast, self.weights)
        if weights is None:
            return None
        value, scales = float((weights * self.cells.y).sum()), (weights**2).sum(1)
        if not self._separable:
            return Estimate(value, math.sqrt(self.cells.rss / self.cells.df * scales.sum()), self.cells.df)
        mean, variance = self.posterior.log_moments(scales)
        if self.copied:
            mean, variance = self._with_copies(contrast, mean, variance)
        squared, df = matched(np.array(mean), np.array(variance))
        return Estimate(value, math.sqrt(squared), min(float(df), self.cells.df))

    def _with_copies(self, contrast: Mapping[str, float], mean: float, variance: float) -> tuple[float, float]:
        """Return the log-moments of the squared standard error, moved to those of the paired t-test."""
        differences = self.cells.contrast_by_seed(contrast)
        if len(differences) < 2 or np.std(differences) <= ROUNDING * np.abs(self.cells.y).max():
            return mean, variance
        df = len(differences) - 1
        squares = (self.cells.seed_weights(contrast) ** 2).sum()
        paired = log_moments(np.array(differences.var(ddof=1) * squares), df)
        moved, spread = mixed(np.array([mean, variance]), np.array(paired), self.copied)
        return float(moved), float(spread)


def copied(y: Array, factors: Array) -> Array:
    """Return how much correlated noise counts, from 0 to 1, `(studies,)`.

    Args:
        y: values without empty cells, `(studies, arms, seeds)`, at least 3 of both.
        factors: square roots of the arms' weights, `(studies, arms)`.

    Source of the statistic: John (1972), The distribution of a statistic used for testing sphericity of normal
    distributions.
    """
    scaled = (y - y.mean(2, keepdims=True)) * factors[:, :, None]
    along = factors / np.linalg.norm(factors, axis=1, keepdims=True)  # the effects of seeds, which are removed
    scaled = scaled - along[:, :, None] * np.einsum("na,nas->ns", along, scaled)[:, None]
    products = np.einsum("nas,nat->nst", scaled, scaled)
    products = products / np.trace(products, axis1=1, axis2=2)[:, None, None]
    share = (products**2).sum((1, 2))
    null = null_sphericity(max(y.shape[1:]) - 1, min(y.shape[1:]) - 1)
    p = 1 - np.searchsorted(null, share) / len(null)
    return np.clip((COPIES_FROM - p) / (COPIES_FROM - COPIES_TO), 0, 1)


def mixed(ours: Array, paired: Array, share: Array | float) -> tuple[Array, Array]:
    """Return the log-moments of a mixture of two squared standard errors, the first where the second is smaller.

    Args:
        ours: mean and variance of the logarithm, `(2, ...)`.
        paired: those of the paired t-test, `(2, ...)`.
        share: probability of the second, as `copied` returns it.
    """
    share = np.where(paired[0] > ours[0], share, 0.0)
    mean = (1 - share) * ours[0] + share * paired[0]
    square = (1 - share) * (ours[1] + ours[0] ** 2) + share * (paired[1] + paired[0] ** 2)
    return mean, square - mean**2
