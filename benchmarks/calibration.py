"""The statistics on trial: how often they err on made-up studies, beside the tests that papers use.

Every study is drawn anew: a baseline and arms on a few seeds, with a known truth. `ours` is what `taetpu.stats` computes
for a study in which every run finished, written here for many studies at once; `tests/benchmarks` checks that it is the same.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from taetpu.stats.model import CONFIDENCE, GUARD_ALPHA

Array = NDArray[np.float64]

ALPHA = 0.05
ACTIVE_EFFECT = 3.0  # standard deviations of a run
RESAMPLES = 999
METHODS = ("ours", "paired t", "Welch", "Wilcoxon", "bootstrap")


@dataclass(frozen=True)
class Scenario:
    """How made-up studies are drawn.

    Attributes:
        noise: of a run: `normal`, or `heavy` (Student's t with 3 degrees of freedom, scaled to a variance of 1).
        block: standard deviation of what all arms of a seed share, in standard deviations of a run.
        noisy: which arm has three times the noise: none, the first that has no effect, the baseline.
        active: how many arms have a true effect.
    """

    name: str
    noise: str = "normal"
    block: float = 1.0
    noisy: str = "none"
    active: int = 0

    def draw(self, rng: np.random.Generator, studies: int, arms: int, seeds: int) -> tuple[Array, NDArray[np.bool_]]:
        """`(studies, arms, seeds)`, the baseline first, and which of the others have an effect: the last ones."""
        size = (studies, arms, seeds)
        y = rng.standard_t(3, size) / np.sqrt(3) if self.noise == "heavy" else rng.standard_normal(size)
        if self.noisy != "none":
            y[:, 0 if self.noisy == "baseline" else 1] *= 3
        active = np.arange(1, arms) >= arms - self.active
        y[:, 1:][:, active] += ACTIVE_EFFECT
        return y + self.block * rng.standard_normal((studies, 1, seeds)), active


SCENARIOS = (
    Scenario("equal, seeds shared"),
    Scenario("equal, nothing shared", block=0.0),
    Scenario("heavy tails", noise="heavy"),
    Scenario("an arm three times as noisy", noisy="arm"),
    Scenario("the baseline three times as noisy", noisy="baseline"),
    Scenario("two arms with an effect", active=2),
    Scenario("half of the arms with an effect", active=-1),
)


# --- the tests, for many studies at once -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """What a test says: p by study and arm, corrected, and the interval of each effect (at 95 %, not corrected)."""

    p: Array
    low: Array
    high: Array


def holm(p: Array) -> Array:
    """Holm's correction over the last axis."""
    order = np.argsort(p, axis=-1)
    ranked = np.take_along_axis(p, order, -1) * np.arange(p.shape[-1], 0, -1)
    found = np.empty_like(p)
    np.put_along_axis(found, order, np.minimum(np.maximum.accumulate(ranked, axis=-1), 1.0), -1)
    return found


def ours(y: Array) -> Judged:
    """The seed-blocked model with its guard, as `taetpu.stats.model.fit` for a full table."""
    _, arms, seeds = y.shape
    difference = y[:, 1:] - y[:, :1]
    residual = y - y.mean(2, keepdims=True) - y.mean(1, keepdims=True) + y.mean((1, 2), keepdims=True)
    rss, df = (residual**2).sum((1, 2)), (arms - 1) * (seeds - 1)
    pooled = _t(difference.mean(2), np.sqrt(2 * rss / df / seeds)[:, None], df)
    if arms < 3:
        return replace(pooled, p=holm(pooled.p))
    own = arms / (arms - 1) * (residual**2).sum(2)
    ratio = own / (seeds - 1) / ((rss[:, None] - own) / ((arms - 2) * (seeds - 1)))
    noisy = stats.f.sf(ratio, seeds - 1, (arms - 2) * (seeds - 1)) < GUARD_ALPHA
    guarded = noisy[:, 1:] | noisy[:, :1]
    paired = _t(difference.mean(2), difference.std(2, ddof=1) / np.sqrt(seeds), seeds - 1)
    return Judged(
        holm(np.where(guarded, np.maximum(pooled.p, paired.p), pooled.p)),
        np.where(guarded, np.minimum(pooled.low, paired.low), pooled.low),
        np.where(guarded, np.maximum(pooled.high, paired.high), pooled.high),
    )


def _t(effect: Array, error: Array, df: float | Array) -> Judged:
    half = stats.t.isf((1 - CONFIDENCE) / 2, df) * error
    return Judged(2 * stats.t.sf(np.abs(effect) / error, df), effect - half, effect + half)


def paired_t(y: Array) -> Judged:
    difference = y[:, 1:] - y[:, :1]
    seeds = y.shape[2]
    found = _t(difference.mean(2), difference.std(2, ddof=1) / np.sqrt(seeds), seeds - 1)
    return replace(found, p=holm(found.p))


def welch(y: Array) -> Judged:
    seeds, variance = y.shape[2], y.var(2, ddof=1)
    a, b = variance[:, 1:] / seeds, variance[:, :1] / seeds
    df = (a + b) ** 2 / ((a**2 + b**2) / (seeds - 1))
    found = _t((y[:, 1:] - y[:, :1]).mean(2), np.sqrt(a + b), df)
    return replace(found, p=holm(found.p))


def wilcoxon(y: Array) -> Judged:
    """The exact signed-rank test; it has no interval here."""
    difference = y[:, 1:] - y[:, :1]
    seeds = y.shape[2]
    ranks = np.abs(difference).argsort(2).argsort(2) + 1
    positive = np.where(difference > 0, ranks, 0).sum(2)
    signs = np.array(list(product((0, 1), repeat=seeds)))
    counts = np.bincount(signs @ np.arange(1, seeds + 1), minlength=seeds * (seeds + 1) // 2 + 1) / 2**seeds
    below, above = np.cumsum(counts)[positive], np.cumsum(counts[::-1])[::-1][positive]
    nowhere = np.full(positive.shape, np.nan)
    return Judged(holm(np.minimum(1.0, 2 * np.minimum(below, above))), nowhere, nowhere)


def bootstrap(y: Array) -> Judged:
    """Percentiles of the mean difference over resampled seeds; p is twice the smaller tail."""
    difference, seeds = y[:, 1:] - y[:, :1], y.shape[2]
    weights = np.random.default_rng(0).multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES).T / seeds
    p, low, high = (np.empty(difference.shape[:2]) for _ in range(3))
    for part in np.array_split(np.arange(len(y)), max(1, len(y) // 200)):
        means = difference[part] @ weights
        p[part] = np.minimum(1, 2 * (1 + np.minimum((means <= 0).sum(2), (means >= 0).sum(2))) / (RESAMPLES + 1))
        low[part], high[part] = np.quantile(means, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), axis=2)
    return Judged(holm(p), low, high)


TESTS = dict(zip(METHODS, (ours, paired_t, welch, wilcoxon, bootstrap), strict=True))


# --- the trial -------------------------------------------------------------------------------------------------------


def tried(scenario: Scenario, arms: int, seeds: int, studies: int, methods: Sequence[str]) -> dict[str, Any]:
    """Error rates over made-up studies: of any false verdict, of intervals that miss, and of effects that are found."""
    scenario = replace(scenario, active=(arms - 1) // 2) if scenario.active < 0 else scenario
    if scenario.active >= arms - 1:
        return {}
    rng = np.random.default_rng([arms, seeds, len(scenario.name)])
    y, active = scenario.draw(rng, studies, arms, seeds)
    truth = np.where(active, ACTIVE_EFFECT, 0.0)
    found = {"scenario": scenario.name, "arms": arms, "seeds": seeds, "studies": studies, "methods": {}}
    for method in methods:
        judged = TESTS[method](y)
        covered = (judged.low <= truth) & (truth <= judged.high)
        found["methods"][method] = {
            "false": float((judged.p[:, ~active] < ALPHA).any(1).mean()),
            "coverage": None if np.isnan(judged.low).any() else covered.mean(0).tolist(),
            "power": float((judged.p[:, active] < ALPHA).mean()) if active.any() else None,
        }
    return found


def trial(studies: int, arms: Sequence[int], seeds: Sequence[int], methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    for scenario, number, count in product(SCENARIOS, arms, seeds):
        if found := tried(scenario, number, count, studies, methods):
            yield found


def broken(found: Sequence[dict[str, Any]]) -> list[str]:
    """Where our method misses its bounds, beyond what so many studies let chance explain."""
    problems = []
    for one in found:
        mine, few = one["methods"]["ours"], one["seeds"] <= 3
        where, n = f"{one['scenario']}, {one['arms']} arms, {one['seeds']} seeds", one["studies"]
        bound = 0.10 if few else 0.06
        if mine["false"] > bound + 2 * np.sqrt(bound * (1 - bound) / n):
            problems.append(f"{where}: any false verdict {mine['false']:.3f}, at most {bound}")
        least = 0.90 if few else 0.93
        if min(mine["coverage"]) < least - 2 * np.sqrt(least * (1 - least) / n):
            problems.append(f"{where}: coverage {min(mine['coverage']):.3f}, at least {least}")
        theirs = one["methods"].get("Welch", {}).get("power")
        equal = one["scenario"].endswith("effect")
        if theirs is not None and equal and one["arms"] >= 4 and mine["power"] < theirs - 0.03:
            problems.append(f"{where}: power {mine['power']:.3f}, Welch's is {theirs:.3f}")
    return problems


def table(found: Sequence[dict[str, Any]]) -> str:
    """For each scenario and number of seeds, the worst over numbers of arms; at most 80 columns wide."""
    lines = [f"{'':36}{'seeds':>5}" + "".join(f"{method:>10}" for method in METHODS if method in found[0]["methods"])]
    for what, pick, title in (
        ("false", max, "any false verdict (5 % is meant)"),
        ("coverage", min, "coverage of 95 % intervals, the worst arm's"),
        ("power", min, "effects of 3 sd that are found"),
    ):
        lines += ["", title]
        for scenario, seeds in dict.fromkeys((one["scenario"], one["seeds"]) for one in found):
            own = [one["methods"] for one in found if (one["scenario"], one["seeds"]) == (scenario, seeds)]
            values = {m: [_least(one[m][what]) for one in own if one[m][what] is not None] for m in own[0]}
            if any(values.values()):
                cells = "".join(f"{pick(v):>10.3f}" if v else f"{'-':>10}" for v in values.values())
                lines.append(f"{scenario:36}{seeds:>5}{cells}")
    return "\n".join(lines)


def _least(value: Any) -> float:
    return min(value) if isinstance(value, list) else value


def main() -> None:
    """Print the table; exit with 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the studies, and fewer numbers of arms")
    parser.add_argument("--studies", type=int, help="made-up studies of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rates")
    asked = parser.parse_args()
    studies = asked.studies or (1000 if asked.quick else 10_000)
    arms = (2, 4, 9) if asked.quick else (2, 3, 4, 6, 9, 12)
    found = list(trial(studies, arms, (3, 5, 8), METHODS))
    print(f"{studies} studies of each kind; arms {', '.join(map(str, arms))}, the baseline included\n\n{table(found)}")
    problems = broken(found)
    print("\n" + ("\n".join(problems) if problems else "every bound is kept"))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
