"""Two-way analysis of variance (arm, seed) that allows empty cells, and tests for unequal and correlated noise."""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
Values = Mapping[str, Mapping[int, float]]
"""Values of finished runs: arm -> seed -> value."""

GUARD_ALPHA = 0.15
"""Level of the test for a noisy arm.

The level is high because missing a noisy arm is worse than widening an interval. It was chosen with
`benchmarks/calibration.py`. At 0.1, the coverage of intervals is too low if a study has few arms and one of them is two
or three times as noisy as the others. At 0.2, a study with few equally noisy arms loses too much power.
"""

COPIES_ALPHA = 0.03
"""Level of the test for correlated noise between arms.

The level is low because a rejection adds a paired test to all effects. It was chosen with `benchmarks/calibration.py`.
At 0.05, a study with few independent arms loses too much power.
"""
NULL_DRAWS = 20_000
"""Number of random draws from the null distribution of John's statistic. The distribution has no closed form."""

ROUNDING = 1e-12
"""Maximum spread, relative to the values' magnitude, that counts as rounding errors instead of noise."""


@dataclass(frozen=True)
class Estimate:
    """Estimated difference with its standard error and the degrees of freedom of its t distribution."""

    value: float
    standard_error: float
    df: float

    @property
    def p(self) -> float:
        """Two-sided p-value."""
        return float(2 * scipy.stats.t.sf(abs(self.value) / self.standard_error, self.df))

    def interval(self, critical: float) -> tuple[float, float]:
        """Return the interval that extends `critical` standard errors to both sides of the value."""
        half = critical * self.standard_error
        return self.value - half, self.value + half

    def p_inside(self, bound: float) -> float:
        """Return the p-value of equivalence: the larger p-value of the one-sided tests at `-bound` and at `bound`.

        Source: Schuirmann (1987), A comparison of the two one-sided tests procedure and the power approach.
        """
        return float(scipy.stats.t.sf((bound - abs(self.value)) / self.standard_error, self.df))


@dataclass(frozen=True)
class Noisy:
    """Arm that is noisier than the other arms.

    Attributes:
        rss: the arm's contribution to the residual sum of squares.
        own_df: degrees of freedom of `rss`.
        share: weight of the arm's variance in the expectation of `rss`. The variance of the other arms has the weight
            `own_df - share`.
        rest: residual variance without the arm.
        rest_df: degrees of freedom of `rest`.
    """

    rss: float
    own_df: int
    share: float
    rest: float
    rest_df: int

    def estimate(self, value: float, own_weight: float, weight: float) -> Estimate:
        """Return an estimate that uses the noise of this arm and the pooled noise of the other arms.

        Args:
            value: the effect.
            own_weight: sum of the squared weights of this arm's cells in the effect.
            weight: sum of the squared weights of all other cells.

        Source: Satterthwaite (1946), An approximate distribution of estimates of variance components.
        """
        variance = own_weight * self.rss / self.share
        others = max(0.0, weight - own_weight * (self.own_df - self.share) / self.share) * self.rest
        spread = variance**2 / self.own_df + (others**2 / self.rest_df if others else 0.0)
        return Estimate(value, math.sqrt(variance + others), (variance + others) ** 2 / spread)


@dataclass(frozen=True)
class Blocked:
    """Table of values with the least-squares fit of the two-way model.

    The arms' effects are eliminated from the normal equations. The number of equations is therefore the number of
    blocks and does not depend on the number of arms.

    Attributes:
        arms: the arms that have at least one value.
        y: values, `(arms, seeds)`, 0 for empty cells.
        filled: mask of the cells with a value, `(arms, seeds)`, 1 or 0. Every arm has at least one filled cell.
        block: the block of each seed, `(seeds,)`: runs whose seeds are in one block share its effect. By default, each
            seed is a block. If all are in one block, seeds only number the runs of an arm.
        stratum: the stratum of each seed, such as its data set, `(seeds,)`. Contrasts are means over strata, each with
            the same weight. None if all seeds have the same weight.
    """

    arms: tuple[str, ...]
    y: Array
    filled: Array
    block: NDArray[np.int64]
    stratum: NDArray[np.int64] | None = None

    @classmethod
    def from_values(
        cls, values: Values, block: Mapping[int, int] | None = None, stratum: Mapping[int, int] | None = None
    ) -> "Blocked":
        """Build the table from values by arm and seed. Arms without values are omitted.

        Args:
            values: the values.
            block: number of the block of each seed, from 0 on; by default, each seed is a block.
            stratum: number of the stratum of each seed; by default, there is one.
        """
        arms = tuple(arm for arm, row in values.items() if row)
        seeds = sorted({seed for row in values.values() for seed in row})
        y = np.array([[values[arm].get(seed, 0.0) for seed in seeds] for arm in arms], dtype=np.float64)
        filled = np.array([[float(seed in values[arm]) for seed in seeds] for arm in arms])
        blocks = np.array([block[seed] if block else number for number, seed in enumerate(seeds)], dtype=np.int64)
        strata = np.array([stratum[seed] for seed in seeds], dtype=np.int64) if stratum else None
        return cls(arms, y.reshape(len(arms), len(seeds)), filled.reshape(len(arms), len(seeds)), blocks, strata)

    @cached_property
    def columns(self) -> Array:
        """Membership of seeds in blocks, `(seeds, blocks)`, 1 or 0."""
        return np.eye(int(self.block.max(initial=-1)) + 1)[self.block]

    @property
    def paired(self) -> bool:
        """Whether each seed is a block."""
        return self.columns.shape[1] == len(self.block)

    @cached_property
    def blocks(self) -> Array:
        """Each arm's contribution to the normal equations for the blocks' effects, `(arms, blocks, blocks)`."""
        runs = self.filled @ self.columns
        diagonal = runs[:, :, None] * np.eye(runs.shape[1])
        return diagonal - np.einsum("as,at->ast", runs, runs / self.filled.sum(1, keepdims=True))

    @cached_property
    def equations(self) -> Array:
        """Normal equations for the blocks' effects, `(blocks, blocks)`."""
        return self.blocks.sum(0)

    @cached_property
    def inverse(self) -> Array:
        """Generalised inverse of the normal equations."""
        return _inverse(self.equations)

    @cached_property
    def residuals(self) -> Array:
        """Residuals, `(arms, seeds)`, 0 for empty cells."""
        centred = self._centred(self.y)
        return self._centred(centred - self.columns @ (self.inverse @ (centred.sum(0) @ self.columns)))

    def _centred(self, y: Array) -> Array:
        """Subtract each arm's mean over its filled cells."""
        means = (y * self.filled).sum(1, keepdims=True) / self.filled.sum(1, keepdims=True)
        return (y - means) * self.filled

    @cached_property
    def rss(self) -> float:
        """Residual sum of squares; 0 if the residuals are only rounding errors."""
        return self._cleaned(float((self.residuals**2).sum()))

    def _cleaned(self, rss: float) -> float:
        return rss if rss > self.filled.sum() * (ROUNDING * np.abs(self.y).max(initial=0.0)) ** 2 else 0.0

    @cached_property
    def df(self) -> int:
        """Residual degrees of freedom."""
        return int(self.filled.sum()) - len(self.arms) - _rank(self.equations)

    def weights(self, contrast: Mapping[str, float], arm_weights: Array | None = None) -> Array | None:
        """Return the cells' weights in a contrast, `(arms, seeds)`, or None if the contrast cannot be estimated.

        A contrast cannot be estimated if one of its arms has no values or if its arms are not linked by shared seeds.
        With strata, it is the mean over those strata in which it can be estimated.

        Args:
            contrast: weights of the arms' means.
            arm_weights: weight of each arm in the estimates of the seeds' effects, `(arms,)`; equal by default.
        """
        if self.stratum is not None:
            numbers = sorted(set(self.stratum.tolist()))
            parts = [self._weights_within(number, contrast, arm_weights) for number in numbers]
            known = [part for part in parts if part is not None]
            return np.mean(known, axis=0) if known else None
        if not set(contrast) <= set(self.arms):
            return None
        means = np.array([contrast.get(arm, 0.0) for arm in self.arms])[:, None] * self.filled
        means = means / self.filled.sum(1, keepdims=True)
        equations = self.equations if arm_weights is None else self._weighted(arm_weights)
        factors = 1.0 if arm_weights is None else arm_weights[:, None]
        wanted = means.sum(0) @ self.columns
        through = (self.inverse if arm_weights is None else _inverse(equations)) @ wanted
        if not np.allclose(equations @ through, wanted, atol=1e-8):
            return None
        return means - factors * self._centred(np.broadcast_to(self.columns @ through, self.y.shape))

    def _weights_within(self, number: int, contrast: Mapping[str, float], arm_weights: Array | None) -> Array | None:
        """Return the weights of the contrast in a single stratum, 0 in the others."""
        columns = np.flatnonzero(self.stratum == number)
        rows = np.flatnonzero(self.filled[:, columns].sum(1))
        place = np.ix_(rows, columns)
        _, block = np.unique(self.block[columns], return_inverse=True)
        arms = tuple(self.arms[row] for row in rows)
        within = Blocked(arms, self.y[place], self.filled[place], block)
        weights = within.weights(contrast, None if arm_weights is None else arm_weights[rows])
        if weights is None:
            return None
        everywhere = np.zeros_like(self.y)
        everywhere[place] = weights
        return everywhere

    def _weighted(self, arm_weights: Array) -> Array:
        return np.einsum("a,ast->st", arm_weights, self.blocks)

    def weighted_residuals(self, arm_weights: Array) -> tuple[Array, Array]:
        """Return residuals `(arms, seeds)` and each arm's degrees of freedom `(arms,)` if arms have these weights."""
        centred, inverse = self._centred(self.y), _inverse(self._weighted(arm_weights))
        effects = inverse @ ((arm_weights[:, None] * centred).sum(0) @ self.columns)
        df = self.filled.sum(1) - 1 - arm_weights * np.einsum("ast,ts->a", self.blocks, inverse)
        return self._centred(centred - self.columns @ effects), df

    def contrast_by_seed(self, contrast: Mapping[str, float]) -> Array:
        """Return the weighted sum of the values for each seed that all arms in the contrast share."""
        rows, shared = self._shared(contrast)
        return np.array([contrast[self.arms[i]] for i in rows]) @ self.y[rows][:, shared]

    def seed_weights(self, contrast: Mapping[str, float]) -> Array:
        """Return the weight of each seed of `contrast_by_seed` in their mean: equal within and between strata."""
        _, shared = self._shared(contrast)
        stratum = np.zeros(len(shared)) if self.stratum is None else self.stratum[shared]
        _, place, counts = np.unique(stratum, return_inverse=True, return_counts=True)
        return 1 / (counts[place] * len(counts))

    def _shared(self, contrast: Mapping[str, float]) -> tuple[list[int], NDArray[np.int64]]:
        """Return the rows of the arms in the contrast and, if seeds are blocks, the places of seeds that they share."""
        rows = [i for i, arm in enumerate(self.arms) if contrast.get(arm)]
        return rows, np.flatnonzero(self.filled[rows].all(0)) if self.paired else np.zeros(0, np.int64)

    @cached_property
    def copies(self) -> bool:
        """Whether the noise of arms is correlated beyond the effect of the seed.

        Nearly identical arms train nearly identical runs. Their residuals are not independent, so the pooled noise
        estimate is too small. The null hypothesis of John's test is that residuals are uncorrelated and have equal
        variance. The test rejects it if most of the variance lies along a few principal axes. The test uses the seeds
        that all arms share and excludes arms flagged as noisy.

        Source: John (1972), The distribution of a statistic used for testing sphericity of normal distributions.
        """
        quiet = [arm not in self.noisy for arm in self.arms]
        y = self.y[quiet][:, self.filled.all(0)]
        size, dims = max(y.shape) - 1, min(y.shape) - 1
        if dims < 2 or not self.paired:
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
        """Arms whose noise exceeds the pooled noise of the other arms."""
        return dict(self._noisy())

    def _noisy(self) -> Iterator[tuple[str, Noisy]]:
        """Yield the arms that an F test flags as noisy.

        Removing an arm reduces the residual sum of squares by the arm's contribution. Under equal noise, the
        contribution and the remainder are independent chi-squared variables up to a common scale. The ratio of their
        mean squares is therefore F distributed, even with empty cells.
        """
        for i, arm in enumerate(self.arms):
            left = self.equations - self.blocks[i]
            others = self._centred(
                self.residuals + self.columns @ (_inverse(left) @ (self.residuals[i] @ self.columns))
            )
            rest = self._cleaned(float((np.delete(others, i, 0) ** 2).sum()))
            rest_df = int(self.filled.sum() - self.filled[i].sum()) - (len(self.arms) - 1) - _rank(left)
            rss, own_df = self.rss - rest, self.df - rest_df
            share = float(self.filled[i].sum() - 1 - np.trace(self.blocks[i] @ self.inverse))
            if own_df <= 0 or rest_df <= 0 or rss <= 0:
                continue
            if rest == 0 or scipy.stats.f.sf((rss / own_df) / (rest / rest_df), own_df, rest_df) < GUARD_ALPHA:
                yield arm, Noisy(rss, own_df, share, rest / rest_df, rest_df)


def _inverse(matrix: Array) -> Array:
    return np.asarray(np.linalg.pinv(matrix, rcond=1e-10, hermitian=True), np.float64)


def _rank(matrix: Array) -> int:
    return int(np.linalg.matrix_rank(matrix, rtol=1e-10, hermitian=True))


@functools.cache
def sphericity_threshold(size: int, dims: int) -> float:
    """Return the `1 - COPIES_ALPHA` quantile of John's statistic under independent, equal noise."""
    return float(np.quantile(null_sphericity(size, dims), 1 - COPIES_ALPHA))


@functools.cache
def null_sphericity(size: int, dims: int) -> Array:
    """Return `NULL_DRAWS` values of John's statistic under independent, equal noise, in ascending order."""
    drawn = np.asarray(scipy.stats.wishart.rvs(size, np.eye(dims), NULL_DRAWS, random_state=0))
    return np.sort((drawn**2).sum((1, 2)) / np.trace(drawn, axis1=1, axis2=2) ** 2)
