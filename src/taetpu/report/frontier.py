"""Measured costs of arms, and Pareto fronts of quality against cost."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from taetpu.report import rungs, summary
from taetpu.report.summary import Costs
from taetpu.stats.ladder import changes_data
from taetpu.stats.results import Arm, Results
from taetpu.store.study import StudyFolder

COSTS = {"flops": "training FLOPs", "params": "parameters", "train_seconds": "seconds of training"}
CLEAR_ERRORS = 2.0
"""Minimum difference, in standard errors, at which an arm counts as clearly better."""
EQUAL_COST = 1e-3
"""Relative difference below which costs count as equal."""


def read_costs(folder: StudyFolder, results: Results) -> dict[str, dict[str, float | None]]:
    """Return the median times of each arm. They are not in `results.json`, because they differ between executions.

    Args:
        folder: the study's folder.
        results: the content of `results.json`.

    Returns:
        A mapping from each arm to medians over its runs. `train_seconds` is the time for all steps of a run without
        compilation, `inference_seconds` is the time per token in an evaluation batch, and `width` is the number of runs
        in a pack (the runs that are trained together). The time of a pack is divided evenly among its runs, so times
        are comparable only at equal width. Values that were not recorded are None.
    """
    costs = {}
    for arm in results["arms"]:
        runs = [folder.run(arm["name"], run["seed"], run["id"]) for run in arm["runs"] if run["id"]]
        ended = [(run.times(), run.result() or {}) for run in runs]
        step = [float(t["step_seconds"].value[-1]) * r.get("steps", 0) for t, r in ended if "step_seconds" in t]
        token = [float(t["forward_seconds"].value[-1]) for t, _ in ended if "forward_seconds" in t]
        width = [float(r["pack"]["width"]) for _, r in ended if "width" in r.get("pack", {})]
        times = {"train_seconds": step, "inference_seconds": token, "width": width}
        costs[arm["name"]] = {name: _median(values) for name, values in times.items()}
    return costs


def _median(values: list[float]) -> float | None:
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else None


def frontiers(results: Results, measured: Costs) -> dict[str, list[dict[str, Any]]]:
    """Return points of cost and quality for each cost in which arms differ, by the title of the cost.

    Each point has `arm`, `cost`, `mean`, `verdict` and `front` (whether the point is on the Pareto front). Training
    times are omitted if packs differ in width. Arms with other data than the study's baseline, which a ladder may
    have, are omitted.
    """
    results = {**results, "arms": _on_equal_data(results)}
    widths = {measured.get(arm["name"], {}).get("width") for arm in results["arms"]}
    kept = {cost: title for cost, title in COSTS.items() if cost != "train_seconds" or len(widths) == 1}
    titled = {title: _points(results, measured, cost) for cost, title in kept.items()}
    costs = {title: [point["cost"] for point in points] for title, points in titled.items()}
    return {title: titled[title] for title, paid in costs.items() if paid and max(paid) > (1 + EQUAL_COST) * min(paid)}


def _on_equal_data(results: Results) -> list[Arm]:
    bases = rungs.baselines(results) | {arm["name"]: arm for arm in results["arms"] if arm["against"] is None}
    other = {base["name"] for base in bases.values() if changes_data(base["diff"])}
    return [arm for arm in results["arms"] if (arm["against"] or arm["name"]) not in other]


def _points(results: Results, measured: Costs, cost: str) -> list[dict[str, Any]]:
    points = []
    for arm in results["arms"]:
        paid = measured.get(arm["name"], {}).get(cost) if cost == "train_seconds" else arm[cost]
        if paid and arm["mean"] is not None:
            points.append(
                {"arm": arm["name"], "cost": paid, "mean": arm["mean"], "verdict": summary.verdict_label(arm)}
            )
    margin = CLEAR_ERRORS * (results["model"]["residual_sd"] or 0.0) * math.sqrt(2 / len(results["seeds"]))
    best = set(pareto_front([(p["cost"], p["mean"]) for p in points], results["direction"] == "min", margin))
    return [{**point, "front": i in best} for i, point in enumerate(points)]


def pareto_front(points: Sequence[tuple[float, float]], lower: bool, margin: float = 0.0) -> list[int]:
    """Return the indices of the points on the Pareto front, sorted by cost.

    A point is on the front if it is better than the previous point on the front by more than `margin`. Among points
    with equal costs, a later point replaces an earlier one only if it is better by more than `margin`.

    Args:
        points: pairs of cost and quality.
        lower: whether lower quality values are better.
        margin: differences in quality up to this value are ignored.
    """
    sign, kept = 1 if lower else -1, list[int]()
    for i in sorted(range(len(points)), key=lambda i: points[i][0]):
        cost, quality = points[i]
        if kept and sign * quality >= sign * points[kept[-1]][1] - margin:
            continue
        if kept and points[kept[-1]][0] == cost:
            kept.pop()
        kept.append(i)
    return kept


def describe_frontiers(frontier: dict[str, list[dict[str, Any]]], metric: str) -> list[str]:
    """Return a sentence for each Pareto front."""
    sentences = []
    for title, points in frontier.items():
        arms = [point["arm"] for point in sorted(points, key=lambda point: point["cost"]) if point["front"]]
        sentences.append(
            f"Pareto front of {metric} and {title}, ignoring differences within the noise: {summary.join_and(arms)}."
        )
    return sentences
