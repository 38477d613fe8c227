"""Error rates and coverage of planned contrasts on simulated studies.

Each study crosses two settings with two values each: a baseline and three arms. The plan has a comparison of two arms,
a comparison of two groups and a spread. `python -m benchmarks.contrast_calibration` prints the table of
docs/statistics.md.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taetpu.stats import verdict
from taetpu.stats.contrasts import estimate_contrasts
from taetpu.stats.divergence import Count
from taetpu.stats.linear_model import fit_model
from taetpu.stats.plan import Plan
from taetpu.stats.results_table import Cell, Table

ARMS = ("baseline", "lr", "norm", "both")
CONTRASTS = {
    "arms": {"compare": ["lr"], "to": ["norm"]},
    "groups": {"compare": ["norm", "both"], "to": ["baseline", "lr"]},
    "spread": {
        "spread": "val/loss", "over": "lr", "by": "norm", "level": "on", "compare": ["norm", "both"],
        "to": ["baseline", "lr"],
    },
}  # fmt: skip
AGAINST = dict.fromkeys(ARMS[1:], "baseline")


@dataclass(frozen=True)
class Scenario:
    """How studies are simulated. All numbers are in standard deviations of a run.

    Attributes:
        name: The name of the scenario.
        means: The true means of `ARMS`.
        noise: The standard deviations of the noise of `ARMS`.
        block: The standard deviation of what all arms of a seed share.
    """

    name: str
    means: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    noise: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    block: float = 1.0

    def draw(self, rng: np.random.Generator, studies: int, seeds: int) -> NDArray[np.float64]:
        """Return values `(studies, arms, seeds)`."""
        noise = rng.standard_normal((studies, len(ARMS), seeds)) * np.array(self.noise)[:, None]
        return 10 + np.array(self.means)[:, None] + noise + self.block * rng.standard_normal((studies, 1, seeds))

    def truth(self) -> dict[str, float]:
        """Return the true value of each contrast. The spreads' expectations are means over many runs."""
        y = self.draw(np.random.default_rng(0), 1, 200_000)[0]
        first, second = (np.std(y[pair], axis=0, ddof=1).mean() for pair in ([2, 3], [0, 1]))
        lr, norm = self.means[1], self.means[2]
        groups = (norm + self.means[3]) / 2 - (self.means[0] + lr) / 2
        return {"arms": lr - norm, "groups": groups, "spread": float(first - second)}


SCENARIOS = (
    Scenario("no effect"),
    Scenario("no effect, nothing shared", block=0.0),
    Scenario("equal spreads of 4 sd", means=(0.0, 4.0, 0.0, 4.0)),
    Scenario("the spread falls from 4 to 1 sd", means=(0.0, 4.0, 0.0, 1.0)),
    Scenario("an arm three times as noisy", noise=(1.0, 1.0, 1.0, 3.0)),
)


def judge(y: NDArray[np.float64], seeds: int) -> dict[str, tuple[float, float, float | None, str]]:
    """Return the interval, the corrected p-value and the verdict of each arm and contrast of a study."""
    cells = {
        arm: [Cell(seed, "finished", float(value)) for seed, value in enumerate(row)]
        for arm, row in zip(ARMS, y, strict=True)
    }
    table = Table(cells)
    plan = Plan("val/loss", "min", ARMS, tuple(range(seeds)), (seeds,), contrasts=CONTRASTS, noise="moderated")
    contrasts = {one.key: one for one in estimate_contrasts(plan, table, AGAINST, lambda metric: table)}
    fit = fit_model({arm: table.values(arm) for arm in ARMS}, "baseline", plan.bounds)
    effects = {**fit.effects, **{key: one.effect for key, one in contrasts.items()}}
    counts: dict[str, Count] = dict.fromkeys([*ARMS, *contrasts], Count(seeds, 0))
    counts |= {one.other: Count(seeds, 0) for one in contrasts.values()}
    against: Mapping[str, str] = {**AGAINST, **{key: one.other for key, one in contrasts.items()}}
    found = verdict.collect_evidence(effects, effects, counts, against, plan, seeds)
    return {
        key.partition(":")[2] or key: (*(one.effect.interval or (0, 0)), one.p_holm, verdict.decide_verdict(one, plan))
        for key, one in found.items()
    }


def rates(scenario: Scenario, studies: int, seeds: int) -> list[float]:
    """Return the share of studies with a false verdict, the coverage of each contrast, and its share of verdicts."""
    truth = scenario.truth() | {arm: scenario.means[i] - scenario.means[0] for i, arm in enumerate(ARMS) if i}
    false, covered, judged = 0, dict.fromkeys(CONTRASTS, 0), dict.fromkeys(CONTRASTS, 0)
    for y in scenario.draw(np.random.default_rng(1), studies, seeds):
        found = judge(y, seeds)
        decided = {name: one[3] in ("better", "worse") for name, one in found.items()}
        false += any(decided[name] for name, value in truth.items() if abs(value) < 0.02)
        for name in CONTRASTS:
            low, high, _, _ = found[name]
            covered[name] += low <= truth[name] <= high
            judged[name] += decided[name]
    return [false / studies, *(n / studies for n in covered.values()), *(n / studies for n in judged.values())]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000, help="simulated studies of each kind")
    studies = parser.parse_args().studies
    names = " ".join(f"{name:>6}" for name in CONTRASTS)
    print(f"{'':41}any  intervals that cover   verdicts other\n{'':39}false  {'the truth':22} than inconclusive")
    print(f"{'':33}seeds     {names}   {names}")
    for scenario in SCENARIOS:
        for seeds in (3, 5, 8):
            false, *others = rates(scenario, studies, seeds)
            covered, judged = (" ".join(f"{value:6.3f}" for value in part) for part in (others[:3], others[3:]))
            print(f"{scenario.name:33} {seeds:3d} {false:6.3f} {covered}   {judged}", flush=True)


if __name__ == "__main__":
    main()
