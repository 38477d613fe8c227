"""Order of the rungs (scales) of a ladder, and the measure of their size."""

from collections.abc import Mapping

from taetpu.stats import ladder
from taetpu.stats.results import Arm, Results

NAMES: Mapping[ladder.Measure, str] = {"params": "parameters", "flops": "training FLOPs"}
UNITS: Mapping[ladder.Measure, str] = {"params": "params", "flops": "FLOPs"}


def baselines(results: Results) -> dict[str, Arm]:
    """Return the baseline of each rung as an arm, in the order of the study file; empty without a ladder."""
    design, arms = results["designs"].get("ladder"), {arm["name"]: arm for arm in results["arms"]}
    return {rung: arms[design["scales"][rung]["baseline"]] for rung in design["rungs"]} if design else {}


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
