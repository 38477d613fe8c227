"""Group-sequential tests: planned interim analyses at several numbers of seeds with one overall error rate.

Repeated unplanned tests inflate the error rate. Planned analyses spend alpha gradually: up to an analysis with a share
`t` of the seeds, the alpha spent is `4 - 4 Phi(z(1 - alpha/4) / sqrt(t))`. Early analyses spend little alpha, so the
last analysis tests at nearly the full level (Lan and DeMets 1983, Discrete sequential boundaries for clinical trials,
with the boundary of O'Brien and Fleming 1979).

`overall_p` converts the p-value of an interim analysis into the overall p-value, which is the smallest overall error
rate at which the analysis rejects. Holm's procedure then applies to the overall p-values (Ye et al. 2013, A group
sequential Holm procedure with multiple primary endpoints).
"""

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import scipy

NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)  # quadrature over the continuation region
MIN_P = 1e-12  # lower bound for overall p-values after the first analysis


def overall_p(p: float, shares: Sequence[float], index: int) -> float:
    """Return the overall p-value: the smallest overall error rate at which the interim analysis rejects.

    Args:
        p: two-sided p-value of the analysis alone.
        shares: number of seeds at each analysis divided by the number at the last analysis.
        index: zero-based index of the analysis.
    """
    if len(shares) == 1:
        return p
    if index == 0:
        return min(1.0, float(4 * scipy.special.ndtr(scipy.special.ndtri(p / 4) * math.sqrt(shares[0]))))
    share, before = shares[index], shares[index - 1]
    bound = -float(scipy.special.ndtri(max(p, MIN_P) / 2)) * math.sqrt(share)

    def excess(log_alpha: float) -> float:
        """Return the alpha needed for rejection at `p` minus the alpha available at this analysis."""
        alpha = math.exp(log_alpha)
        points, mass = _continuing(alpha, shares[:index])
        available = alpha_spent(alpha, share) - alpha_spent(alpha, before)
        return _mass_beyond(bound, points, mass, math.sqrt(share - before)) - available

    low, high = math.log(MIN_P), math.log(1 - 1e-9)
    if excess(high) >= 0:
        return 1.0
    return MIN_P if excess(low) <= 0 else math.exp(cast(float, scipy.optimize.brentq(excess, low, high, xtol=1e-8)))


def nominal_level(alpha: float, shares: Sequence[float], index: int) -> float:
    """Return the nominal level of an analysis for an overall error rate `alpha`."""
    before = shares[index - 1] if index else 0.0
    rate = alpha_spent(alpha, shares[index]) - (alpha_spent(alpha, before) if index else 0.0)
    bound = _find_bound(*_continuing(alpha, shares[:index]), math.sqrt(shares[index] - before), rate)
    return float(2 * scipy.special.ndtr(-bound / math.sqrt(shares[index])))


def _continuing(alpha: float, shares: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return quadrature points and masses of the Brownian motion at the last share, excluding stopped paths."""
    points, mass, before, spent = np.zeros(1), np.ones(1), 0.0, 0.0
    for share in shares:
        sd, total = math.sqrt(share - before), alpha_spent(alpha, share)
        points, mass = _step_within(points, mass, sd, _find_bound(points, mass, sd, total - spent))
        before, spent = share, total
    return points, mass


def _step_within(points: np.ndarray, mass: np.ndarray, sd: float, bound: float) -> tuple[np.ndarray, np.ndarray]:
    """Return quadrature points and masses within the bound after a step with standard deviation `sd`."""
    z = (NODES[:, None] * bound - points) / sd
    return NODES * bound, (np.exp(-(z**2) / 2) @ mass) * WEIGHTS * bound / (sd * math.sqrt(2 * math.pi))


def alpha_spent(alpha: float, share: float) -> float:
    """Return the alpha spent up to the analysis with this share of the seeds."""
    return float(4 * scipy.special.ndtr(scipy.special.ndtri(alpha / 4) / math.sqrt(share)))


def _mass_beyond(bound: float, points: np.ndarray, mass: np.ndarray, sd: float) -> float:
    """Return the mass beyond the bound on both sides after a step with standard deviation `sd`."""
    return float(mass @ (scipy.special.ndtr((points - bound) / sd) + scipy.special.ndtr((-bound - points) / sd)))


def _find_bound(points: np.ndarray, mass: np.ndarray, sd: float, rate: float) -> float:
    """Return the bound beyond which the mass is `rate` after a step with standard deviation `sd`."""
    if len(points) == 1:
        return -float(scipy.special.ndtri(rate / 2)) * sd
    high = 1.0
    while _mass_beyond(high, points, mass, sd) > rate:
        high *= 2
    return cast(float, scipy.optimize.brentq(lambda b: _mass_beyond(b, points, mass, sd) - rate, 0.0, high, xtol=1e-10))


def inflated_error_rate(alpha: float, seeds: Sequence[int]) -> float:
    """Return the overall error rate of analyses at the given numbers of seeds that all test at level `alpha`.

    Source: Armitage, McPherson and Rowe (1969), Repeated significance tests on accumulating data.
    """
    points, mass, before = np.zeros(1), np.ones(1), 0
    for number in seeds:
        bound = -float(scipy.special.ndtri(alpha / 2)) * math.sqrt(number)
        points, mass = _step_within(points, mass, math.sqrt(number - before), bound)
        before = number
    return 1 - float(mass.sum())
