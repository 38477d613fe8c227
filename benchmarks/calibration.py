"""Error rates of the statistics on simulated studies, compared with the earlier noise model and with other tests.

Every simulated study is independent: a baseline and arms on a few seeds, with a known truth. The noise model
`moderated` is that of new plans, `guard` that of earlier ones. `python -m benchmarks.calibration` prints the tables of
docs/statistics.md and exits with 1 where `moderated` breaks a bound.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from scipy.optimize import brentq

from benchmarks.calibration_methods import TESTS, judge_with_effects
from benchmarks.calibration_scenarios import EFFECT, SCENARIOS, Scenario, draw_changed
from taetpu.stats.plan import Plan

ALPHA = 0.05
ARMS = (2, 4, 10, 40)  # the baseline included
SEEDS = (2, 3, 5, 8)
MANY_ARMS, FEWER = 40, 4  # studies with that many arms are fewer by this factor
MOST_RESAMPLED = 400  # studies; the bootstrap's errors are large enough to show in these
MOST_ARMS_RESAMPLED = 10
LOOKS = ((5, 8), (3, 5, 8), (2, 4))
CHURN_METHODS = ("moderated", "guard", "pooled")
LOST_COVERAGE, LOST_POWER = 0.02, 0.05
POWER_BESIDE_NOISE, MOST_CHURN = 0.7, 0.01


def simulate(scenario: Scenario, arms: int, seeds: int, studies: int, methods: Sequence[str]) -> dict[str, Any]:
    """Return error rates over simulated studies: false verdicts, coverage of intervals, and power.

    If no arm of the scenario has an effect, power is that of an effect of the last arm alone, which is quiet.
    """
    y = scenario.draw(np.random.default_rng([arms, seeds, SCENARIOS.index(scenario)]), studies, arms, seeds)
    truth = scenario.effects(arms)
    last = np.where(np.arange(arms - 1) == arms - 2, EFFECT, 0.0)
    both = [truth] if scenario.accuracy is not None else [truth, truth if truth.any() else last]
    rates: dict[str, Any] = {}
    for method in methods:
        few = method == "bootstrap"
        if few and arms > MOST_ARMS_RESAMPLED:
            continue
        judged = list(judge_with_effects(method, y[:MOST_RESAMPLED] if few else y, both))
        low, high = judged[0].low, judged[0].high
        if scenario.accuracy is not None and method in CHURN_METHODS:
            low, high = np.clip(low, -1, 1), np.clip(high, -1, 1)
        covered = (low <= truth) & (truth <= high)
        rates[method] = {
            "false": float((judged[0].p[:, truth == 0] < ALPHA).any(1).mean()),
            "coverage": None if np.isnan(low).any() else float(covered.mean(0).min()),
            "power": float((judged[1].p[:, both[1] > 0] < ALPHA).mean()) if len(judged) > 1 else None,
        }
    return {"scenario": scenario.name, "arms": arms, "seeds": seeds, "studies": studies, "methods": rates}


def simulate_looks(studies: int, arms: int, looks: Sequence[int]) -> dict[str, Any]:
    """Return how often a series of interim analyses gives a false verdict, with and without the plan's correction.

    Each analysis uses the seeds available by then; the series ends with the first verdict.
    """
    y = Scenario("null").draw(np.random.default_rng([arms, *looks]), studies, arms, looks[-1])
    plan = Plan("loss", "min", (), (), tuple(looks), noise="moderated")
    planned, unplanned = np.zeros(studies, bool), np.zeros(studies, bool)
    for look in looks:
        smallest = TESTS["moderated"](y[:, :, :look]).p.min(1)
        unplanned |= smallest < ALPHA
        # Holm's smallest p is the smallest times the number of arms: what the plan corrects is the p before that.
        planned |= smallest / (arms - 1) < threshold(plan, look, ALPHA / (arms - 1))
    return {
        "arms": arms,
        "looks": list(looks),
        "studies": studies,
        "planned": float(planned.mean()),
        "unplanned": float(unplanned.mean()),
    }


def threshold(plan: Plan, seeds: int, alpha: float) -> float:
    """Return the p of an interim analysis that the plan turns into `alpha`."""
    return float(brentq(lambda p: plan.overall_p(p, seeds) - alpha, 1e-12, 1 - 1e-9, xtol=1e-12))


def simulate_churn(studies: int, arms: int, seeds: int) -> dict[str, Any]:
    """Return the share of verdicts that change if results change by a fiftieth of the noise."""
    before, after = draw_changed(np.random.default_rng([arms, seeds]), studies, arms, seeds)
    changed = {m: float(((TESTS[m](before).p < ALPHA) != (TESTS[m](after).p < ALPHA)).mean()) for m in CHURN_METHODS}
    return {"arms": arms, "seeds": seeds, "studies": studies, "changed": changed}


# --- bounds ----------------------------------------------------------------------------------------------------------


def error(rate: float, studies: int) -> float:
    """Return two standard errors of a simulated rate."""
    return 2 * float(np.sqrt(rate * (1 - rate) / studies))


def broken(cells: Sequence[dict[str, Any]]) -> list[str]:
    """Return where `moderated` breaks a bound by more than two simulation errors."""
    return [
        f"{cell['scenario']}, {cell['arms']} arms, {cell['seeds']} seeds: {p}" for cell in cells for p in _breaks(cell)
    ]


def _breaks(cell: dict[str, Any]) -> list[str]:
    rates, n = cell["methods"], cell["studies"]
    mine, guard = rates["moderated"], rates["guard"]
    scenario = next(one for one in SCENARIOS if one.name == cell["scenario"])
    most = max(ALPHA, guard["false"])
    least = min(1 - ALPHA, guard["coverage"]) - LOST_COVERAGE
    problems = []
    if mine["false"] > most + error(most, n):
        problems.append(f"false verdicts {mine['false']:.3f}, at most {most:.3f}")
    if mine["coverage"] < least - error(least, n):
        problems.append(f"coverage {mine['coverage']:.3f}, at least {least:.3f}")
    if cell["seeds"] != 5 or mine["power"] is None:
        return problems
    least = rates["pooled"]["power"] - LOST_POWER if scenario.equal else 0.0
    if scenario.arm >= 10 and cell["arms"] == 10:
        least = POWER_BESIDE_NOISE
    if mine["power"] < least - error(least, n):
        problems.append(f"power {mine['power']:.3f}, at least {least:.3f}")
    return problems


def broken_looks(series: Sequence[dict[str, Any]]) -> list[str]:
    """Return where planned interim analyses err more often than a single analysis may."""
    return [
        f"looks at {one['looks']}: {one['planned']:.3f}"
        for one in series
        if one["planned"] > ALPHA + error(ALPHA, one["studies"])
    ]


def broken_churn(churn: Sequence[dict[str, Any]]) -> list[str]:
    """Return where a small change of the results changes too many verdicts."""
    return [
        f"churn with {one['arms']} arms: {one['changed']['moderated']:.4f}"
        for one in churn
        if one["changed"]["moderated"] > MOST_CHURN
    ]


# --- tables ----------------------------------------------------------------------------------------------------------

OURS = {
    "false": ("moderated", "guard"),
    "coverage": ("moderated", "guard"),
    "power": ("moderated", "guard", "pooled"),
}
OTHERS = {
    "false": ("paired t", "Welch", "Wilcoxon", "bootstrap"),
    "coverage": ("paired t", "Welch", "bootstrap"),
    "power": ("paired t", "Welch"),
}
SHORT = {"moderated": "new", "guard": "old", "pooled": "pool", "paired t": "P", "Welch": "W", "Wilcoxon": "S"}
TITLES = {"false": "any false", "coverage": "coverage", "power": "power"}


def table(cells: Sequence[dict[str, Any]], columns: dict[str, tuple[str, ...]]) -> str:
    """Return the worst rate over numbers of arms from 3 on, by scenario and number of seeds."""
    heads = ["", ""]
    for what, methods in columns.items():
        heads[0] += f" {TITLES[what]:>{5 * len(methods) - 1}}"
        heads[1] += "".join(f"{SHORT.get(method, 'B'):>5}" for method in methods)
    lines = [f"{'':35}{heads[0]}", f"{'':30}seeds{heads[1]}"]
    for scenario, seeds in dict.fromkeys((cell["scenario"], cell["seeds"]) for cell in cells):
        rows = [c["methods"] for c in cells if (c["scenario"], c["seeds"]) == (scenario, seeds) and c["arms"] > 2]
        texts = []
        for what, methods in columns.items():
            for method in methods:
                values = [row[method][what] for row in rows if method in row and row[method][what] is not None]
                worst = (max if what == "false" else min)(values, default=None)
                texts.append(f"{'-' if worst is None else f'{worst:.3f}'.removeprefix('0')[:4]:>5}")
        lines.append(f"{scenario:30}{seeds:>5}{''.join(texts)}")
    return "\n".join(lines)


def looks_table(series: Sequence[dict[str, Any]]) -> str:
    lines = ["any false verdict by the last of several looks, with verdicts at each", ""]
    lines.append(f"{'looks at':12}{'arms':>6}{'planned':>10}{'not planned':>14}")
    for one in series:
        looks = ", ".join(map(str, one["looks"]))
        lines.append(f"{looks:12}{one['arms']:>6}{one['planned']:>10.3f}{one['unplanned']:>14.3f}")
    return "\n".join(lines)


def churn_table(churn: Sequence[dict[str, Any]]) -> str:
    lines = ["verdicts that change if results change by 2 % of the noise", ""]
    lines.append(f"{'arms':>6}{'seeds':>7}" + "".join(f"{method:>11}" for method in CHURN_METHODS))
    for one in churn:
        values = "".join(f"{one['changed'][method]:11.4f}" for method in CHURN_METHODS)
        lines.append(f"{one['arms']:>6}{one['seeds']:>7}{values}")
    return "\n".join(lines)


def main() -> None:
    """Print the tables; exit with 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the studies, and no 40 arms")
    parser.add_argument("--studies", type=int, help="simulated studies of each kind, a quarter of them with 40 arms")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rates")
    asked = parser.parse_args()
    studies = asked.studies or (500 if asked.quick else 10_000)
    arms = ARMS[:-1] if asked.quick else ARMS
    kinds = [kind for kind in product(SCENARIOS, SEEDS, arms) if kind[2] >= kind[0].fewest]
    cells, series, churn = [], [], []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("simulating", total=len(kinds) + 2 * len(LOOKS) + 2)
        for number, looks in product((2, 10), LOOKS):
            series.append(simulate_looks(studies, number, looks))
            progress.advance(task)
        for number in (4, 10):
            churn.append(simulate_churn(studies, number, 5))
            progress.advance(task)
        for scenario, seeds, number in kinds:
            fewer = FEWER if number >= MANY_ARMS else 1
            cells.append(simulate(scenario, number, seeds, studies // fewer, list(TESTS)))
            progress.advance(task)
            if asked.json:
                asked.json.write_text(json.dumps({"tests": cells, "looks": series, "churn": churn}, indent=1))
    print(f"{studies} studies of each kind; arms {', '.join(map(str, arms))}, the baseline included\n")
    print(f"{table(cells, OURS)}\n\n{table(cells, OTHERS)}\n\n{looks_table(series)}\n\n{churn_table(churn)}")
    problems = [*broken(cells), *broken_looks(series), *broken_churn(churn)]
    print("\n" + ("\n".join(problems) if problems else "every bound is kept"))
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
