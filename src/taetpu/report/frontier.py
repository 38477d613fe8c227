"""Quality against cost: which arms no other beats in both."""

from collections.abc import Sequence
from typing import Any

from taetpu.report import words
from taetpu.report.terms import Costs, Results

COSTS = {"flops": "training FLOPs", "params": "parameters", "train_seconds": "seconds of training"}
SAME = 1e-3
"""Costs that differ by a smaller share are equal, and show nothing."""


def frontiers(results: Results, measured: Costs) -> dict[str, list[dict[str, Any]]]:
    """For each cost in which arms differ, by its title: a point for each arm with its `cost`, its `mean`, and whether
    it lies on the `front` that no other arm is beyond.
    """
    found = {title: _points(results, measured, cost) for cost, title in COSTS.items()}
    return {title: points for title, points in found.items() if _differ([point["cost"] for point in points])}


def _differ(costs: Sequence[float]) -> bool:
    return len(costs) > 1 and max(costs) > (1 + SAME) * min(costs)


def _points(results: Results, measured: Costs, cost: str) -> list[dict[str, Any]]:
    points = []
    for arm in results["arms"]:
        paid = measured.get(arm["name"], {}).get(cost) if cost == "train_seconds" else arm[cost]
        if paid and arm["mean"] is not None:
            points.append({"arm": arm["name"], "cost": paid, "mean": arm["mean"], "verdict": words.standing(arm)})
    best = set(front([(p["cost"], p["mean"]) for p in points], lower=results["direction"] == "min"))
    return [{**point, "front": i in best} for i, point in enumerate(points)]


def front(points: Sequence[tuple[float, float]], lower: bool) -> list[int]:
    """Which of `(cost, quality)` no other point beats, by cost: none is better at the same cost or less.

    Args:
        lower: is less quality better?
    """
    sign, best, kept = 1 if lower else -1, float("inf"), []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], sign * points[i][1])):
        if sign * points[i][1] < best:
            best = sign * points[i][1]
            kept.append(i)
    return kept


def notes(frontier: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The same in words."""
    return [
        f"Nothing with as few {title} or fewer has a better mean than {words.joined(_named(points))}."
        for title, points in frontier.items()
    ]


def _named(points: Sequence[dict[str, Any]]) -> list[str]:
    return [point["arm"] for point in sorted(points, key=lambda point: point["cost"]) if point["front"]]
