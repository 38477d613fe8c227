"""Effects measured on documents, with simultaneous intervals from a paired bootstrap over documents.

An effect is the mean change of the loss per target: the sum of the changes of all documents divided by the sum of their
weights. Documents are drawn with replacement, the same for all effects. The largest of the effects' studentised errors
gives intervals that contain all true effects together with the probability `LEVEL`. An effect that a few documents
decide would widen the intervals of all others. It has a separate critical value, at Bonferroni's level.

Source: Efron and Tibshirani (1993), An introduction to the bootstrap, chapter 12 (bootstrap-t); Romano and Wolf (2005),
    Stepwise multiple testing as formalized data snooping (largest studentised statistic).
"""

from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float

LEVEL = 0.95
"""The probability of intervals."""
DRAWS = 4000
"""The number of samples of documents."""
HEAVY = 2.0
"""An effect whose studentised errors exceed those of Student's t by this factor has its own critical value."""
LEAST = 5
"""The minimum number of documents for an interval. The error of fewer documents cannot be estimated from them."""


@dataclass(frozen=True)
class Effects:
    """Effects with their errors.

    Attributes:
        estimate: The effects, per unit of weight.
        error: Their standard errors; NaN for a single document.
        low: The lower ends of the simultaneous intervals; NaN for fewer than `LEAST` documents, and for an effect that
            varies between too few documents.
        high: The upper ends.
        critical: The number of standard errors from each effect to the ends of its interval; NaN without an interval.
        documents: The number of documents.
    """

    estimate: Float[np.ndarray, " effect"]
    error: Float[np.ndarray, " effect"]
    low: Float[np.ndarray, " effect"]
    high: Float[np.ndarray, " effect"]
    critical: Float[np.ndarray, " effect"]
    documents: int

    @property
    def has_intervals(self) -> bool:
        """Whether any effect has an interval."""
        return not np.isnan(self.low).all()


def estimate_effects(
    changes: Float[np.ndarray, "effect document"],
    weights: Float[np.ndarray, " document"],
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Effects:
    """Estimate the effects of changes on documents.

    Args:
        changes: The sum of the weighted changes of the losses of each document, for each effect.
        weights: The sum of the weights of each document, above 0.
        draws: The number of samples of documents.
        seed: The seed of the samples.
    """
    changes, weights = np.asarray(changes, np.float64), np.asarray(weights, np.float64)
    documents = len(weights)
    estimate = changes.sum(-1) / weights.sum()
    error = missing = np.full(estimate.shape, np.nan)
    if documents > 1:
        error = _errors(np.ones((1, documents)), changes, weights)[0]
    if documents < LEAST:
        return Effects(estimate, error, missing, missing, missing, documents)
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(documents, np.full(documents, 1 / documents), draws).astype(np.float64)
    drawn = counts @ changes.T / (counts @ weights)[:, None]
    errors = _errors(counts, changes, weights)
    apart = np.abs(drawn - estimate)
    # A sample without variance has no studentised error. It counts as the largest one, unless nothing varies at all.
    with np.errstate(divide="ignore", invalid="ignore"):
        studentised = np.where(apart <= 1e-12 * (1 + np.abs(estimate)), 0.0, apart / errors)
    critical = critical_values(studentised, LEVEL, documents - 1)
    critical = np.where(np.isfinite(critical), critical, np.nan)
    return Effects(estimate, error, estimate - critical * error, estimate + critical * error, critical, documents)


def critical_values(
    studentised: Float[np.ndarray, "draw effect"], level: float, df: int
) -> Float[np.ndarray, " effect"]:
    """Return the number of studentised errors that each effect exceeds so rarely that together they do at `level`.

    Effects share the quantile of the largest error. An effect with a heavy tail has its own quantile, and takes its
    share of the errors that `level` permits.

    Args:
        studentised: The absolute studentised errors of samples.
        level: The probability with which no effect exceeds its critical value.
        df: The degrees of freedom of Student's t, which tells heavy tails.
    """
    effects = studentised.shape[1]
    usual = scipy.stats.t.isf((1 - level) / 2, df)
    heavy = np.quantile(studentised, level, axis=0, method="higher") > HEAVY * usual
    critical = np.empty(effects)
    critical[heavy] = np.quantile(studentised[:, heavy], 1 - (1 - level) / effects, axis=0, method="higher")
    if not heavy.all():
        shared = 1 - (1 - level) * (1 - heavy.sum() / effects)
        critical[~heavy] = np.quantile(studentised[:, ~heavy].max(-1), shared, method="higher")
    return critical


def _errors(
    counts: Float[np.ndarray, "draw document"], changes: np.ndarray, weights: np.ndarray
) -> Float[np.ndarray, "draw effect"]:
    """Return the standard errors of the effects in samples of documents, by linearisation of the ratio."""
    documents, total = counts.shape[1], (counts @ weights)[:, None]
    estimate = counts @ changes.T / total
    squares = counts @ (changes**2).T - 2 * estimate * (counts @ (changes * weights).T)
    squares = squares + estimate**2 * (counts @ weights**2)[:, None]
    return np.sqrt(np.maximum(squares, 0) * documents / (documents - 1)) / total
