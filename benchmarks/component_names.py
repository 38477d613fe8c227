"""How often `taetpu components` names a part correctly, on made-up studies with known effects.

Each study removes parts in the three ways of `stats.components`. A run's value is a seed effect that all arms share,
the noise of its training, and the effect of the removal. The runs of `removed` arms share the noise of the trained
baseline, and their effect varies between seeds. Those of `healed` arms keep a part of the noise.
`python -m benchmarks.component_names` prints the table of docs/statistics.md.
"""

import argparse
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taetpu.stats import verdict
from taetpu.stats.components import CONTINUED, UNCHANGED, WAYS, arms_with_own_noise, judge_components
from taetpu.stats.divergence import Count
from taetpu.stats.linear_model import fit_model
from taetpu.stats.plan import Plan

MARGIN = 3.0
"""The margin of equivalence, in standard deviations of a run."""
AGAINST = dict(zip(WAYS, ("baseline", UNCHANGED, CONTINUED), strict=True))
KEPT = 0.5
"""The share of the variance of the trained baseline's noise that is left after further steps."""


@dataclass(frozen=True)
class Truth:
    """The true effects of removing a part, in standard deviations of a run, in the order of `WAYS`.

    Attributes:
        name: The name of the truth.
        effects: The effects.
        right: The right name; None if there is none.
    """

    name: str
    effects: tuple[float, float, float]
    right: str | None


TRUTHS = (
    Truth("all three hurt", (6.0, 6.0, 6.0), "necessary"),
    Truth("no effect", (0.0, 0.0, 0.0), "redundant"),
    Truth("only its removal hurts", (0.0, 6.0, 0.0), "compensated"),
    Truth("hurts unless trained without", (0.0, 6.0, 6.0), None),
    Truth("hurts unless healed", (6.0, 6.0, 0.0), None),
    Truth("all three at the margin", (MARGIN, MARGIN, MARGIN), "necessary"),
    Truth("healing at the margin", (0.0, 0.0, MARGIN), None),
    Truth("only removal, at the margin", (MARGIN, 6.0, MARGIN), "necessary"),
)
"""Made-up parts. At the margin, `equivalent` is just wrong."""


def draw(rng: np.random.Generator, truths: tuple[Truth, ...], seeds: int, spread: float) -> dict[str, NDArray]:
    """Return the values `(seed,)` of each arm of a study with one part of each truth.

    Args:
        rng: The source of random numbers.
        truths: The parts.
        seeds: The number of seeds.
        spread: The standard deviation over seeds of a removal without effect. It grows with the effect.
    """

    def noise(scale: float = 1.0) -> NDArray:
        return scale * rng.standard_normal(seeds)

    shared, trained = 10 + noise(), noise()
    fresh, kept = np.sqrt(1 - KEPT), np.sqrt(KEPT) * trained
    values = {"baseline": shared + trained, UNCHANGED: shared + trained, CONTINUED: shared + kept + noise(fresh)}
    for part, truth in enumerate(truths):
        without, removed, healed = truth.effects
        values[f"without-{part}"] = shared + noise() + without
        values[f"removed-{part}"] = shared + trained + noise(spread * (1 + removed)) + removed
        values[f"healed-{part}"] = shared + kept + noise(fresh) + healed
    return values


def judge(values: dict[str, NDArray], seeds: int) -> list[str | None]:
    """Return the name of each part of a study."""
    arms = tuple(values)
    plan = Plan("val/loss", "min", arms, tuple(range(seeds)), (seeds,), equivalence=MARGIN)
    roles = {
        arm: {"design": "components", "part": arm.partition("-")[2], "way": arm.partition("-")[0]}
        for arm in arms
        if "-" in arm
    }
    against = {arm: AGAINST[role["way"]] for arm, role in roles.items()}
    by_seed = {arm: dict(enumerate(map(float, row))) for arm, row in values.items()}
    effects = {}
    alone = arms_with_own_noise(roles)
    for arms_of in [[arm for arm in roles if arm not in alone], *([arm] for arm in alone)]:
        baseline = against[arms_of[0]]
        effects |= fit_model({arm: by_seed[arm] for arm in (baseline, *arms_of)}, baseline, plan.bounds).effects
    counts = dict.fromkeys(arms, Count(seeds, 0))
    found = verdict.collect_evidence(effects, effects, counts, against, plan, seeds)
    judged = {
        arm: {"verdict": verdict.decide_verdict(one, plan), "effect": one.effect.effect, "ci95": one.effect.interval}
        for arm, one in found.items()
    }
    return [row["name"] for row in judge_components(roles, judged)]


def rates(studies: int, seeds: int, spread: float = 0.2) -> list[Counter[str | None]]:
    """Return how often each truth gets each name."""
    rng, found = np.random.default_rng(seeds), [Counter[str | None]() for _ in TRUTHS]
    for _ in range(studies):
        for counter, name in zip(found, judge(draw(rng, TRUTHS, seeds, spread), seeds), strict=True):
            counter[name] += 1
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000, help="made-up studies for each number of seeds")
    studies = parser.parse_args().studies
    names = ("necessary", "redundant", "compensated", "unclear", None)
    print(f"{'effects':30} seeds " + " ".join(f"{name or 'no name':>11}" for name in names))
    for seeds in (3, 5, 8):
        for truth, counter in zip(TRUTHS, rates(studies, seeds), strict=True):
            shares = " ".join(f"{counter[name] / studies:11.3f}" for name in names)
            print(f"{truth.name:30} {seeds:5d} {shares}", flush=True)


if __name__ == "__main__":
    main()
