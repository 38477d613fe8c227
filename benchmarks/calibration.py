"""Error rates of the statistics on simulated studies, compared with the tests that papers use.

Every simulated study is independent: a baseline and arms on a few seeds, with a known truth. `ours` is what
`taetpu.stats` computes for a study in which every run finished, written here for many studies at once.
`tests/benchmarks` checks that it is the same.
"""

import argparse
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

from taetpu.stats.blocked_anova import GUARD_ALPHA, sphericity_threshold
from taetpu.stats.linear_model import CONFIDENCE
from taetpu.stats.plan import Plan

Array = NDArray[np.float64]

ALPHA = 0.05
ACTIVE_EFFECT = 3.0  # standard deviations of a run
RESAMPLES = 999
MOST_RESAMPLED = 400  # studies; the bootstrap's errors are large enough to show in these
LOOKS = ((5, 8), (3, 5, 8), (2, 4))
METHODS = ("ours", "paired t", "Welch", "Wilcoxon", "bootstrap")


@dataclass(frozen=True)
class Scenario:
    """How studies are simulated.

    Attributes:
        noise: of a run: `normal`, or `heavy` (Student's t with 3 degrees of freedom, scaled to a variance of 1).
        accuracy: runs are accuracies: normal log-odds about this mean, or `all or nothing`; None for a
            metric without bounds. Its intervals are cut to what a difference can be.
        block: standard deviation of what all arms of a seed share, in standard deviations of a run.
        baseline, arm, half: how many times as noisy the baseline is, the first arm, and half of the arms.
        copied: the share of a run's variance that it has in common with half of the arms, its relatives.
        active: how many arms have a true effect, the last ones; -1 for half of them.
    """

    name: str
    noise: str = "normal"
    block: float = 1.0
    baseline: float = 1.0
    arm: float = 1.0
    half: float = 1.0
    copied: float = 0.0
    active: int = 0
    accuracy: float | Literal["all or nothing"] | None = None

    @property
    def fewest(self) -> int:
        """Minimum number of arms, with the baseline."""
        return 4 if self.half != 1.0 or self.copied else 2 + abs(self.active)

    @property
    def equal(self) -> bool:
        """Whether all runs have the same normal noise."""
        how = (self.noise, self.baseline, self.arm, self.half, self.copied, self.accuracy)
        return how == ("normal", 1.0, 1.0, 1.0, 0.0, None)

    def share(self, y: Array) -> Array:
        """Return accuracies from log-odds."""
        if self.accuracy == "all or nothing":
            return np.where(y > 0, 0.99, 0.2) + 0.005 * np.tanh(y)
        return 1 / (1 + np.exp(-float(self.accuracy or 0) - y))

    def draw(self, rng: np.random.Generator, studies: int, arms: int, seeds: int) -> tuple[Array, NDArray[np.bool_]]:
        """Return values `(studies, arms, seeds)`, the baseline first, and which other arms have an effect."""
        size = (studies, arms, seeds)
        y = rng.standard_t(3, size) / np.sqrt(3) if self.noise == "heavy" else rng.standard_normal(size)
        if self.copied:
            family = np.arange(arms) * 2 // arms
            common = rng.standard_normal((studies, 2, seeds))[:, family]
            y = np.sqrt(1 - self.copied) * y + np.sqrt(self.copied) * common
        y[:, 0] *= self.baseline
        y[:, 1] *= self.arm
        y[:, 1 : 1 + arms // 2] *= self.half
        active = np.arange(1, arms) >= arms - ((arms - 1) // 2 if self.active < 0 else self.active)
        y[:, 1:][:, active] += ACTIVE_EFFECT
        y = y + self.block * rng.standard_normal((studies, 1, seeds))
        return y if self.accuracy is None else self.share(y), active


SCENARIOS = (
    Scenario("equal, seeds shared"),
    Scenario("equal, nothing shared", block=0.0),
    Scenario("heavy tails", noise="heavy"),
    Scenario("an arm twice as noisy", arm=2.0),
    Scenario("an arm three times as noisy", arm=3.0),
    Scenario("half of the arms three times", half=3.0),
    Scenario("the baseline 1.5 times as noisy", baseline=1.5),
    Scenario("the baseline twice as noisy", baseline=2.0),
    Scenario("the baseline three times as noisy", baseline=3.0),
    Scenario("the baseline ten times as noisy", baseline=10.0),
    Scenario("baseline and half of the arms, 3x", baseline=3.0, half=3.0),
    Scenario("heavy tails, the baseline 3x", noise="heavy", baseline=3.0),
    Scenario("two families, half copied", copied=0.5),
    Scenario("two families, nine tenths copied", copied=0.9),
    Scenario("two families of near copies", copied=0.99),
    Scenario("an arm with an effect, none shared", block=0.0, active=1),
    Scenario("two arms with an effect", active=2),
    Scenario("half of the arms with an effect", active=-1),
    Scenario("accuracies about 0.27", accuracy=-1.0),
    Scenario("accuracies about 0.98", accuracy=4.0),
    Scenario("accuracies of all or nothing", accuracy="all or nothing"),
)


# --- the tests, for many studies at once -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """Results of a test: corrected p by study and arm, and each effect's uncorrected 95 % interval."""

    p: Array
    low: Array
    high: Array


def holm(p: Array) -> Array:
    """Return p values with Holm's correction over the last axis."""
    order = np.argsort(p, axis=-1)
    ranked = np.take_along_axis(p, order, -1) * np.arange(p.shape[-1], 0, -1)
    found = np.empty_like(p)
    np.put_along_axis(found, order, np.minimum(np.maximum.accumulate(ranked, axis=-1), 1.0), -1)
    return found


def ours(y: Array) -> Judged:
    """Apply the seed-blocked model with its guard, as `taetpu.stats.linear_model.fit` does for a full table."""
    _, arms, seeds = y.shape
    difference = y[:, 1:] - y[:, :1]
    residual = y - y.mean(2, keepdims=True) - y.mean(1, keepdims=True) + y.mean((1, 2), keepdims=True)
    rss, df = (residual**2).sum((1, 2)), (arms - 1) * (seeds - 1)
    pooled = _t(difference.mean(2), np.sqrt(2 * rss / df / seeds)[:, None], df)
    if arms < 3:
        return replace(pooled, p=holm(pooled.p))
    rest_df = (arms - 2) * (seeds - 1)
    own = arms / (arms - 1) * (residual**2).sum(2) / (seeds - 1)
    rest = (rss[:, None] - own * (seeds - 1)) / rest_df
    noisy = stats.f.sf(own / rest, seeds - 1, rest_df) < GUARD_ALPHA
    arm, baseline = noisy[:, 1:], np.broadcast_to(noisy[:, :1], difference.shape[:2])
    own, rest = own * arms / (arms - 1), rest * (arms - 2) / (arms - 1)
    error, df = np.sqrt((own + rest) / seeds), (own + rest) ** 2 / (own**2 / (seeds - 1) + rest**2 / rest_df)
    effect = difference.mean(2)
    paired = _t(effect, difference.std(2, ddof=1) / np.sqrt(seeds), seeds - 1)
    found = _most_cautious(pooled, _t(effect, error[:, 1:], df[:, 1:]), arm)
    found = _most_cautious(found, _t(effect, error[:, :1], df[:, :1]), baseline)
    found = _most_cautious(found, paired, arm & baseline | copies(residual, noisy)[:, None])
    return replace(found, p=holm(found.p))


def copies(residual: Array, noisy: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return by study whether arms share their noise, as `taetpu.stats.blocked_anova.Blocked.copies` does."""
    _, arms, seeds = residual.shape
    quiet = np.where(noisy[:, :, None], np.nan, residual)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of studies in which every arm is noisy
        quiet = np.nan_to_num(quiet - np.nanmean(quiet, axis=1, keepdims=True))
        products = np.einsum("nas,nat->nst", quiet, quiet)
        share = (products**2).sum((1, 2)) / np.trace(products, axis1=1, axis2=2) ** 2
    left = arms - noisy.sum(1)
    sizes = [(max(n, seeds) - 1, min(n, seeds) - 1) for n in range(arms + 1)]
    bound = np.array([sphericity_threshold(*size) if size[1] > 1 else np.inf for size in sizes])
    return share > bound[left]


def _most_cautious(one: Judged, other: Judged, where: NDArray[np.bool_]) -> Judged:
    """Return the larger p and wider interval of two tests where the mask is true, else the first test's."""
    return Judged(
        np.where(where, np.maximum(one.p, other.p), one.p),
        np.where(where, np.minimum(one.low, other.low), one.low),
        np.where(where, np.maximum(one.high, other.high), one.high),
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
    """Apply the exact signed-rank test, without intervals."""
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
    """Bootstrap the mean difference over seeds: percentile intervals, and twice the smaller tail as p."""
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
    """Return error rates over simulated studies: false verdicts, coverage of intervals, and power.

    Empty for a scenario that needs more arms.
    """
    if arms < scenario.fewest:
        return {}
    rng = np.random.default_rng([arms, seeds, SCENARIOS.index(scenario)])
    y, active = scenario.draw(rng, studies, arms, seeds)
    truth = np.where(active, ACTIVE_EFFECT, 0.0)
    found = {
        "scenario": scenario.name,
        "equal": scenario.equal,
        "copied": scenario.copied,
        "arms": arms,
        "seeds": seeds,
        "studies": studies,
    }
    found["methods"] = {}
    for method in methods:
        judged = TESTS[method](y[:MOST_RESAMPLED] if method == "bootstrap" else y)
        if method == "ours" and scenario.accuracy is not None:
            judged = replace(judged, low=np.clip(judged.low, -1, 1), high=np.clip(judged.high, -1, 1))
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


def looked(studies: int, arms: int, looks: Sequence[int]) -> dict[str, Any]:
    """Return how often a series of interim analyses gives a false verdict, with and without the plan's correction.

    Each analysis uses the seeds available by then; the series ends with the first finding.
    """
    rng = np.random.default_rng([arms, *looks])
    y, _ = Scenario("null").draw(rng, studies, arms, looks[-1])
    plan = Plan("loss", "min", (), (), tuple(looks))
    planned, unplanned = np.zeros(studies, bool), np.zeros(studies, bool)
    for look in looks:
        smallest = TESTS["ours"](y[:, :, :look]).p.min(1)
        unplanned |= smallest < ALPHA
        # Holm's smallest p is the smallest times the number of arms: what the plan corrects is the p before that.
        planned |= smallest / (arms - 1) < threshold(plan, look, ALPHA / (arms - 1))
    return {"arms": arms, "looks": list(looks), "planned": float(planned.mean()), "unplanned": float(unplanned.mean())}


def threshold(plan: Plan, seeds: int, alpha: float) -> float:
    """Return the p of an interim analysis that the plan turns into `alpha`."""
    return float(brentq(lambda p: plan.overall_p(p, seeds) - alpha, 1e-12, 1 - 1e-9, xtol=1e-12))


def broken(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return where taetpu's method exceeds its bounds by more than sampling error.

    Intervals of arms that share their noise have no bound: at 3 seeds the check detects it in too few studies.
    """
    problems = []
    for one in found:
        mine, few = one["methods"]["ours"], one["seeds"] <= 3
        where, n = f"{one['scenario']}, {one['arms']} arms, {one['seeds']} seeds", one["studies"]
        bound = 0.10 if few else 0.06
        if mine["false"] > bound + chance(bound, n):
            problems.append(f"{where}: any false verdict {mine['false']:.3f}, at most {bound}")
        least = 0.90 if few else 0.93
        if not one["copied"] and min(mine["coverage"]) < least - chance(least, n):
            problems.append(f"{where}: coverage {min(mine['coverage']):.3f}, at least {least}")
        theirs = one["methods"].get("Welch", {}).get("power")
        if theirs is not None and one["equal"] and one["arms"] >= 4 and mine["power"] < theirs - 0.03 - chance(0.5, n):
            problems.append(f"{where}: power {mine['power']:.3f}, Welch's is {theirs:.3f}")
    return problems


def broken_looks(found: Sequence[dict[str, Any]], studies: int) -> list[str]:
    """Return where planned interim analyses err more often than a single analysis may."""
    most = 0.06 + chance(0.06, studies)
    return [f"looks at {one['looks']}: {one['planned']:.3f}" for one in found if one["planned"] > most]


def chance(rate: float, studies: int) -> float:
    """Return the allowance for a rate's sampling error; 0 from 10,000 studies on."""
    return 0.0 if studies >= 10_000 else 2 * float(np.sqrt(rate * (1 - rate) / studies))


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the worst case over numbers of arms, by scenario and number of seeds."""
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


def looks_table(found: Sequence[dict[str, Any]]) -> str:
    lines = ["any false verdict by the last of several looks, at each of which verdicts are given", ""]
    lines.append(f"{'looks at':12}{'arms':>6}{'planned':>10}{'not planned':>14}")
    for one in found:
        looks = ", ".join(map(str, one["looks"]))
        lines.append(f"{looks:12}{one['arms']:>6}{one['planned']:>10.3f}{one['unplanned']:>14.3f}")
    return "\n".join(lines)


def main() -> None:
    """Print the table; exit with 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the studies, and fewer numbers of arms")
    parser.add_argument("--studies", type=int, help="made-up studies of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rates")
    asked = parser.parse_args()
    studies = asked.studies or (1000 if asked.quick else 10_000)
    arms = (2, 4, 9) if asked.quick else (2, 3, 4, 6, 9, 12)
    found = list(trial(studies, arms, (3, 5, 8), METHODS))
    print(f"{studies} studies of each kind; arms {', '.join(map(str, arms))}, the baseline included\n\n{table(found)}")
    by_looks = [looked(studies, number, looks) for looks in LOOKS for number in (2, arms[-1])]
    print(f"\n{looks_table(by_looks)}")
    problems = [*broken(found), *broken_looks(by_looks, studies)]
    print("\n" + ("\n".join(problems) if problems else "every bound is kept"))
    if asked.json:
        asked.json.write_text(json.dumps({"tests": found, "looks": by_looks}, indent=1))
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
