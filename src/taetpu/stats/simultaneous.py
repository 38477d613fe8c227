"""Intervals that hold for all arms at once: wider than an arm's own, by as much as looking at many arms costs.

All arms are compared with one baseline, so that their errors share its error and correlate at one half. Given the
baseline's error and the noise estimate, the arms are independent: the chance that none of `arms` t statistics exceeds
`c` is an integral over these two, which is computed by quadrature (Dunnett 1955, A multiple comparison procedure for
comparing several treatments with a control).
"""

from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.optimize import root_scalar

NODES = 64  # of each integral: agrees with twice as many to 1e-6


@lru_cache(maxsize=512)
def critical_value(arms: int, df: float, confidence: float = 0.95) -> float:
    """How many standard errors an interval takes on both sides, so that all of `arms` intervals hold at once.

    One arm's is Student's t.
    """
    lowest = float(stats.t.isf((1 - confidence) / 2, df))
    if arms == 1:
        return lowest
    highest = float(stats.t.isf((1 - confidence) / 2 / arms, df))  # Bonferroni's, which ignores the correlation
    return float(root_scalar(lambda c: _all_below(c, arms, df) - confidence, bracket=(lowest, highest), xtol=1e-6).root)


def _all_below(c: float, arms: int, df: float) -> float:
    """P(max |t| <= c) over `arms` t statistics whose numerators correlate at one half."""
    z, z_weight = np.polynomial.hermite_e.hermegauss(NODES)
    u, u_weight = np.polynomial.legendre.leggauss(NODES)
    scale = np.sqrt(stats.chi2.ppf((u + 1) / 2, df) / df)[:, None]  # the noise estimate over the true noise
    inside = stats.norm.cdf(c * scale * np.sqrt(2) - z) - stats.norm.cdf(-c * scale * np.sqrt(2) - z)
    return float(u_weight / 2 @ inside**arms @ z_weight / np.sqrt(2 * np.pi))
