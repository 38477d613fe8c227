"""Simultaneous intervals for several arms compared with one baseline.

All effects share the baseline's error, so the correlation between the errors of two effects is one half. Given the
baseline's error and the noise estimate, the effects are independent. The probability that none of the t statistics
exceeds `c` is therefore a double integral over the baseline's error and the noise estimate, which is computed by
quadrature (Dunnett 1955, A multiple comparison procedure for comparing several treatments with a control).
"""

from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.optimize import root_scalar

NODES = 64  # number of nodes per integral; with twice as many, results agree to 1e-6


@lru_cache(maxsize=512)
def critical_value(arms: int, df: float, confidence: float = 0.95) -> float:
    """Return the critical value for simultaneous intervals of `arms` arms. For one arm, it is that of Student's t."""
    lowest = float(stats.t.isf((1 - confidence) / 2, df))
    if arms == 1:
        return lowest
    highest = float(stats.t.isf((1 - confidence) / 2 / arms, df))  # Bonferroni's bound ignores the correlation
    return float(root_scalar(lambda c: _all_below(c, arms, df) - confidence, bracket=(lowest, highest), xtol=1e-6).root)


def _all_below(c: float, arms: int, df: float) -> float:
    """Return P(max |t| <= c) for `arms` t statistics whose numerators have a pairwise correlation of one half."""
    z, z_weight = np.polynomial.hermite_e.hermegauss(NODES)
    u, u_weight = np.polynomial.legendre.leggauss(NODES)
    # Ratio of the estimated to the true standard deviation of the noise.
    scale = np.sqrt(stats.chi2.ppf((u + 1) / 2, df) / df)[:, None]
    inside = stats.norm.cdf(c * scale * np.sqrt(2) - z) - stats.norm.cdf(-c * scale * np.sqrt(2) - z)
    return float(u_weight / 2 @ inside**arms @ z_weight / np.sqrt(2 * np.pi))
