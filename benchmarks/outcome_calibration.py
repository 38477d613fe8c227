"""Error rates, coverage and power of verdicts on shares of solved runs and on times to a value.

Studies are simulated with known effects. `python -m benchmarks.outcome_calibration` prints the tables of
docs/statistics.md, and names the cells whose rate of false verdicts is above 5 % by more than two simulation errors.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from taetpu.stats import verdict
from taetpu.stats.divergence import Count
from taetpu.stats.linear_model import fit_model
from taetpu.stats.outcomes import compare_shares, log_rank_p
from taetpu.stats.plan import Plan

HORIZON, CENTRE, NOISE = 500.0, 300.0, 40.0
"""The trained steps, and the mean and the standard deviation of the time of a run without censoring."""
EFFECT = 3.0
"""The true effect in studies of power, in standard deviations of a run."""
ALPHA, ERRORS = 0.05, 2.0


@dataclass(frozen=True)
class Times:
    """How times to a value are simulated. Numbers of noise are in standard deviations of a run.

    Attributes:
        name: the name of the scenario.
        noise: distribution of a run: `normal`, or `skewed` (exponential).
        block: the standard deviation of what all arms of a seed share.
        baseline, arm: how many times as noisy the baseline and the first arm are.
        censored: the share of runs that do not arrive.
        every: the number of steps between evaluations.
    """

    name: str
    noise: str = "normal"
    block: float = 1.0
    baseline: float = 1.0
    arm: float = 1.0
    censored: float = 0.0
    every: int = 10
    no_change: ClassVar[float] = 0.0
    change: ClassVar[float] = EFFECT

    def draw(self, rng: np.random.Generator, arms: int, seeds: int, effect: float) -> NDArray[np.float64]:
        """Return restricted times `(arms, seeds)`. The last arm is faster by `effect`."""
        z = rng.exponential(size=(arms, seeds)) - 1 if self.noise == "skewed" else rng.standard_normal((arms, seeds))
        z[0] *= self.baseline
        z[1] *= self.arm
        z = z + self.block * rng.standard_normal((1, seeds))
        z[-1] -= effect
        middle = CENTRE
        if self.censored:
            middle = HORIZON - NOISE * math.hypot(1.0, self.block) * float(stats.norm.isf(self.censored))
        return np.clip(np.ceil((middle + NOISE * z) / self.every) * self.every, self.every, HORIZON)


TIMES = (
    Times("normal"),
    Times("normal, nothing shared", block=0.0),
    Times("skewed", noise="skewed"),
    Times("an arm 3x as noisy", arm=3.0),
    Times("the baseline 3x as noisy", baseline=3.0),
    Times("a third does not arrive", censored=0.33),
    Times("two thirds do not arrive", censored=0.67),
    Times("9 of 10 do not arrive", censored=0.9),
    Times("skewed, half does not arrive", noise="skewed", censored=0.5),
    Times("an arm 3x as noisy, half not", arm=3.0, censored=0.5),
    Times("half not, 12 evaluations", censored=0.5, every=40),
)


@dataclass(frozen=True)
class Shares:
    """How solved runs are simulated: a run solves its task if a normal variable is below a threshold.

    Attributes:
        name: the name of the scenario.
        share: the true share of solved runs.
        better: the share of the last arm, for the power.
        shared: the correlation of runs with the same seed.
    """

    name: str
    share: float
    better: float
    shared: float = 0.0

    @property
    def no_change(self) -> float:
        """The share of the last arm in studies without an effect."""
        return self.share

    @property
    def change(self) -> float:
        """The share of the last arm in studies of power."""
        return self.better

    def draw(self, rng: np.random.Generator, arms: int, seeds: int, share: float) -> NDArray[np.float64]:
        """Return 1 or 0 for each run, `(arms, seeds)`. The last arm has the given share."""
        z = math.sqrt(1 - self.shared) * rng.standard_normal((arms, seeds))
        z = z + math.sqrt(self.shared) * rng.standard_normal((1, seeds))
        shares = np.full((arms, 1), self.share)
        shares[-1] = share
        return (z < stats.norm.ppf(shares)).astype(float)


SHARES = (
    Shares("share 0", 0.0, 1.0),
    Shares("share 0.2", 0.2, 1.0),
    Shares("share 0.5", 0.5, 1.0),
    Shares("share 0.2, seeds shared 0.5", 0.2, 1.0, shared=0.5),
    Shares("share 0.5, seeds shared 0.5", 0.5, 1.0, shared=0.5),
    Shares("share 0.2 against 0.8", 0.2, 0.8),
)


@dataclass(frozen=True)
class Judged:
    """What a study of simulated runs found.

    Attributes:
        false: whether an arm without an effect has a verdict of better or worse.
        detected: whether the last arm has one.
        covered: for each arm, whether its interval covers the true effect; empty without intervals.
        ranked: the two flags for the log-rank test in place of the verdict's.
    """

    false: bool
    detected: bool
    covered: tuple[bool, ...] = ()
    ranked: tuple[bool, bool] = (False, False)


def judge(y: NDArray[np.float64], truth: NDArray[np.float64], plan: Plan, *, ranks: bool) -> Judged:
    """Return what the study of these outcomes `(arms, seeds)` finds, by the code that judges real studies.

    Args:
        y: the outcomes.
        truth: the true effect of each arm.
        plan: the analysis plan.
        ranks: whether the log-rank test is computed, too.
    """
    arms, seeds = y.shape
    names = ["baseline", *(f"arm{i}" for i in range(1, arms))]
    values = {name: dict(enumerate(map(float, row))) for name, row in zip(names, y, strict=True)}
    fit = compare_shares(values, "baseline") if plan.solved is not None else fit_model(values, "baseline", plan.bounds)
    counts = dict.fromkeys(names, Count(seeds, 0))
    collected = verdict.collect_evidence(
        fit.effects, fit.effects, counts, dict.fromkeys(names[1:], "baseline"), plan, seeds
    )
    clear = [verdict.decide_verdict(collected[name], plan) in ("better", "worse") for name in names[1:]]
    null = np.asarray(truth[1:]) == 0
    intervals = [fit.effects[name].interval for name in names[1:]]
    covered = tuple(e[0] <= t <= e[1] for e, t in zip(intervals, truth[1:], strict=True) if e)
    ranked = (False, False)
    if ranks:
        sides = [[(float(v), bool(v < HORIZON)) for v in row] for row in y]
        p = verdict.holm({i: log_rank_p(sides[i], sides[0]) for i in range(1, arms)})
        low = [(p[i] or 1.0) < ALPHA for i in range(1, arms)]
        ranked = any(a and b for a, b in zip(low, null, strict=True)), low[-1]
    return Judged(any(a and b for a, b in zip(clear, null, strict=True)), clear[-1], covered, ranked)


def true_effects(scenario: Times | Shares, arms: int, change: float) -> NDArray[np.float64]:
    """Return the true effect of each arm, as a mean over many runs; exactly 0 for the arms without an effect."""
    means = scenario.draw(np.random.default_rng(0), arms, 200_000, change).mean(1)
    effects = means - means[0]
    differs = np.arange(arms) == arms - 1 if change != scenario.no_change else np.zeros(arms, bool)
    if isinstance(scenario, Times) and scenario.censored and scenario.arm != 1.0:
        differs[1] = True  # the mean of more scattered times, cut off at the horizon, is smaller
    return np.where(differs, effects, 0.0)


def rates(scenario: Times | Shares, studies: int, arms: int, seeds: int) -> list[float]:
    """Return the rates of a scenario: false verdicts, coverage, power, and the first and last for the log-rank test."""
    timed = isinstance(scenario, Times)
    names = ("baseline", *(f"arm{i}" for i in range(1, arms)))
    plan = Plan("val/loss", "min", names, tuple(range(seeds)), (seeds,), rules=2, noise="moderated")
    plan = replace(plan, reach=1.0, eval_every=10) if timed else replace(plan, solved=1.0)
    found: list[list[Judged]] = []
    for change in (scenario.no_change, scenario.change):
        rng, truth = np.random.default_rng(1), true_effects(scenario, arms, change)
        found.append([judge(scenario.draw(rng, arms, seeds, change), truth, plan, ranks=timed) for _ in range(studies)])
    null, changed = found
    covered = [flag for each in null for flag in each.covered]
    row = [np.mean([each.false for each in null]), np.mean(covered), np.mean([each.detected for each in changed])]
    ranked = [np.mean([each.ranked[0] for each in null]), np.mean([each.ranked[1] for each in changed])]
    return list(map(float, [*row, *(ranked if timed else [])]))


def excess(name: str, false: float, studies: int) -> Iterator[str]:
    """Yield a line if a rate of false verdicts is above the nominal one by more than two simulation errors."""
    most = ALPHA + ERRORS * math.sqrt(ALPHA * (1 - ALPHA) / studies)
    if false > most:
        yield f"{name}: false verdicts {false:.3f}, at most {most:.3f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000, help="simulated studies of each kind")
    studies = parser.parse_args().studies
    lines: list[str] = []
    for scenarios, title in ((TIMES, "times to a value"), (SHARES, "shares of solved runs")):
        more = "  log-rank: false  power" if scenarios is TIMES else ""
        print(f"{title:30} arms seeds  false  cover  power{more}")
        for scenario in scenarios:
            for arms in (2, 4):
                for seeds in (3, 5, 8):
                    false, *others = rates(scenario, studies, arms, seeds)
                    first, last = others[:2], others[2:]
                    shown = " ".join(f"{value:6.3f}" for value in (false, *first))
                    ranked = f"           {last[0]:6.3f} {last[1]:6.3f}" if last else ""
                    print(f"{scenario.name:30} {arms:4d} {seeds:5d} {shown}{ranked}", flush=True)
                    lines += excess(f"{scenario.name}, {arms} arms, {seeds} seeds", false, studies)
        print()
    print("\n".join(lines) or "no rate of false verdicts is above 5 % by more than two simulation errors")


if __name__ == "__main__":
    main()
