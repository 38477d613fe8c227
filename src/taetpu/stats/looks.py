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
from scipy import stats
from scipy.optimize import root_scalar

MOST = 3
"""Looks that a study may plan."""

NODES = 80  # of an integral over what is still undecided
SMALLEST = 1e-12  # overall p that is told apart from less


def overall(p: float, shares: Sequence[float], look: int) -> float:
    """The error rate at which the look (0 is the first) would just reject: the p of the study as a whole.

    Args:
        p: two-sided, as of a study without other looks.
        shares: of the last look's seeds, at each look; the last is 1.
    """
    if look == 0 and len(shares) == 1:
        return p
    low, high = math.log(SMALLEST), math.log(1 - 1e-9)
    if p >= nominal(math.exp(high), shares, look):
        return 1.0
    if p <= nominal(math.exp(low), shares, look):
        return SMALLEST
    found = root_scalar(lambda a: math.log(nominal(math.exp(a), shares, look) / p), bracket=(low, high), xtol=1e-6)
    return math.exp(found.root)


def nominal(alpha: float, shares: Sequence[float], look: int) -> float:
    """The level at which the look may test, when all looks together are to err at rate `alpha`."""
    points, mass, spent = np.zeros(1), np.ones(1), 0.0  # where the undecided stand: a Brownian motion at time `share`
    before, bound = 0.0, math.inf
    for share in shares[: look + 1]:
        sd, total = math.sqrt(share - before), spend(alpha, share)
        bound = _bound(points, mass, sd, total - spent)
        reach, weight = np.polynomial.legendre.leggauss(NODES)
        stay = reach * bound
        mass = (stats.norm.pdf(stay[:, None], points, sd) @ mass) * weight * bound
        points, before, spent = stay, share, total
    return float(2 * stats.norm.sf(bound / math.sqrt(before)))


def spend(alpha: float, share: float) -> float:
    """How much of the error rate may be spent when a share of the seeds is there."""
    return float(4 * stats.norm.sf(stats.norm.isf(alpha / 4) / math.sqrt(share)))


def _bound(points: np.ndarray, mass: np.ndarray, sd: float, rate: float) -> float:
    """How far from 0 the motion is beyond with this probability, after a step from `points`."""

    def beyond(bound: float) -> float:
        return float(mass @ (stats.norm.sf(bound, points, sd) + stats.norm.cdf(-bound, points, sd)))

    high = 1.0
    while beyond(high) > rate:
        high *= 2
    return float(root_scalar(lambda bound: beyond(bound) - rate, bracket=(0.0, high), xtol=1e-12).root)


def inflated(alpha: float, seeds: Sequence[int]) -> float:
    """The chance of a false verdict by the last of several looks that each test at level `alpha`, planned or not.

    Source: Armitage, McPherson and Rowe (1969), Repeated significance tests on accumulating data.
    """
    points, mass, before, found = np.zeros(1), np.ones(1), 0, 0.0
    for number in seeds:
        sd, bound = math.sqrt(number - before), stats.norm.isf(alpha / 2) * math.sqrt(number)
        reach, weight = np.polynomial.legendre.leggauss(NODES)
        stay = reach * bound
        left = (stats.norm.pdf(stay[:, None], points, sd) @ mass) * weight * bound
        found = 1 - float(left.sum())
        points, mass, before = stay, left, number
    return found
