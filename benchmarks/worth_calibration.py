"""Coverage of compute multipliers, and false claims that a multiplier is not 1, on simulated ladders.

`python -m benchmarks.worth_calibration` prints the table of docs/statistics.md.
"""

import argparse
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taetpu.stats.worth import POOR, Climb, Law, deviations, estimate, fit_law, spacing

SEEDS, ALPHA = (3, 5), 0.05
SD = 0.01
"""Noise of a run; the loss falls from 2.23 to 1.82 over four rungs."""
CASES = {"1": (1.0, 1.0), "1, costs 1.5": (1.0, 1.5), "2": (2.0, 1.0)}
"""True multipliers, and the arm's compute divided by the baseline's."""
BEND = 1.5
"""Log compute over which the exponent of the law that bends changes."""


@dataclass(frozen=True)
class Scenario:
    """A kind of ladder.

    Attributes:
        name: the name in the table.
        law: the law of noise, `normal` or `skewed`.
        rungs: the number of rungs, each with four times the compute of the one before.
        arm: the noise of the arm, divided by `SD`.
        base: that of the baseline.
        first: that of runs at the smallest rung, falling geometrically to 1 at the largest.
        shared: the noise that arm and baseline share on a seed at all rungs, divided by `SD`.
        apart: the noise of an effect that a seed has at all rungs.
        bends: whether the truth is another law: its exponent falls from 0.2 to 0.08.
    """

    name: str
    law: str = "normal"
    rungs: int = 4
    arm: float = 1.0
    base: float = 1.0
    first: float = 1.0
    shared: float = 0.0
    apart: float = 0.0
    bends: bool = False

    @property
    def computes(self) -> NDArray[np.float64]:
        """Log computes of the baseline."""
        return math.log(1e12) + math.log(4) * np.arange(self.rungs)

    def loss(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the true loss at log computes."""
        centred = x - math.log(1e12) - math.log(4) * 1.5
        if not self.bends:
            return Law(1.2, 0.8, 0.12, 0.0).loss(centred)
        return 1.2 + 0.8 * np.exp(-0.2 * centred + 0.12 * BEND * np.logaddexp(0, centred / BEND))

    def draw(self, rng: np.random.Generator, multiplier: float, cost: float, seeds: int) -> Climb:
        """Return the runs of a study."""
        x, own = self.computes, self.computes + math.log(cost)

        def noise(*shape: int) -> NDArray[np.float64]:
            return SD * (rng.standard_normal(shape) if self.law == "normal" else rng.exponential(size=shape) - 1)

        scale = np.geomspace(self.first, 1, self.rungs)[:, None]
        shared, apart = self.shared * noise(1, seeds), self.apart * noise(1, seeds)
        base = self.loss(x)[:, None] + self.base * scale * noise(self.rungs, seeds) + shared
        arm = self.loss(own + math.log(multiplier))[:, None] + self.arm * scale * noise(self.rungs, seeds)
        return Climb(x, own, base, arm + shared + apart)


SCENARIOS = (
    Scenario("normal"),
    Scenario("skewed", law="skewed"),
    Scenario("the arm 3x as noisy", arm=3.0),
    Scenario("the baseline 3x as noisy", base=3.0),
    Scenario("all 3x as noisy", arm=3.0, base=3.0),
    Scenario("small rungs 4x as noisy", first=4.0),
    Scenario("skewed, the arm 3x", law="skewed", arm=3.0),
    Scenario("skewed, small rungs 4x", law="skewed", first=4.0),
    Scenario("seeds share 2 sd", shared=2.0, apart=1.0),
    Scenario("skewed, seeds share 2 sd", law="skewed", shared=2.0, apart=1.0),
    Scenario("six rungs", rungs=6),
    Scenario("the law bends", bends=True),
    Scenario("bends, quiet", bends=True, arm=0.3, base=0.3),
)


def simulate(scenario: Scenario, case: str, seeds: int, studies: int) -> tuple[float, float, float]:
    """Return the shares of intervals that miss the multiplier and of studies without one, and the median width."""
    multiplier, cost = CASES[case]
    rng, missed, widths = np.random.default_rng(seeds), 0, list[float]()
    for _ in range(studies):
        climb = scenario.draw(rng, multiplier, cost, seeds)
        x, means = climb.base_compute, climb.base.mean(1)
        law = fit_law(x, means)
        if law is None or np.abs(deviations(law, x, means)).max() > POOR * spacing(x):
            continue
        _, interval = estimate(climb, list(range(scenario.rungs)))
        if interval is not None:
            missed += not interval[0] <= math.log(multiplier) <= interval[1]
            widths.append((interval[1] - interval[0]) / 2)
    known = max(1, len(widths))
    return missed / known, 1 - len(widths) / studies, float(np.exp(np.median(widths))) if widths else math.nan


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=1000)
    options = parser.parse_args()
    bound = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / options.studies)
    print(f"{options.studies} studies; at most {bound:.3f} with two simulation errors\n")
    print(f"{'true multiplier':<26}{'seeds':>5}" + "".join(f"{case:>14}" for case in CASES) + "    none  factor")
    for scenario in SCENARIOS:
        for seeds in SEEDS:
            rows = [simulate(scenario, case, seeds, options.studies) for case in CASES]
            figures = "".join(f"{row[0]:14.3f}" for row in rows)
            print(
                f"{scenario.name:<26}{seeds:5}{figures}{max(row[1] for row in rows):8.3f}{rows[0][2]:8.2f}", flush=True
            )


if __name__ == "__main__":
    main()
