"""Steps and training FLOPs at which an arm reaches the baseline's final value.

During training, curves are evaluated on a sample of the validation split. The arm's curve is compared with the last
point of the baseline's curve on the same sample, never with a value from the whole split.

Interpret the results with care if the learning rate decays. The loss in the middle of a schedule is worse than the
final loss of a schedule that ends at the same step.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from taetpu.stats.model import CONFIDENCE
from taetpu.stats.plan import Plan
from taetpu.stats.results_table import Cell
from taetpu.store.metrics import curve_metric


def compute_efficiency(arm: Sequence[Cell], baseline: Sequence[Cell], plan: Plan) -> dict[str, Any] | None:
    """Return the cost at which the arm reaches the baseline's final value, relative to the baseline's total cost.

    Args:
        arm: cells of the arm's finished runs.
        baseline: cells of the baseline's finished runs.
        plan: the analysis plan.

    Returns:
        `steps` and `flops`, each `{"ratio", "ci95"}` (geometric mean over seeds, t interval of the logarithm), the
        number of compared `seeds`, and the number of seeds on which the arm `reached` the value. `steps` and `flops`
        are None unless the arm reached the value on all seeds. The whole result is None if no seeds can be compared,
        the metric was not measured during training, or the runs used different validation samples.
    """
    theirs = {cell.seed: cell for cell in baseline}
    pairs = [(cell, theirs[cell.seed]) for cell in arm if cell.seed in theirs]
    reached = [_steps_to_baseline(ours, base, plan) for ours, base in pairs]
    if not pairs or any(found is None for found in reached):
        return None
    ratios = [found for found in reached if found is not None and math.isfinite(found)]
    found: dict[str, Any] = {"seeds": len(pairs), "reached": len(ratios), "steps": None, "flops": None}
    if len(ratios) == len(pairs):
        costs = [_flops_a_step(ours) / _flops_a_step(base) for ours, base in pairs]
        found["steps"] = _mean_ratio(np.array(ratios))
        found["flops"] = _mean_ratio(np.array(ratios) * np.array(costs))
    return found


def _steps_to_baseline(arm: Cell, baseline: Cell, plan: Plan) -> float | None:
    """Return the step at which the arm reaches the baseline's final value, divided by the baseline's number of steps.

    The result is inf if the arm never reaches the value, and None if the curves are missing or not comparable.
    """
    assert arm.result is not None  # both runs finished
    assert baseline.result is not None
    name = curve_metric(plan.primary, arm.curves)
    curve, theirs = arm.curves.get(name), baseline.curves.get(name)
    target = baseline.value if name == plan.primary else None if theirs is None else float(theirs.value[-1])
    if curve is None or target is None or len(curve.step) < 2:
        return None
    # A run reused from another study may have used a different validation sample.
    if arm.result.get("val_sample") != baseline.result.get("val_sample"):
        return None
    sign = 1 if plan.direction == "min" else -1
    step = first_crossing(np.asarray(curve.step, float), sign * np.asarray(curve.value, float), sign * target)
    return step / baseline.result["steps"]


def first_crossing(steps: np.ndarray, values: np.ndarray, target: float) -> float:
    """Return the first step, linearly interpolated, at which a curve is at or below the target; inf if it never is."""
    below = np.flatnonzero(values <= target)
    if not len(below):
        return math.inf
    i = int(below[0])
    if i == 0:
        return float(steps[0])
    part = (values[i - 1] - target) / (values[i - 1] - values[i])
    return float(steps[i - 1] + part * (steps[i] - steps[i - 1]))


def _flops_a_step(cell: Cell) -> float:
    assert cell.result  # the run finished
    return cell.result["flops"] / cell.result["steps"]


def _mean_ratio(ratios: np.ndarray) -> dict[str, Any]:
    logs = np.log(ratios)
    mean, interval = float(logs.mean()), None
    if len(logs) > 1 and np.std(logs) > 0:
        interval = [math.exp(bound) for bound in stats.t.interval(CONFIDENCE, len(logs) - 1, mean, stats.sem(logs))]
    return {"ratio": math.exp(mean), "ci95": interval}
