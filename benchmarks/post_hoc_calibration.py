"""Error rates and coverage of comparisons by post-hoc ablation tables, on simulated tables.

Each study has a baseline and three arms, whose models have two layers with four heads. The effects of heads are drawn
from a skewed distribution; seeds multiply all effects of a run. `python -m benchmarks.post_hoc_calibration` prints the
table of docs/statistics.md.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taetpu.stats.plan import Plan
from taetpu.stats.post_hoc import EFFECTIVE, LARGEST, Effects, compare_arms, measure_table
from taetpu.stats.results_table import Cell, Table

ARMS = ("baseline", "a", "b", "changed")
AGAINST: dict[str, str] = dict.fromkeys(map(str, ARMS[1:]), "baseline")
LAYERS = (0, 0, 0, 0, 1, 1, 1, 1)
MEASURES = ("layer 0", "layer 1", LARGEST, EFFECTIVE)
SIZE, HARMFUL = 0.02, 0.002


@dataclass(frozen=True)
class Scenario:
    """How tables are simulated.

    Attributes:
        name: The name of the scenario.
        tail: The standard deviation of the logarithm of an effect.
        spread: The standard deviation of the logarithm of a run's factor, for `changed`; 0.3 for the other arms.
        lean: The factor of the first head of each layer in `changed`. The others are made smaller, so that the sum of
            each layer has the same expectation.
    """

    name: str
    tail: float = 0.7
    spread: float = 0.3
    lean: float = 1.0

    def draw(self, rng: np.random.Generator, seeds: int) -> NDArray[np.float64]:
        """Return effects `(arms, seeds, heads)`."""
        spread = np.array([0.3, 0.3, 0.3, self.spread])[:, None, None]
        logs = self.tail * rng.standard_normal((len(ARMS), seeds, len(LAYERS))) - self.tail**2 / 2
        shared = 0.3 * rng.standard_normal((1, seeds, 1)) - 0.3**2 / 2
        own = spread * rng.standard_normal((len(ARMS), seeds, 1)) - spread**2 / 2
        weights = np.ones((len(ARMS), 1, len(LAYERS)))
        weights[-1, 0] = (4 - self.lean) / 3
        weights[-1, 0, [0, 4]] = self.lean
        return SIZE * weights * np.exp(logs + shared + own) - HARMFUL

    def truth(self) -> dict[tuple[str, str], float]:
        """Return the true effect of each arm on each measure, as a mean over many simulated runs."""
        rng, found = np.random.default_rng(0), {}
        values = [self._means(rng) for _ in range(40)]
        means = {key: float(np.mean([one[key] for one in values])) for key in values[0]}
        for arm in ARMS[1:]:
            for measure in MEASURES:
                same = arm != ARMS[-1] or (self.lean == 1 and self.spread == 0.3)
                found[arm, measure] = 0.0 if same else means[ARMS[-1], measure] - means["baseline", measure]
        return found

    def _means(self, rng: np.random.Generator) -> dict[tuple[str, str], float]:
        y = self.draw(rng, 500)
        measured = {arm: [measure_table(row, LAYERS) for row in y[i]] for i, arm in enumerate(ARMS) if i in (0, 3)}
        return {(arm, m): float(np.mean([row[m] for row in rows if m in row]))
                for arm, rows in measured.items() for m in MEASURES}  # fmt: skip


SCENARIOS = (
    Scenario("no difference"),
    Scenario("no difference, few heads dominate", tail=1.5),
    Scenario("an arm three times as noisy", spread=0.9),
    Scenario("an arm that leans on one head", lean=3.0),
)


def judge(y: NDArray[np.float64], seeds: int) -> dict[tuple[str, str], Mapping[str, object]]:
    """Return the comparison of each arm by each measure."""
    plan = Plan("val/loss", "min", ARMS, tuple(range(seeds)), (seeds,), noise="moderated")
    runs = Table({arm: [Cell(seed, "finished", 1.0) for seed in range(seeds)] for arm in ARMS})
    effects = {arm: {seed: Effects(tuple(y[i, seed]), LAYERS, "char") for seed in range(seeds)}
               for i, arm in enumerate(ARMS)}  # fmt: skip
    found = compare_arms(effects, runs, plan, AGAINST, final=True)
    return {(arm["name"], measure): arm["values"][measure] for arm in found["arms"][1:] for measure in MEASURES}


def rates(scenario: Scenario, studies: int, seeds: int) -> list[float]:
    """Return the share of studies with a false verdict, the least coverage of a measure, and shares of verdicts.

    Verdicts are those on `changed`, by the largest effect and the effective number.
    """
    truth, false = scenario.truth(), 0
    covered, judged = dict.fromkeys(truth, 0), dict.fromkeys(truth, 0)
    rng = np.random.default_rng(1)
    for _ in range(studies):
        found = judge(scenario.draw(rng, seeds), seeds)
        decided = {key: one["verdict"] in ("higher", "lower") for key, one in found.items()}
        false += any(decided[key] and not truth[key] for key in truth)
        for key, one in found.items():
            interval = one["ci95"]
            assert isinstance(interval, Sequence)
            covered[key] += interval[0] <= truth[key] <= interval[1]
            judged[key] += decided[key]
    own = [judged[ARMS[-1], measure] / studies for measure in (LARGEST, EFFECTIVE)]
    return [false / studies, min(covered.values()) / studies, *own]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000, help="simulated studies of each kind")
    studies = parser.parse_args().studies
    print(f"{'':43}any     least  verdicts on the changed arm")
    print(f"{'':35}seeds false  coverage     largest  effective")
    for scenario in SCENARIOS:
        for seeds in (3, 5, 8):
            false, least, largest, effective = rates(scenario, studies, seeds)
            print(
                f"{scenario.name:35} {seeds:3d} {false:6.3f} {least:9.3f} {largest:11.3f} {effective:10.3f}", flush=True
            )


if __name__ == "__main__":
    main()
