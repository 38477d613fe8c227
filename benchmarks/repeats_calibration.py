"""Error rates of pooled effects, of the test of equal effects, and of verdicts on verdicts, on simulated studies.

`python -m benchmarks.repeats_calibration` prints the table of docs/statistics.md.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from taetpu.stats.linear_model import fit_model
from taetpu.stats.repeats import classify, differ_p, pooled_effect
from taetpu.stats.verdict import holm

TASKS, SETTINGS = (4, 6), ("as written", "a=1", "b=1", "b=2")
FACTORS = {"a": ["a=1"], "b": ["b=1", "b=2"]}
SEEDS = (3, 5, 8)
ALPHA = 0.05
SPREADS = (1.0, 3.0, 0.3, 1.0, 5.0, 0.5)
"""Standard deviations of the noise of tasks, where they differ."""
Law = Literal["normal", "skewed"]


@dataclass(frozen=True)
class Scenario:
    """How runs are simulated. All numbers are in standard deviations of a run.

    Attributes:
        name: The name of the scenario.
        law: The distribution of the noise; `skewed` is exponential.
        tasks: Whether tasks or settings differ in noise.
        arm: The standard deviation of the arm's noise, in that of the baseline.
    """

    name: str
    law: Law = "normal"
    tasks: bool = False
    arm: float = 1.0

    def draw(self, rng: np.random.Generator, effects: NDArray[np.float64], seeds: int) -> NDArray[np.float64]:
        """Return values `(2, tasks, seeds)`: those of the baseline and of the arm."""
        shape = (2, len(effects), seeds)
        noise = rng.standard_normal(shape) if self.law == "normal" else rng.exponential(size=shape) - 1
        scale = np.array(SPREADS[: len(effects)]) if self.tasks else np.ones(len(effects))
        y = noise * scale[:, None] * np.array([1.0, self.arm])[:, None, None]
        y[1] += effects[:, None]
        return y


SCENARIOS = (
    Scenario("normal"),
    Scenario("skewed", law="skewed"),
    Scenario("tasks differ in noise", tasks=True),
    Scenario("the arm 3x as noisy", arm=3.0),
    Scenario("skewed, tasks differ", law="skewed", tasks=True),
    Scenario("skewed, the arm 3x", law="skewed", arm=3.0),
)


def effects_of(number: int) -> dict[str, NDArray[np.float64]]:
    """Return the true effects on tasks for which intervals are checked."""
    return {
        "none": np.zeros(number),
        "one task": np.array([0.0] * (number - 1) + [5.0]),
        "both signs": np.array([-5.0, 5.0] * (number // 2)),
        "graded": 0.5 * np.arange(number),
    }


def missed(scenario: Scenario, pool: str, effects: NDArray[np.float64], seeds: int, studies: int) -> float:
    """Return the share of studies whose interval does not have the true pooled effect."""
    rng, cut = np.random.default_rng(seeds), len(effects) // 4 if pool == "iqm" else 0
    truth, wrong = float(np.sort(effects)[cut : len(effects) - cut].mean()), 0
    for _ in range(studies):
        base, arm = scenario.draw(rng, effects, seeds)
        rows = {str(task): dict(enumerate(map(float, row))) for task, row in enumerate(arm - base)}
        interval = pooled_effect(rows, pool).interval
        wrong += interval is not None and not interval[0] <= truth <= interval[1]
    return wrong / studies


def false_differences(scenario: Scenario, tasks: int, seeds: int, studies: int) -> float:
    """Return the share of studies with equal effects in which the test says that they differ."""
    rng = np.random.default_rng(seeds)
    values = (scenario.draw(rng, np.ones(tasks), seeds) for _ in range(studies))
    p = [differ_p([*(arm - base)]) for base, arm in values]
    return float(np.mean([value is not None and value < ALPHA for value in p]))


def verdict_on(y: NDArray[np.float64]) -> str:
    """Return the verdict on the verdict of an arm, for values `(2, settings, seeds)`."""
    rows = [[dict(enumerate(map(float, row))) for row in side] for side in y]
    fits = [fit_model({"baseline": base, "arm": arm}).effects["arm"] for base, arm in zip(*rows, strict=True)]
    p = holm({setting: fit.p for setting, fit in zip(SETTINGS, fits, strict=True)})
    verdicts = {
        setting: "inconclusive" if (p[setting] or 0) >= ALPHA else "better" if (fit.effect or 0) < 0 else "worse"
        for setting, fit in zip(SETTINGS, fits, strict=True)
    }
    groups = dict(zip(SETTINGS, y[1] - y[0], strict=True))
    tests = {f: differ_p([groups[setting] for setting in (SETTINGS[0], *rungs)]) for f, rungs in FACTORS.items()}
    return classify(verdicts, SETTINGS[0], FACTORS, holm(tests), ALPHA)[0]


def shares(scenario: Scenario, effects: NDArray[np.float64], seeds: int, studies: int) -> dict[str, float]:
    """Return the share of studies with each verdict on the verdict."""
    rng = np.random.default_rng(seeds)
    said = [verdict_on(scenario.draw(rng, effects, seeds)) for _ in range(studies)]
    return {word: said.count(word) / studies for word in ("holds", "depends", "reverses", "unclear")}


def print_pools(studies: int, scenarios: Sequence[Scenario]) -> None:
    """Print the rates of pooled effects and of the test of equal effects."""
    print("intervals of pooled effects that miss the true value, and false differences between tasks\n")
    print(f"{'':<24}{'tasks':>5}{'seeds':>6}" + "".join(f"{n:>11}" for n in (*effects_of(4), "mean", "differences")))
    for scenario in scenarios:
        for tasks in TASKS:
            for seeds in SEEDS:
                iqm = [missed(scenario, "iqm", e, seeds, studies) for e in effects_of(tasks).values()]
                mean = missed(scenario, "mean", np.zeros(tasks), seeds, studies)
                differ = false_differences(scenario, tasks, seeds, studies)
                figures = "".join(f"{value:11.3f}" for value in (*iqm, mean, differ))
                print(f"{scenario.name:<24}{tasks:5}{seeds:6}{figures}", flush=True)


def print_verdicts(studies: int, scenarios: Sequence[Scenario]) -> None:
    """Print the rates of verdicts on verdicts."""
    print("verdicts on verdicts: wrong ones with no effect and with 3 sd everywhere, and a true reversal\n")
    columns = ("0: not equal", "0: holds", "3: not equal", "reverses", "holds")
    print(f"{'':<24}seeds" + "".join(f"{name:>14}" for name in columns))
    for scenario in scenarios:
        for seeds in SEEDS:
            none, equal = (shares(scenario, np.full(4, size), seeds, studies) for size in (0.0, 3.0))
            turned = shares(scenario, np.array([3.0, -3.0, 3.0, 3.0]), seeds, studies)
            false = [none["depends"] + none["reverses"], none["holds"], equal["depends"] + equal["reverses"]]
            figures = "".join(f"{value:14.3f}" for value in (*false, turned["reverses"], turned["holds"]))
            print(f"{scenario.name:<24}{seeds:5}{figures}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=2000, help="studies for pooled effects; 0: no table of them")
    parser.add_argument("--verdicts", type=int, default=500, help="studies for verdicts on verdicts; 0: no table")
    parser.add_argument("--only", default="", help="start of the names of the scenarios")
    options = parser.parse_args()
    for studies, table in ((options.studies, print_pools), (options.verdicts, print_verdicts)):
        if studies:
            bound = ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / studies)
            print(f"{studies} studies, nominal {ALPHA}, at most {bound:.3f} with two simulation errors")
            table(studies, [each for each in SCENARIOS if each.name.startswith(options.only)])
            print()


if __name__ == "__main__":
    main()
