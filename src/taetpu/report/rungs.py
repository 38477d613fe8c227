"""Repeated arms: the rungs (scales) of a ladder with the measure of their size, and tasks with different metrics."""

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from taetpu.stats import ladder
from taetpu.stats.formatting import join_and
from taetpu.stats.results import AcrossArm, Arm, Results, Run
from taetpu.store.frozen_study import PlannedTask

FEW = 4  # arms that a headline names one by one

NAMES: Mapping[ladder.Measure, str] = {"params": "parameters", "flops": "training FLOPs"}
UNITS: Mapping[ladder.Measure, str] = {"params": "params", "flops": "FLOPs"}


def baselines(results: Results) -> dict[str, Arm]:
    """Return the baseline of each rung as an arm, in the order of the study file; empty without a ladder."""
    design, arms = results["designs"].get("ladder"), {arm["name"]: arm for arm in results["arms"]}
    return {rung: arms[design["scales"][rung]["baseline"]] for rung in design["rungs"]} if design else {}


def mixes_metrics(results: Results) -> bool:
    """Return whether the study has several tasks that are not compared by the same metric."""
    return len({task["primary"] for task in results["plan"].get("tasks", {}).values()}) > 1


def planned_task(results: Results, baseline: Arm) -> PlannedTask:
    """Return how arms are compared on the task of a baseline."""
    arms = (arm for arm in results["arms"] if baseline["name"] in (arm["name"], arm["against"]))
    rung = next(arm["role"]["ladder"]["rung"] for arm in arms if "ladder" in arm["role"])
    return results["plan"].get("tasks", {})[rung]


def in_noise(results: Results) -> Results:
    """Return the results with values and effects in standard deviations of a run's noise on its task; more is better.

    Without noise on its task, an arm has no effect and its runs no values.
    """
    factors: dict[str, float] = {}
    for group in results["groups"]:
        base = next(arm for arm in results["arms"] if arm["name"] == group["baseline"])
        if sd := group["residual_sd"]:
            factors[base["name"]] = (1 if planned_task(results, base)["direction"] == "max" else -1) / sd
    arms = [_times(arm, factors.get(arm["against"] or arm["name"])) for arm in results["arms"]]
    return {**results, "arms": arms, "direction": "max", "plan": {**results["plan"], "equivalence": None}}


def _times(arm: Arm, factor: float | None) -> Arm:
    ends = sorted(end * factor for end in arm["ci95"]) if arm["ci95"] and factor else None

    def times(value: float | None) -> float | None:
        return value * factor if value is not None and factor else None

    runs: list[Run] = [{**run, "value": times(run["value"])} for run in arm["runs"]]
    return {**arm, "effect": times(arm["effect"]), "ci95": ends, "runs": runs}


def trend_measure(results: Results) -> ladder.Measure | None:
    """Return the measure over which effects have a trend, or None (see `stats.ladder.trend_measure`)."""
    return ladder.trend_measure(list(baselines(results).values()))


def ordered(results: Results) -> list[str]:
    """Return the rungs from the smallest to the largest, or in the order of the study file without a trend."""
    bases, measure = baselines(results), trend_measure(results)
    return list(bases) if measure is None else sorted(bases, key=lambda rung: bases[rung][measure] or 0.0)


def largest(results: Results) -> str | None:
    """Return the largest rung; None without a ladder, or if its effects have no trend over sizes."""
    return ordered(results)[-1] if baselines(results) and trend_measure(results) else None


Entry = TypeVar("Entry")


def in_order(results: Results, entries: Mapping[str, Entry]) -> list[tuple[str, Entry]]:
    """Return entries by arm (without the task or setting) in the order of the study file. Stored keys are sorted."""
    names = [arm["role"].get("ladder", {"arm": arm["name"]})["arm"] for arm in results["arms"]]
    return [(name, entries[name]) for name in dict.fromkeys(names) if name in entries]


def describe_robustness(entry: AcrossArm) -> str:
    """Return the verdict on a verdict in words, such as `reverses with init`."""
    words = {"depends": "depends on", "reverses": "reverses with", "holds": "holds; its size depends on"}
    on = join_and(entry["on"])
    return f"{words[entry['holds']]} {on}" if on and entry["holds"] in words else entry["holds"]


def describe_elsewhere(results: Results) -> str:
    """Return the verdict on each verdict of `across`, or of many arms how many have which; empty without `across`."""
    design = results["designs"].get("across")
    arms = in_order(results, design["arms"]) if design else []
    if len(arms) > FEW:
        counts = Counter(entry["holds"] for _, entry in arms)
        return f"Of {len(arms)} verdicts, {join_and([f'{count}: {holds}' for holds, count in counts.items()])}."
    return "".join(f"{name}: {describe_robustness(entry)}. " for name, entry in arms).rstrip()
