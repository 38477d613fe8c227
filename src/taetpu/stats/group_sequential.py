"""Looks: verdicts at several numbers of seeds, planned beforehand, which together keep to one error rate.

Who tests again after every added seed finds something sooner or later. With planned looks each may spend a part of the
error rate: by the `k`-th, when a share `t` of the seeds is there, as much as `4 - 4 Phi(z(1 - alpha/4) / sqrt(t))`.
That is little early on, so that the last look tests at nearly the whole rate (Lan and DeMets 1983, Discrete sequential
boundaries for clinical trials, with the boundary of O'Brien and Fleming 1979).

A p of a look is turned into that of a study with this look alone (`overall`), by asking for which error rate the look's
bound would be just that p. So corrected, it goes into Holm's procedure as any other (Ye et al. 2013, A group sequential
Holm procedure with multiple primary endpoints).
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import root_scalar
from scipy.special import ndtr, ndtri

MAX_ANALYSES = 3
"""Looks that a study may plan."""

NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)  # of an integral over what is still undecided
MIN_P = 1e-12  # overall p that is told apart from less


def overall_p(p: float, shares: Sequence[float], look: int) -> float:
    """The error rate at which the look (0 is the first) would just reject: the p of the study as a whole.

    Args:
        p: two-sided, as of a study without other looks.
        shares: of the last look's seeds, at each look; the last is 1.
    """
    if len(shares) == 1:
        return p
    if look == 0:
        return min(1.0, float(4 * ndtr(ndtri(p / 4) * math.sqrt(shares[0]))))
    bound, share, before = -float(ndtri(max(p, MIN_P) / 2)) * math.sqrt(shares[look]), shares[look], shares[look - 1]

    def excess(log_alpha: float) -> float:
        """How much more the look would spend than it may, if it rejected at `p`."""
        alpha = math.exp(log_alpha)
        points, mass = _continuing(alpha, shares[:look])
        return _mass_beyond(bound, points, mass, math.sqrt(share - before)) - (
            alpha_spent(alpha, share) - alpha_spent(alpha, before)
        )

    low, high = math.log(MIN_P), math.log(1 - 1e-9)
    if excess(high) >= 0:
        return 1.0
    return MIN_P if excess(low) <= 0 else math.exp(root_scalar(excess, bracket=(low, high), xtol=1e-8).root)


def nominal_level(alpha: float, shares: Sequence[float], look: int) -> float:
    """The level at which the look may test, when all looks together are to err at rate `alpha`."""
    before = shares[look - 1] if look else 0.0
    rate = alpha_spent(alpha, shares[look]) - (alpha_spent(alpha, before) if look else 0.0)
    bound = _find_bound(*_continuing(alpha, shares[:look]), math.sqrt(shares[look] - before), rate)
    return float(2 * ndtr(-bound / math.sqrt(shares[look])))


def _continuing(alpha: float, shares: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Where studies stand that no look has decided so far, and how many: a Brownian motion at time `share`."""
    points, mass, before, spent = np.zeros(1), np.ones(1), 0.0, 0.0
    for share in shares:
        sd, total = math.sqrt(share - before), alpha_spent(alpha, share)
        points, mass = _step_within(points, mass, sd, _find_bound(points, mass, sd, total - spent))
        before, spent = share, total
    return points, mass


def _step_within(points: np.ndarray, mass: np.ndarray, sd: float, bound: float) -> tuple[np.ndarray, np.ndarray]:
    """Those within the bound after a step."""
    z = (NODES[:, None] * bound - points) / sd
    return NODES * bound, (np.exp(-(z**2) / 2) @ mass) * WEIGHTS * bound / (sd * math.sqrt(2 * math.pi))


def alpha_spent(alpha: float, share: float) -> float:
    """How much of the error rate may be spent when a share of the seeds is there."""
    return float(4 * ndtr(ndtri(alpha / 4) / math.sqrt(share)))


def _mass_beyond(bound: float, points: np.ndarray, mass: np.ndarray, sd: float) -> float:
    """How many are further from 0 than the bound, after a step."""
    return float(mass @ (ndtr((points - bound) / sd) + ndtr((-bound - points) / sd)))


def _find_bound(points: np.ndarray, mass: np.ndarray, sd: float, rate: float) -> float:
    """The bound that so many are beyond, after a step."""
    if len(points) == 1:
        return -float(ndtri(rate / 2)) * sd
    high = 1.0
    while _mass_beyond(high, points, mass, sd) > rate:
        high *= 2
    return float(root_scalar(lambda b: _mass_beyond(b, points, mass, sd) - rate, bracket=(0.0, high), xtol=1e-10).root)


def inflated_error_rate(alpha: float, seeds: Sequence[int]) -> float:
    """The chance of a false verdict by the last of several looks that each test at level `alpha`, planned or not.

    Source: Armitage, McPherson and Rowe (1969), Repeated significance tests on accumulating data.
    """
    points, mass, before = np.zeros(1), np.ones(1), 0
    for number in seeds:
        bound = -float(ndtri(alpha / 2)) * math.sqrt(number)
        points, mass = _step_within(points, mass, math.sqrt(number - before), bound)
        before = number
    return 1 - float(mass.sum())
