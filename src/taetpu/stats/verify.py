"""Verification of `results.json` by recomputing it from the raw logs."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from taetpu.stats.analyse import compute_results
from taetpu.stats.blocked_anova import Array
from taetpu.stats.designs import LIMITS
from taetpu.stats.deviations import (
    best_trial,
    find_departures,
    find_unplanned_runs,
    mean_over_seeds,
    tuning_metric,
)
from taetpu.stats.integrity import check_records, raise_if_damaged
from taetpu.stats.load import COMPLETED, read_config, read_result, read_study
from taetpu.stats.plan import describe_metric, read_plan
from taetpu.stats.results import Results
from taetpu.stats.selection import check_choices
from taetpu.store.frozen_study import FrozenStudy
from taetpu.store.metrics import Series
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

EVALUATED = ("test/", "val@")  # prefixes of metrics that are evaluated once at the end and have no curve
SPENT = ("tokens", "flops")  # costs logged at every evaluation
COSTS = ("params", "memory", *SPENT)
ROUNDING = 1e-6  # relative tolerance, since means are logged in single precision
FIGURE = re.compile(r"[+-]?\d+(?:\.\d+(?:e-?\d+)?|e-?\d+)")  # a decimal number in a sentence
EARLIER_WORDING = {
    ":  -> ": ": none -> ",  # an empty mapping in the changes of an arm
    ", cut to what is possible": ", clipped to the possible range",
    "so the most cautious of its tests counts": "so the most conservative of its tests is used",
    "arms of this study copy each other's noise, so a test that pools none counts if it is more cautious": "noise is "
    "correlated between arms, so a test that does not pool it is used if it is more conservative",
    "Each part was taken out alone: which parts stand in for each other is seen only in how far the single effects are "
    "from adding up.": LIMITS["leave_one_out"],
    "Each part was put in alone: which parts need each other is seen only in how far the single effects are from "
    "adding up.": LIMITS["add_one_in"],
    "Interactions of three factors and more are taken to be none.": LIMITS["factorial"],
    "A fraction of the cells was trained: effects listed as aliases were measured as one, and the smaller of them "
    "taken to be none.": LIMITS["fraction"],
    "Nothing was trained beyond the largest rung: what is said about larger models is extrapolated.": LIMITS["ladder"],
    "Nothing was trained beyond the largest rung: statements about larger models are extrapolated.": LIMITS["ladder"],
    "The rungs of the ladder differ in their data, so effects are compared within rungs only.": LIMITS[
        "ladder without a trend"
    ],
}
"""Phrases that earlier versions wrote to `results.json`, and what replaces them."""
CLOSE = 1e-9  # relative tolerance, since the order of summation differs


def verify(folder: StudyFolder) -> list[str]:
    """Return the differences between a study's stored results and its raw metrics.

    Departures from the plan and runs with contradictory records come first, since they may cause other differences.

    Raises:
        UserError: If the plan was changed, a file of a run is damaged, or `compute_results` raises an error.
    """
    return recompute(folder)[0]


def recompute(folder: StudyFolder) -> tuple[list[str], Results]:
    """Return the differences that `verify` returns, and the recomputed results.

    Raises:
        UserError: If the plan was changed, a file of a run is damaged, or `compute_results` raises an error.
    """
    study = read_study(folder)
    plan, runs = read_plan(study, folder.where), folder.runs()
    raise_if_damaged([(run, problems) for run in runs if run.status() == "done" and (problems := run.find_damage())])
    differences = [f"{folder.where}/study.yaml: {problem}" for problem in find_departures(study, plan)]
    differences += [*find_unplanned_runs(study, runs), *check_records(study, runs)]
    differences += [f"{run.where}: {problem}" for run in runs for problem in find_contradictions(run, study["plan"])]
    differences += [*_check_equal_costs(runs), *_check_tuning(study, runs)]
    stored, came_to = folder.read_results(), json.loads(json.dumps(compute_results(folder, checked=True)))
    if stored is None:
        return [*differences, "results.json is missing"], came_to
    return [*differences, *(f"results.json: {problem}" for problem in find_differences(stored, came_to, ""))], came_to


def find_contradictions(run: RunFolder, plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield the contradictions between a run's result and its logs.

    The last values, costs, outcome and steps are compared.

    Args:
        run: the run.
        plan: the frozen plan of the run's study.

    Raises:
        UserError: If the result is invalid or the metrics are damaged.
    """
    result = read_result(run)
    if result is None:
        return
    series, sums, stopped = run.metrics(), run.evaluation(), result.get("stopped_at") is not None
    for name, value in result["metrics"].items():
        mean = _mean_from_sums(sums, describe_metric(plan, name).mean_of)
        if mean is not None and (value is None or not math.isclose(value, mean, rel_tol=CLOSE)):
            yield f"{name} is {value} in the result, but {mean} over the evaluation set"
        if name.startswith(EVALUATED) or (stopped and name.startswith("val/")):
            continue
        if name not in series:
            yield f"{name} is in the result but was never logged"
        elif stopped and series[name].step[-1] < result["steps"]:  # the run stopped after its last logged value
            continue
        elif not _matches_log(value, float(series[name].value[-1])):
            yield f"{name} is {value} in the result, but {float(series[name].value[-1])} in the log"
    for name in SPENT:
        if name in series and result.get(name) != series[name].value[-1]:
            yield f"{name} is {result.get(name)} in the result, but {float(series[name].value[-1])} in the log"
    reached = max((int(s.step[-1]) for s in series.values()), default=0)
    if series and reached != result["steps"]:
        yield f"the result records {result['steps']} steps, but the log ends at step {reached}"
    yield from _check_outcome(run, result, series)
    yield from check_choices(read_config(run).get("config", {}).get("train", {}), result, series)


def _check_outcome(run: RunFolder, result: Mapping[str, Any], series: Mapping[str, Series]) -> Iterator[str]:
    """Yield contradictions between a run's outcome and its logs. The logs show whether the loss diverged."""
    logged = [name for name in result["metrics"] if name in series]
    at, lost = result.get("diverged_at"), [name for name in logged if not math.isfinite(series[name].value[-1])]
    if result["outcome"] in COMPLETED:
        if at is not None:
            yield f"the outcome is {result['outcome']!r}, but `diverged_at` is {at}"
        elif lost:
            yield f"the outcome is {result['outcome']!r}, but {lost[0]} is not finite at the end of the log"
    elif at is None:
        if logged and not lost:
            yield "the outcome is 'diverged', but every metric is finite to the end of the log"
    elif "train/loss" in series:
        steps, values = series["train/loss"]
        point = int(np.searchsorted(steps, at, side="right"))
        bound = read_config(run).get("config", {}).get("train", {}).get("loss_bound")
        if point < len(steps) and bound is not None:
            length = steps[point] - (steps[point - 1] if point else 0)
            # The logged value is a mean over `length` losses. Losses are not negative, so if this condition holds, none
            # of these losses exceeded the bound.
            if values[point] * length < bound * (1 - ROUNDING):
                yield f"the outcome is 'diverged' at step {at}, but train/loss is {values[point]} in the log"


def _check_equal_costs(runs: Sequence[RunFolder]) -> Iterator[str]:
    """Yield a problem for each cost that differs between runs of one arm.

    Memory is compared only between runs with the same versions and compute options, and tokens and FLOPs between runs
    with as many steps.
    """
    first: dict[tuple[Any, ...], tuple[RunFolder, Any]] = {}
    for run in runs:
        result = read_result(run) or {}
        pack = result.get("pack", {})
        how = [pack.get(name) for name in ("precision", "attention", "remat", "loss_chunk")]
        counted = json.dumps([result.get("environment", {}).get("versions"), how], sort_keys=True)
        for name in (name for name in COSTS if name in result):
            key = run.arm, name, counted if name == "memory" else result["steps"] if name in SPENT else ""
            other, value = first.setdefault(key, (run, result[name]))
            if value != result[name]:
                yield f"{run.where}: {name} is {result[name]} in the result, but {value} in the result of {other.where}"


def _check_tuning(study: FrozenStudy, runs: Sequence[RunFolder]) -> Iterator[str]:
    """Yield contradictions between the recorded tuning and the runs of the tuning trials."""
    tuning = study.get("tuning")
    if not tuning:
        return
    metric = tuning_metric(tuning, study["plan"]["primary"])
    ended = {(run.arm, run.seed): read_result(run) for run in runs}
    for name, entry in tuning["arms"].items():
        for cell, trial in entry["trials"].items():
            came_to = [_finished_value(ended.get((trial["arm"], seed)), metric) for seed in tuning["seeds"]]
            if came_to != trial["by_seed"]:
                yield f"study.yaml: tuning {name} with {cell} gave {came_to}, but {trial['by_seed']} is recorded"
        means = {cell: mean_over_seeds(trial["by_seed"]) for cell, trial in entry["trials"].items()}
        best = best_trial(means, study["plan"]["direction"])
        if best != entry["best"]:
            yield f"study.yaml: the best trial of {name} is {best}, but {entry['best']} is recorded"


def _finished_value(result: Mapping[str, Any] | None, metric: str) -> float | None:
    return result["metrics"].get(metric) if result is not None and result["outcome"] in COMPLETED else None


def _mean_from_sums(sums: Mapping[str, Array], names: Sequence[str]) -> float | None:
    """Return the quotient of two sums over the evaluation set; None if it is not finite or sums are missing."""
    total, weight = (sums.get(name) for name in names or ("", ""))
    mean = None if total is None or weight is None else float(total.sum() / max(weight.sum(), 1.0))
    return mean if mean is not None and math.isfinite(mean) else None


def _matches_log(stored: float | None, logged: float) -> bool:
    """Return whether a stored value agrees with the log. A result stores null for a non-finite number."""
    return stored == logged or (stored is None and logged - logged != 0)


def find_differences(stored: Any, computed: Any, path: str) -> Iterator[str]:
    """Yield the differences between stored and computed results at a path such as `arms[nope].effect`."""
    if isinstance(stored, Mapping) and isinstance(computed, Mapping):
        for name in {**stored, **computed}:
            there = f"{path}.{name}" if path else str(name)
            if name not in stored or name not in computed:
                yield f"{there} is {'missing' if name not in stored else 'stored, but does not follow from the runs'}"
            else:
                yield from find_differences(stored[name], computed[name], there)
    elif isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        for i, (a, b) in enumerate(zip(stored, computed, strict=True)):
            name = a.get("name", i) if isinstance(a, Mapping) else i
            yield from find_differences(a, b, f"{path}[{name}]")
    elif stored != computed and not _close(stored, computed):
        yield f"{path} is {stored!r}, but the runs give {computed!r}"


def _close(stored: Any, computed: Any) -> bool:
    """Return whether two numbers agree up to rounding, or two sentences have the same words and the same numbers.

    Two numbers in sentences agree if they differ by at most half a unit in the last decimal place that both have.
    """
    if isinstance(stored, float) and isinstance(computed, float):
        return math.isclose(stored, computed, rel_tol=CLOSE)
    if not isinstance(stored, str) or not isinstance(computed, str):
        return False
    for earlier, current in EARLIER_WORDING.items():
        stored = stored.replace(earlier, current)
    if FIGURE.split(stored) != FIGURE.split(computed):
        return False
    pairs = zip(FIGURE.findall(stored), FIGURE.findall(computed), strict=True)
    return all(
        abs(float(a) - float(b)) <= (1 + CLOSE) * 0.5 * 10.0 ** -min(map(_decimal_places, (a, b))) for a, b in pairs
    )


def _decimal_places(figure: str) -> int:
    """Return the number of decimal places of a figure, which may have a power of ten."""
    mantissa, _, exponent = figure.partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)
