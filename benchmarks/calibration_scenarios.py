"""Simulated studies with known effects, for `benchmarks.calibration`."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EFFECT = 3.0
"""True effects, in standard deviations of a run of a quiet arm."""

CHANGE = 0.02
"""Change of the results by which churn is measured, in standard deviations of a run."""


@dataclass(frozen=True)
class Scenario:
    """How studies are simulated.

    Attributes:
        noise: distribution of a run: `normal`, or `heavy` (Student's t with 3 degrees of freedom, scaled to a variance
            of 1).
        accuracy: runs are accuracies: normal log-odds about this mean, or `all or nothing`; None for a metric without
            bounds. Intervals are clipped to the possible differences.
        block: standard deviation of what all arms of a seed share, in standard deviations of a run.
        baseline, arm, half: how many times as noisy the baseline is, the first arm, and half of the arms.
        scales: standard deviation of the logarithm of the arms' standard deviations, which are log-normal.
        copied: the share of a run's variance that it has in common with half of the arms, its relatives.
        active: how many arms have a true effect, the last ones; -1 for half of them.
    """

    name: str
    noise: str = "normal"
    block: float = 1.0
    baseline: float = 1.0
    arm: float = 1.0
    half: float = 1.0
    scales: float = 0.0
    copied: float = 0.0
    active: int = 0
    accuracy: float | Literal["all or nothing"] | None = None

    @property
    def fewest(self) -> int:
        """Minimum number of arms, with the baseline. The last arm is a quiet one."""
        return 4 if self.half != 1.0 or self.copied else (3 if self.arm != 1.0 else 2) + abs(self.active)

    @property
    def equal(self) -> bool:
        """Whether all runs have the same normal noise."""
        how = (self.noise, self.baseline, self.arm, self.half, self.scales, self.copied, self.accuracy)
        return how == ("normal", 1.0, 1.0, 1.0, 0.0, 0.0, None)

    def share(self, y: Array) -> Array:
        """Return accuracies from log-odds."""
        if self.accuracy == "all or nothing":
            return np.where(y > 0, 0.99, 0.2) + 0.005 * np.tanh(y)
        return 1 / (1 + np.exp(-float(self.accuracy or 0) - y))

    def draw(self, rng: np.random.Generator, studies: int, arms: int, seeds: int) -> Array:
        """Return values without effects of arms, `(studies, arms, seeds)`, the baseline first."""
        size = (studies, arms, seeds)
        y = rng.standard_t(3, size) / np.sqrt(3) if self.noise == "heavy" else rng.standard_normal(size)
        if self.copied:
            family = np.arange(arms) * 2 // arms
            common = rng.standard_normal((studies, 2, seeds))[:, family]
            y = np.sqrt(1 - self.copied) * y + np.sqrt(self.copied) * common
        if self.scales:
            y *= np.exp(self.scales * rng.standard_normal((studies, arms, 1)))
        y[:, 0] *= self.baseline
        y[:, 1] *= self.arm
        y[:, 1 : 1 + arms // 2] *= self.half
        y = y + self.block * rng.standard_normal((studies, 1, seeds))
        return y if self.accuracy is None else self.share(y)

    def effects(self, arms: int) -> Array:
        """Return the true effect of each arm but the baseline, `(arms - 1,)`."""
        active = (arms - 1) // 2 if self.active < 0 else self.active
        return np.where(np.arange(1, arms) >= arms - active, EFFECT, 0.0)


SCENARIOS = (
    Scenario("equal, seeds shared"),
    Scenario("equal, nothing shared", block=0.0),
    Scenario("half of the arms with effects", active=-1),
    Scenario("heavy tails", noise="heavy"),
    Scenario("an arm 3x as noisy", arm=3.0),
    Scenario("an arm 10x", arm=10.0),
    Scenario("half of the arms 3x", half=3.0),
    Scenario("the baseline 2x", baseline=2.0),
    Scenario("the baseline 3x", baseline=3.0),
    Scenario("the baseline 10x", baseline=10.0),
    Scenario("baseline and an arm 3x", baseline=3.0, arm=3.0),
    Scenario("baseline and half 3x", baseline=3.0, half=3.0),
    Scenario("heavy tails, the baseline 3x", noise="heavy", baseline=3.0),
    Scenario("log-normal scales, sd 0.5", scales=0.5),
    Scenario("two families, half copied", copied=0.5),
    Scenario("two families, 0.9 copied", copied=0.9),
    Scenario("two families, near copies", copied=0.99),
    Scenario("accuracies about 0.27", accuracy=-1.0),
    Scenario("accuracies about 0.98", accuracy=4.0),
    Scenario("accuracies, all or nothing", accuracy="all or nothing"),
)


def draw_changed(rng: np.random.Generator, studies: int, arms: int, seeds: int) -> tuple[Array, Array]:
    """Return studies with effects between 0 and 4 sd, twice: the second time, results changed by `CHANGE`."""
    effects = rng.uniform(0, 4, (studies, arms, 1)) * rng.choice([-1, 1], (studies, arms, 1))
    effects[:, 0] = 0
    y = effects + rng.standard_normal((studies, arms, seeds)) + rng.standard_normal((studies, 1, seeds))
    return y, y + CHANGE * rng.standard_normal(y.shape)
