"""Quality against cost: which arms no other clearly beats in both."""

import math
from collections.abc import Sequence
from typing import Any

from taetpu.report import summary
from taetpu.report.comparison import Costs, Results

COSTS = {"flops": "training FLOPs", "params": "parameters", "train_seconds": "seconds of training"}
CLEAR_ERRORS = 2.0
"""Better by so many standard errors of a difference is clearly better."""
EQUAL_COST = 1e-3
"""Costs that differ by a smaller share are equal, and show nothing."""


def frontiers(results: Results, measured: Costs) -> dict[str, list[dict[str, Any]]]:
    """For each cost in which arms differ, by its title: a point for each arm with its `cost`, its `mean`, and whether
    it lies on the `front` that no other arm is clearly beyond. Times are left out where packs differ in their width.
    """
    widths = {measured.get(arm["name"], {}).get("width") for arm in results["arms"]}
    kept = {cost: title for cost, title in COSTS.items() if cost != "train_seconds" or len(widths) == 1}
    found = {title: _points(results, measured, cost) for cost, title in kept.items()}
    return {title: points for title, points in found.items() if _differ([point["cost"] for point in points])}


def _differ(costs: Sequence[float]) -> bool:
    return len(costs) > 1 and max(costs) > (1 + EQUAL_COST) * min(costs)


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
    """Which of `(cost, quality)` are worth their cost, by cost: each is better, by more than `margin`, than all that
    cost less; of those that cost the same, the first, unless a later one is better by more than that.

    Args:
        lower: is less quality better?
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


def describe_frontiers(frontier: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The same in words."""
    return [_describe(title, _arms_on_front(points)) for title, points in frontier.items()]


def _describe(title: str, arms: list[str]) -> str:
    if len(arms) == 1:
        return f"No arm with as many or fewer {title} is clearly better than {arms[0]}."
    return f"No arm with as many or fewer {title} is clearly better than any of these: {summary.join_and(arms)}."


def _arms_on_front(points: Sequence[dict[str, Any]]) -> list[str]:
    return [point["arm"] for point in sorted(points, key=lambda point: point["cost"]) if point["front"]]
