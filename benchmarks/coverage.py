"""Coverage of intervals if arms differ in noise: of the noise models, and of a weighing that knows more than any study.

`python -m benchmarks.coverage` prints the tables of "Coverage with unequal noise" in docs/statistics.md.
"""

import argparse
from itertools import product

import numpy as np
from rich.console import Console
from rich.progress import track
from scipy import stats

from benchmarks.calibration import ALPHA
from benchmarks.calibration_methods import judge_with_effects
from benchmarks.calibration_scenarios import EFFECT, SCENARIOS, Scenario

NOISY = 3.0
"""How many times as noisy as the others half of the arms are."""

NAMES = (
    "an arm 3x as noisy", "an arm 10x", "half of the arms 3x", "the baseline 3x", "the baseline 10x",
    "baseline and an arm 3x", "log-normal scales, sd 0.5",
)  # fmt: skip


def ideal(seeds: int, studies: int, comparisons: int = 9) -> dict[str, float]:
    """Return the coverage that an ideal weighing of noise has, and its power for effects of quiet arms.

    Each arm has the noise of the baseline or `NOISY` times as much, with equal probability. The weighing knows this
    probability, both variances and that the baseline is quiet, and uses the exact posterior probability that an arm is
    noisy, given the residuals of its runs. No study knows as much.

    Args:
        seeds: runs of each arm.
        studies: number of simulated arms of each kind.
        comparisons: number of comparisons for which power is corrected (Bonferroni).
    """
    rng, df, variances = np.random.default_rng(seeds), seeds - 1, np.array([1.0, NOISY**2])
    covered = np.empty(2)
    power = 0.0
    for kind, variance in enumerate(variances):
        squares = variance * rng.chisquare(df, studies)
        logs = -0.5 * df * np.log(variances) - 0.5 * squares[:, None] / variances
        weights = np.exp(logs - logs.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        noise = rng.normal(0, np.sqrt((1 + variance) / seeds), studies)

        def p(effect: np.ndarray, weights: np.ndarray = weights) -> np.ndarray:
            errors = np.sqrt((1 + variances) / seeds)
            return 2 * (weights * stats.norm.sf(np.abs(effect)[:, None] / errors)).sum(1)

        covered[kind] = (p(noise) >= ALPHA).mean()
        if kind == 0:
            power = float((p(noise + EFFECT) < ALPHA / comparisons).mean())
    return {"quiet": covered[0], "noisy": covered[1], "average": covered.mean(), "power": power}


def coverage(scenario: Scenario, arms: int, seeds: int, studies: int, method: str) -> tuple[float, float]:
    """Return the coverage of a noise model's 95 % intervals: of the worst arm, and on average."""
    y = scenario.draw(np.random.default_rng([arms, seeds, SCENARIOS.index(scenario)]), studies, arms, seeds)
    truth = scenario.effects(arms)
    judged = next(iter(judge_with_effects(method, y, [truth])))
    by_arm = ((judged.low <= truth) & (truth <= judged.high)).mean(0)
    return float(by_arm.min()), float(by_arm.mean())


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=4000, help="simulated studies of each kind")
    asked = parser.parse_args()
    print("an ideal weighing: half of the arms 3x\n\nseeds  quiet arms  noisy arms  average   power")
    for seeds in (3, 5, 8):
        known = ideal(seeds, 50 * asked.studies)
        print(f"{seeds:5}{known['quiet']:12.3f}{known['noisy']:12.3f}{known['average']:9.3f}{known['power']:8.3f}")
    print(f"\n{'':43}average    worst arm\n{'':28}seeds arms    new   old    new   old")
    scenarios = [next(scenario for scenario in SCENARIOS if scenario.name == name) for name in NAMES]
    kinds = list(product(scenarios, (3, 5, 8), (4, 10)))
    for scenario, seeds, arms in track(kinds, "simulating", console=Console(stderr=True)):
        new, old = (coverage(scenario, arms, seeds, asked.studies, method) for method in ("moderated", "guard"))
        print(f"{scenario.name:28}{seeds:5}{arms:5}{new[1]:7.3f}{old[1]:6.3f}{new[0]:7.3f}{old[0]:6.3f}")


if __name__ == "__main__":
    main()
