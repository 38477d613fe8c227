"""The table of arms and seeds with the fit of the model, empty cells or not; the arms that are noisier than others."""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Values = Mapping[str, Mapping[int, float]]
"""The finished runs' values: arm -> seed -> value."""

GUARD_ALPHA = 0.15
"""Level of the test for a noisy arm: lenient, because missing one costs more than a wider interval does. By
`benchmarks/calibration.py`: at 0.1 intervals miss too often where one of few arms is two or three times as noisy, at
0.2 a study of few equally noisy arms loses too much power.
"""

COPIES_ALPHA = 0.03
"""Level of the test for arms that copy each other's noise: strict, because it makes every effect of the study wait for
the paired test. By `benchmarks/calibration.py`: at 0.05 a study of few independent arms loses too much power.
"""
NULL_DRAWS = 20_000
"""Of the null distribution of that test, which has no closed form."""

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
class Noisy:
    """An arm that is noisier than the rest.

    Attributes:
        own: what it adds to the residual sum of squares, on `own_df` degrees of freedom.
        share: how many of `own_df` are its own variance, on average; the others are the variance of the rest.
        rest: the residual variance without it, on `rest_df` degrees of freedom.
    """

    own: float
    own_df: int
    share: float
    rest: float
    rest_df: int

    def estimate(self, value: float, own_weight: float, weight: float) -> Estimate:
        """With this arm's own noise beside that of the others, and degrees of freedom after Satterthwaite (1946).

        Args:
            own_weight: the sum of squared weights of this arm's cells in the effect.
            weight: that of all other cells.
        """
        own = own_weight * self.own / self.share
        others = max(0.0, weight - own_weight * (self.own_df - self.share) / self.share) * self.rest
        spread = own**2 / self.own_df + (others**2 / self.rest_df if others else 0.0)
        return Estimate(value, math.sqrt(own + others), (own + others) ** 2 / spread)


@dataclass(frozen=True)
class Blocked:
    """The table of values with the model's fit to it.

    The arms' effects are taken out of the normal equations, so that these are as many as there are seeds, however many
    arms there are.

    Attributes:
        y: `(arms, seeds)`, 0 where there is no value.
        filled: `(arms, seeds)`, 1 where there is one. Every arm has one at least.
    """

    arms: tuple[str, ...]
    y: Array
    filled: Array

    @classmethod
    def from_values(cls, values: Values) -> "Blocked":
        arms = tuple(arm for arm, row in values.items() if row)
        seeds = sorted({seed for row in values.values() for seed in row})
        y = np.array([[values[arm].get(seed, 0.0) for seed in seeds] for arm in arms], dtype=np.float64)
        filled = np.array([[float(seed in values[arm]) for seed in seeds] for arm in arms])
        return cls(arms, y.reshape(len(arms), len(seeds)), filled.reshape(len(arms), len(seeds)))

    @cached_property
    def blocks(self) -> Array:
        """`(arms, seeds, seeds)`: each arm's part of the normal equations of the seeds' effects."""
        diagonal = self.filled[:, :, None] * np.eye(self.filled.shape[1])
        return diagonal - np.einsum("as,at->ast", self.filled, self.filled / self.filled.sum(1, keepdims=True))

    @cached_property
    def equations(self) -> Array:
        """`(seeds, seeds)`: the normal equations of the seeds' effects."""
        return self.blocks.sum(0)

    @cached_property
    def inverse(self) -> Array:
        """The generalised inverse of the normal equations."""
        return _inverse(self.equations)

    @cached_property
    def residuals(self) -> Array:
        """`(arms, seeds)`, 0 where there is no value."""
        own = self._centred(self.y)
        return self._centred(own - self.inverse @ own.sum(0))

    def _centred(self, y: Array) -> Array:
        """Less each arm's mean over the cells that it has."""
        means = (y * self.filled).sum(1, keepdims=True) / self.filled.sum(1, keepdims=True)
        return (y - means) * self.filled

    @cached_property
    def rss(self) -> float:
        """The residual sum of squares, with rounding taken for zero."""
        return self._cleaned(float((self.residuals**2).sum()))

    def _cleaned(self, rss: float) -> float:
        return rss if rss > self.filled.sum() * (ROUNDING * np.abs(self.y).max(initial=0.0)) ** 2 else 0.0

    @cached_property
    def df(self) -> int:
        """Residual degrees of freedom."""
        return int(self.filled.sum()) - len(self.arms) - _rank(self.equations)

    def weights(self, contrast: Mapping[str, float]) -> Array | None:
        """`(arms, seeds)`: the effect is the sum of the values so weighted. None where no chain of shared seeds links
        the arms.
        """
        if not set(contrast) <= set(self.arms):
            return None
        means = np.array([contrast.get(arm, 0.0) for arm in self.arms])[:, None] * self.filled
        means = means / self.filled.sum(1, keepdims=True)
        through = self.inverse @ means.sum(0)
        if not np.allclose(self.equations @ through, means.sum(0), atol=1e-8):
            return None
        return means - self._centred(np.broadcast_to(through, self.y.shape))

    def contrast_by_seed(self, contrast: Mapping[str, float]) -> Array:
        """The weighted sum of the arms' values on each seed that all of them have."""
        rows = [i for i, arm in enumerate(self.arms) if contrast.get(arm)]
        weights = np.array([contrast[self.arms[i]] for i in rows])
        return weights @ self.y[rows][:, self.filled[rows].all(0)]

    @cached_property
    def copies(self) -> bool:
        """Do arms copy each other's noise, beyond what all of them share on a seed?

        Arms that differ little from each other are nearly the same runs. Their residuals are then no independent
        measurements of noise, and the pooled one is too small. John's test that the residuals of arms are uncorrelated
        and equally noisy: the share of their variance that lies in few directions. Over the seeds that all arms have,
        and without the arms that are known to be noisier.

        Source: John (1972), The distribution of a statistic used for testing sphericity of normal distributions.
        """
        quiet = [arm not in self.noisy for arm in self.arms]
        y = self.y[quiet][:, self.filled.all(0)]
        size, dims = max(y.shape) - 1, min(y.shape) - 1
        if dims < 2:
            return False
        y = y - y.mean(0)
        y = y - y.mean(1, keepdims=True)
        total = float((y**2).sum())
        if not self._cleaned(total):
            return False
        share = float(((y.T @ y) ** 2).sum()) / total**2
        return share > sphericity_threshold(size, dims)

    @cached_property
    def noisy(self) -> dict[str, Noisy]:
        """The arms that are noisier than the rest taken together."""
        return dict(self._noisy())

    def _noisy(self) -> Iterator[tuple[str, Noisy]]:
        """Taking an arm out of the model takes out its part of the residual sum of squares; under equal noise that part
        and what remains are independent chi-squares, so that their ratio is exactly F distributed, empty cells or not.
        """
        for i, arm in enumerate(self.arms):
            left = self.equations - self.blocks[i]
            others = self._centred(self.residuals + _inverse(left) @ self.residuals[i])
            rest = self._cleaned(float((np.delete(others, i, 0) ** 2).sum()))
            rest_df = int(self.filled.sum() - self.filled[i].sum()) - (len(self.arms) - 1) - _rank(left)
            own, own_df = self.rss - rest, self.df - rest_df
            share = float(self.filled[i].sum() - 1 - np.trace(self.blocks[i] @ self.inverse))
            if own_df <= 0 or rest_df <= 0 or own <= 0:
                continue
            if rest == 0 or stats.f.sf((own / own_df) / (rest / rest_df), own_df, rest_df) < GUARD_ALPHA:
                yield arm, Noisy(own, own_df, share, rest / rest_df, rest_df)


def _inverse(matrix: Array) -> Array:
    return np.asarray(np.linalg.pinv(matrix, rcond=1e-10, hermitian=True), np.float64)


def _rank(matrix: Array) -> int:
    return int(np.linalg.matrix_rank(matrix, rtol=1e-10, hermitian=True))


@functools.cache
def sphericity_threshold(size: int, dims: int) -> float:
    """What John's statistic exceeds with a chance of `COPIES_ALPHA` where all is independent and equally noisy."""
    drawn = np.asarray(stats.wishart.rvs(size, np.eye(dims), NULL_DRAWS, random_state=0))
    share = (drawn**2).sum((1, 2)) / np.trace(drawn, axis1=1, axis2=2) ** 2
    return float(np.quantile(share, 1 - COPIES_ALPHA))
