"""Error rates of goals, with and without a search, on simulated studies.

Each study has candidates along a cost, with means that fall along it. `python -m benchmarks.goal_calibration` prints
the table of docs/statistics.md: the share of studies in which the smallest candidate that meets the threshold is not
among those that the answer allows (the error), in which a false candidate is named, and in which the true one is
named, with the median number of trained candidates.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taetpu.stats.goal import Level, answer_goal
from taetpu.stats.goal_search import count_looks, next_step
from taetpu.store.frozen_study import PlannedGoal, PlannedThreshold, SearchStep

ALPHA = 0.05


@dataclass(frozen=True)
class Scenario:
    """How studies are simulated. All numbers are in standard deviations of a run's noise; the threshold is 0.

    Attributes:
        name: The name of the scenario.
        gap: The difference between the means of neighbours.
        offset: The mean of the last candidate that fails, at least 0, as a share of the gap.
        block: The standard deviation of what all candidates of a seed share.
        noisy: The standard deviation of every third candidate.
        skewed: Whether noise has the law of a centred log-normal variable (skewness 1.75) instead of the normal law.
        candidates: The number of candidates.
        tasks: The number of tasks, on each of which another candidate may be the first that meets the threshold.
    """

    name: str
    gap: float
    offset: float = 0.5
    block: float = 0.0
    noisy: float = 1.0
    skewed: bool = False
    candidates: int = 12
    tasks: int = 1

    def draw(self, rng: np.random.Generator, seeds: int) -> tuple[NDArray[np.float64], int]:
        """Return values `(tasks, candidates, seeds)` and the true smallest candidate, which differs between studies."""
        drawn = [self._draw(rng, seeds) for _ in range(self.tasks)]
        return np.array([y for y, _ in drawn]), max(true for _, true in drawn)

    def _draw(self, rng: np.random.Generator, seeds: int) -> tuple[NDArray[np.float64], int]:
        true = int(rng.integers(1, self.candidates))
        means = self.gap * (true - 1 + self.offset - np.arange(self.candidates)) + 1e-9
        noise = rng.standard_normal((self.candidates, seeds))
        if self.skewed:
            noise = (np.exp(0.5 * noise) - math.exp(0.125)) / math.sqrt(math.exp(0.25) * (math.exp(0.25) - 1))
        noise[::3] *= self.noisy
        return means[:, None] + noise + self.block * rng.standard_normal(seeds), true


SCENARIOS = (
    Scenario("steps of 0.5 sd", 0.5),
    Scenario("steps of 2 sd", 2.0),
    Scenario("steps of 4 sd", 4.0),
    Scenario("all at the threshold", 1e-6),
    Scenario("one at the threshold, 4 sd", 4.0, offset=1e-6),
    Scenario("4 sd, seeds share 1 sd", 4.0, block=1.0),
    Scenario("4 sd, seeds share 3 sd", 4.0, block=3.0),
    Scenario("4 sd, skewed", 4.0, skewed=True),
    Scenario("all at the threshold, skewed", 1e-6, skewed=True),
    Scenario("4 sd, every third 3x as noisy", 4.0, noisy=3.0),
    Scenario("0.5 sd, every third 3x", 0.5, noisy=3.0),
    Scenario("at the threshold, every third 3x", 1e-6, noisy=3.0),
    Scenario("3 tasks, 4 sd", 4.0, tasks=3),
    Scenario("3 tasks, all at the threshold", 1e-6, tasks=3),
    Scenario("3 tasks, one at the threshold", 4.0, offset=1e-6, tasks=3),
    Scenario("3 tasks, 4 sd, skewed, every third 3x", 4.0, noisy=3.0, skewed=True, tasks=3),
)


def study(
    y: NDArray[np.float64], goal: PlannedGoal, searched: bool
) -> tuple[list[int], bool, str | None, list[SearchStep]]:
    """Return the possible candidates, whether none is possible, the named one, and the steps of the search.

    Args:
        y: values, `(tasks, candidates, seeds)`.
        goal: the goal.
        searched: whether candidates are trained as a search does.
    """
    steps, seeds = list[SearchStep](), y.shape[2]
    known = np.full(y.shape, np.nan) if searched else y

    def levels() -> Sequence[Level]:
        rows = [[Level(str(i), float(i), tuple(row)) for row in known[:, i].tolist()] for i in range(y.shape[1])]
        return [row[0] if len(row) == 1 else Level(row[0].name, row[0].cost, tasks=tuple(row)) for row in rows]

    while searched and (step := next_step(goal, levels(), range(seeds), ALPHA)):
        i, count = int(step["arms"][0]), len(step["seeds"])
        known[:, i, :count] = y[:, i, :count]
        steps.append(step)
    answer = answer_goal(goal, levels(), ALPHA, looks=count_looks(steps, goal, seeds))
    return [int(name) for name in answer["possible"]], answer["none_possible"], answer["smallest"], steps


def rates(scenario: Scenario, studies: int, seeds: int, monotone: bool, searched: bool) -> list[float]:
    """Return the shares of errors, false names and true names, and the median share of trained runs."""
    rng, counts, runs = np.random.default_rng(1), np.zeros(3), list[float]()
    goal: PlannedGoal = {"metric": "val/loss", "side": "at_most", "level": 0.0, "minimise": "params",
                         "monotone": monotone}  # fmt: skip
    if scenario.tasks > 1:
        threshold: PlannedThreshold = {"metric": "val/loss", "side": "at_most", "level": 0.0}
        goal["tasks"] = {str(number): threshold for number in range(scenario.tasks)}
    for _ in range(studies):
        y, true = scenario.draw(rng, seeds)
        kept, _, named, steps = study(y, goal, searched)
        counts += [true not in kept, named is not None and int(named) != true, named == str(true)]
        trained = {(step["arms"][0], seed) for step in steps for seed in step["seeds"]}
        runs.append(len(trained) / seeds if searched else y.shape[1])
    return [*(counts / studies).tolist(), float(np.median(runs))]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000, help="simulated studies of each kind")
    parser.add_argument("--only", default="", help="start of the names of the scenarios")
    studies, only = parser.parse_args().studies, parser.parse_args().only
    most = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / studies)
    print(f"errors of at most {most:.3f} are within two simulation errors of {ALPHA}\n")
    kinds = (("ladder", True, False), ("bisection", True, True), ("arms", False, False), ("race", False, True))
    print(f"{'':33} {'':5}" + "".join(f"{name:^25}" for name, _, _ in kinds))
    print(f"{'':33} seeds" + "  error false  true runs " * len(kinds))
    over = []
    for scenario in [each for each in SCENARIOS if each.name.startswith(only)]:
        for seeds in (3, 5):
            parts = []
            for name, monotone, searched in kinds:
                error, false, true, runs = rates(scenario, studies, seeds, monotone, searched)
                parts.append(f"   {error:.3f} {false:.3f} {true:.3f} {runs:4.1f}")
                if max(error, false) > most:
                    over.append(f"{scenario.name}, {seeds} seeds, {name}: {max(error, false):.3f}")
            print(f"{scenario.name:33} {seeds:5d}{''.join(parts)}", flush=True)
    print("\n" + "\n".join(f"above the bound: {line}" for line in over))


if __name__ == "__main__":
    main()
