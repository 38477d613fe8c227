"""The worth of an arm in compute: a factor on the baseline's training compute, from a scaling law of the baseline.

The law is `L = E + A * C^-alpha` with E >= 0 and A, alpha > 0 (Hoffmann et al. 2022, "Training compute-optimal large
language models", with compute as the only variable). It is fitted by least squares to the baseline's means over seeds
at the rungs of a ladder. An arm whose runs cost C at a rung has the multiplier m if it differs from the baseline by
`L(m C) - L(C_baseline)`. One m for all rungs is fitted to the differences by least squares. Only differences are
compared with the law, so that what the runs of a seed share cancels, and so does a deviation of the baseline from the
law, as far as it is equal on both sides.

The law is used up to one rung (`spacing`) beyond its ends. Farther away, it counts as constant: a rung whose arm is
there says that m is at least, or at most, some value. Intervals are those of the jackknife over seeds, which fits law
and multiplier again without each seed, with an allowance for the deviations of the baseline from the law.
docs/statistics.md has their coverage.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import scipy
from jaxtyping import Float

from taetpu.stats.worth_results import Bound, LawRung, RungWorth, ScalingLaw, Worth, WorthArm

Array = np.ndarray

MIN_RUNGS = 4
"""Number of rungs from which on a law of three parameters has residuals."""
EXPONENTS = np.geomspace(1e-3, 4.0, 48)
"""Exponents between which that of a law is searched."""
POOR = 0.25
"""Largest deviation of a baseline from its law, as a share of the distance between rungs in log compute."""
STEPS = 200
"""Number of intervals in which a multiplier is searched first."""
TAIL = 0.975
ROUNDING = 1e-6


@dataclass(frozen=True)
class Law:
    """A scaling law, `floor + scale * exp(-exponent * (x - centre))` at the log compute `x`.

    Attributes:
        floor: the loss at infinite compute.
        scale: the rest of the loss at `centre`.
        exponent: the exponent of compute.
        centre: a log compute.
    """

    floor: float
    scale: float
    exponent: float
    centre: float

    def loss(self, x: Float[Array, " rungs"]) -> Float[Array, " rungs"]:
        """Return the loss at log computes."""
        return self.floor + self.scale * np.exp(-self.exponent * (x - self.centre))

    def slope(self, x: Float[Array, " rungs"]) -> Float[Array, " rungs"]:
        """Return how fast the loss falls with log compute."""
        return self.exponent * (self.loss(x) - self.floor)


def fit_law(x: Float[Array, " rungs"], y: Float[Array, " rungs"]) -> Law | None:
    """Return the law of least squares through losses `y` at log computes `x`; None if losses do not fall."""
    centre = float(x.mean())

    def fit(exponents: Array) -> tuple[Array, Array, Array]:
        """Return the floor, the scale and the values of the best law with each exponent."""
        falling = np.exp(-exponents[:, None] * (x - centre))
        deviation = falling - falling.mean(1, keepdims=True)
        scale = deviation @ y / (deviation**2).sum(1)
        floor = y.mean() - scale * falling.mean(1)
        scale = np.where(floor < 0, falling @ y / (falling**2).sum(1), scale)
        floor = np.maximum(floor, 0.0)
        return floor, scale, floor[:, None] + scale[:, None] * falling

    def gradient(log_exponent: float) -> float:
        floor, _, fitted = fit(np.exp([log_exponent]))
        return float((y - fitted[0]) @ ((x - centre) * (fitted[0] - floor[0])))

    best = int(np.argmin(((y - fit(EXPONENTS)[2]) ** 2).sum(1)))
    exponent = math.exp(_root(gradient, np.log(EXPONENTS), best))
    floor, scale, _ = fit(np.array([exponent]))
    return Law(float(floor[0]), float(scale[0]), exponent, centre) if scale[0] > 0 and best > 0 else None


def _root(gradient: Callable[[float], float], grid: Float[Array, " points"], best: int) -> float:
    """Return where a gradient is 0 beside the best point of a grid; that point if the sign does not change."""
    low, high = float(grid[max(0, best - 1)]), float(grid[min(len(grid) - 1, best + 1)])
    if gradient(low) * gradient(high) >= 0:
        return float(grid[best])
    return float(cast(float, scipy.optimize.brentq(gradient, low, high, xtol=1e-14)))


@dataclass(frozen=True)
class Climb:
    """The runs of a baseline and an arm at the rungs of a ladder, in ascending order of the baseline's compute.

    Attributes:
        base_compute: the log compute of the baseline at each rung.
        compute: that of the arm.
        base: the baseline's values at each rung and seed.
        arm: those of the arm.
    """

    base_compute: Float[Array, " rungs"]
    compute: Float[Array, " rungs"]
    base: Float[Array, "rungs seeds"]
    arm: Float[Array, "rungs seeds"]


def spacing(x: Float[Array, " rungs"]) -> float:
    """Return the mean distance between rungs in log compute."""
    return float((x[-1] - x[0]) / (len(x) - 1))


@dataclass(frozen=True)
class Multiplier:
    """An estimate of a log multiplier. `side` says that it is only a bound: `at_least` or `at_most`."""

    log: float
    side: Bound | None = None


def solve(law: Law, climb: Climb, rungs: Sequence[int]) -> Multiplier:
    """Return the multiplier of least squares over some rungs."""
    ours, theirs = climb.compute[rungs], climb.base_compute[rungs]
    gaps = (climb.arm - climb.base).mean(1)[rungs] + law.loss(theirs)
    reach = spacing(climb.base_compute)
    low, high = climb.base_compute[0] - reach, climb.base_compute[-1] + reach
    least, most = low - ours.max(), high - ours.min()

    def gradient(log: float) -> float:
        at = ours + log
        inside = (at > low) & (at < high)
        return float((gaps - law.loss(at)) @ (law.slope(at) * inside))

    grid = np.linspace(least, most, STEPS + 1)
    misfits = ((gaps - law.loss(np.clip(ours + grid[:, None], low, high))) ** 2).sum(1)
    best = int(np.argmin(misfits))
    if best in (0, STEPS):
        return Multiplier(float(grid[best]), "at_most" if best == 0 else "at_least")
    return Multiplier(_root(gradient, grid, best))


def estimate(climb: Climb, rungs: Sequence[int]) -> tuple[Multiplier, tuple[float, float] | None]:
    """Return a log multiplier over some rungs, and its interval.

    The interval is None without two seeds, without noise, and if the multiplier, or that without a seed, is a bound.
    """
    law, seeds = fit_law(climb.base_compute, climb.base.mean(1)), climb.base.shape[1]
    assert law is not None, "losses fall"
    whole, left = solve(law, climb, rungs), list[float]()
    for seed in range(seeds) if seeds > 1 and not whole.side else ():
        kept = np.arange(seeds) != seed
        part = Climb(climb.base_compute, climb.compute, climb.base[:, kept], climb.arm[:, kept])
        other = fit_law(part.base_compute, part.base.mean(1))
        each = solve(other, part, rungs) if other else None
        if each is None or each.side:
            return whole, None
        left.append(each.log)
    error = math.sqrt((seeds - 1) / seeds * float(np.sum((np.array(left) - np.mean(left)) ** 2))) if left else 0.0
    if error <= ROUNDING:
        return whole, None
    shift = whole.log + float(np.mean((climb.compute - climb.base_compute)[rungs]))
    off = float(np.abs(deviations(law, climb.base_compute, climb.base.mean(1))).max()) / spacing(climb.base_compute)
    half = math.hypot(float(scipy.stats.t.ppf(TAIL, seeds - 1)) * error, off * shift)
    return whole, (whole.log - half, whole.log + half)


def deviations(law: Law, x: Float[Array, " rungs"], y: Float[Array, " rungs"]) -> Float[Array, " rungs"]:
    """Return how far losses `y` at log computes `x` are from a law, in log compute; positive for losses below it."""
    return (law.loss(x) - y) / law.slope(x)


def lack_of_fit_p(law: Law, x: Float[Array, " rungs"], base: Float[Array, "rungs seeds"]) -> float | None:
    """Return the p-value of the F-test that the baseline's deviations from a law are noise; None without noise."""
    rungs, seeds = base.shape
    noise = base - base.mean(1, keepdims=True) - base.mean(0) + base.mean()
    df = rungs - 3, (rungs - 1) * (seeds - 1)
    squares = float((noise**2).sum())
    if seeds < 2 or math.sqrt(squares) <= ROUNDING * float(np.abs(base).max()):
        return None
    lack = seeds * float(((base.mean(1) - law.loss(x)) ** 2).sum())
    return float(scipy.stats.f.sf(lack / df[0] / (squares / df[1]), *df))


# --- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """The runs of an arm at a rung.

    Attributes:
        name: the name of the arm.
        compute: the training FLOPs of a run; None if they are not known.
        values: the values of the runs that finished, by seed.
        diverged: the number of runs that diverged.
    """

    name: str
    compute: float | None
    values: Mapping[int, float]
    diverged: int = 0


def analyse_worth(bases: Mapping[str, Runs], arms: Mapping[str, Mapping[str, Runs]]) -> Worth:
    """Return the law of a baseline and the multiplier of each arm, or why there is none.

    Args:
        bases: the runs of the baseline by rung.
        arms: the runs of each arm (without the rung) by rung.
    """
    refused: Worth = {"refused": None, "diverged": [], "law": None, "arms": {}}
    computes = {runs.compute for runs in bases.values()}
    if None in computes or len(computes) < max(MIN_RUNGS, len(bases)):
        return {**refused, "refused": "rungs"}
    if lost := [runs.name for runs in bases.values() if runs.diverged]:
        return {**refused, "refused": "diverged", "diverged": lost}
    order = sorted(bases, key=lambda rung: bases[rung].compute or 0.0)
    x, base = _matrix([bases[rung] for rung in order])
    law = fit_law(x, base.mean(1))
    if law is None:
        return {**refused, "refused": "rising"}
    entry = _law_entry(law, {rung: bases[rung].compute or math.nan for rung in order}, x, base)
    if float(np.abs(deviations(law, x, base.mean(1))).max()) > POOR * spacing(x):
        return {**refused, "refused": "poor", "law": entry}
    return {**refused, "law": entry, "arms": {name: _arm(order, x, base, runs) for name, runs in arms.items()}}


def _matrix(rungs: Sequence[Runs]) -> tuple[Float[Array, " rungs"], Float[Array, "rungs seeds"]]:
    """Return log computes, and the values on the seeds that all rungs have."""
    seeds = sorted(set.intersection(*({*runs.values} for runs in rungs)))
    values = np.array([[runs.values[seed] for seed in seeds] for runs in rungs], float)
    return np.log([runs.compute or math.nan for runs in rungs]), values


def _law_entry(
    law: Law, computes: Mapping[str, float], x: Float[Array, " rungs"], base: Float[Array, "rungs seeds"]
) -> ScalingLaw:
    means, fitted, seeds = base.mean(1), law.loss(x), base.shape[1]
    off, errors = np.exp(deviations(law, x, means)), base.std(1, ddof=1) / math.sqrt(seeds) if seeds > 1 else None
    rows: list[LawRung] = [
        {
            "rung": rung,
            "compute": compute,
            "mean": float(means[i]),
            "fitted": float(fitted[i]),
            "error": None if errors is None else float(errors[i]),
            "off": float(off[i]),
        }
        for i, (rung, compute) in enumerate(computes.items())
    ]
    return {
        "floor": law.floor,
        "scale": law.scale,
        "exponent": law.exponent,
        "at": float(np.exp(law.centre)),
        "rungs": rows,
        "p_misfit": lack_of_fit_p(law, x, base),
    }


def _arm(
    order: Sequence[str], x: Float[Array, " rungs"], base: Float[Array, "rungs seeds"], runs: Mapping[str, Runs]
) -> WorthArm:
    names = {rung: each.name for rung, each in runs.items()}
    lost = [each.name for each in runs.values() if each.diverged]
    if lost or {*names} != {*order} or any(each.compute is None for each in runs.values()):
        why = "diverged" if lost else "rungs"
        return {"names": names, "refused": why, "diverged": lost, "all": None, "rungs": {}}
    compute, values = _matrix([runs[rung] for rung in order])
    climb = Climb(x, compute, base, values)
    each = {rung: _worth(climb, order, [i]) for i, rung in enumerate(order)}
    whole = _worth(climb, order, range(len(order)))
    return {"names": names, "refused": None, "diverged": [], "all": whole, "rungs": each}


def _worth(climb: Climb, order: Sequence[str], rungs: Sequence[int]) -> RungWorth:
    multiplier, interval = estimate(climb, list(rungs))
    at = climb.compute + multiplier.log
    low, high = climb.base_compute[0] - ROUNDING, climb.base_compute[-1] + ROUNDING
    return {
        "multiplier": math.exp(multiplier.log),
        "ci95": None if interval is None else [math.exp(end) for end in interval],
        "bound": multiplier.side,
        "extrapolated": [order[i] for i in rungs if not low <= at[i] <= high],
    }
