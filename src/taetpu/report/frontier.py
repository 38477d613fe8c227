"""Pareto fronts of arms: of quality and a cost, and of any two columns."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from taetpu.core.errors import UserError, suggest
from taetpu.report import rungs, summary
from taetpu.report.cost_columns import COLUMNS
from taetpu.report.summary import Costs
from taetpu.stats.ladder import changes_data
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Arm, Results

CHARTED = ("flops", "params", "train_seconds", "step_time")
"""The costs of which the report has a chart without a choice."""
CHOICES = ("flops", "params", "memory", "cache_bytes", "train_seconds", "step_time", "decode_rate", "cycles")
"""The costs of which any two can be chosen, or one and the primary metric."""
CLEAR_ERRORS = 2.0
"""Minimum difference, in standard errors, at which an arm counts as clearly better."""
EQUAL_COST = 1e-3
"""Relative difference below which costs count as equal."""


def frontiers(results: Results, measured: Costs) -> dict[str, list[dict[str, Any]]]:
    """Return points of cost and quality for the costs with a chart in which arms differ, by the title of the cost.

    See `front_points`. Training times are omitted if packs differ in width.
    """
    names = [name for name in front_columns(results, measured) if name in CHARTED]
    return {COLUMNS[name].title: front_points(results, measured, name, results["primary"]) for name in names}


def front_columns(results: Results, measured: Costs) -> list[str]:
    """Return the primary metric, if an arm has a mean, and the costs in which arms differ."""
    arms = _on_equal_data(results)
    names = [results["primary"]] if any(arm["mean"] is not None for arm in arms) else []
    widths = {measured.get(arm["name"], {}).get("width") for arm in arms}
    for name in CHOICES:
        paid = [value for arm in arms if (value := _value(arm, measured, results, name)) is not None]
        timed = name == "train_seconds" and len(widths) > 1
        if not timed and paid and max(paid) > (1 + EQUAL_COST) * min(paid):
            names.append(name)
    return names


def parse_columns(text: str, results: Results, measured: Costs) -> tuple[str, str]:
    """Return the two columns of `--frontier X,Y`.

    Raises:
        UserError: If there are not two columns, a column is not known, or arms do not differ in it.
    """
    known, names = front_columns(results, measured), [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            what = "arms do not differ in" if name in CHOICES else "no column is named"
            raise UserError(f"{what} {name!r}", path=("--frontier",), remedy=suggest(name, known))
    if len(names) != 2 or names[0] == names[1]:
        remedy = f"Write two of {', '.join(known)}, as in params,{results['primary']}."
        raise UserError(f"{text!r} does not name two columns", path=("--frontier",), remedy=remedy)
    return names[0], names[1]


def column_title(name: str, results: Results) -> str:
    """Return the words for a column of a frontier."""
    return COLUMNS[name].title if name in COLUMNS else describe_metric(results["plan"]).title


def front_points(results: Results, measured: Costs, x: str, y: str) -> list[dict[str, Any]]:
    """Return the arms as points of two columns: costs, or the primary metric.

    Each point has `arm`, `cost` (the value of `x`), `mean` (that of `y`), `verdict` and `front` (whether no other arm
    is better in both, up to the noise of the metric). Arms with other data than the study's baseline, which a ladder
    may have, are omitted.
    """
    points, places = [], []
    quality = x if x == results["primary"] else y
    other = y if quality == x else x
    for arm in _on_equal_data(results):
        values = {name: _value(arm, measured, results, name) for name in (x, y)}
        if values[x] is not None and values[y] is not None:
            verdict = summary.verdict_label(arm)
            points.append({"arm": arm["name"], "cost": values[x], "mean": values[y], "verdict": verdict})
            places.append(((values[other] or 0.0) * _sign(other, results), values[quality] or 0.0))
    noise = CLEAR_ERRORS * (results["model"]["residual_sd"] or 0.0) * math.sqrt(2 / len(results["seeds"]))
    margin = noise if quality == results["primary"] else 0.0
    best = set(pareto_front(places, _sign(quality, results) > 0, margin))
    return [{**point, "front": i in best} for i, point in enumerate(points)]


def _sign(name: str, results: Results) -> int:
    """Return 1 if lower values of a column are better, else -1."""
    lower = COLUMNS[name].lower if name in COLUMNS else results["direction"] == "min"
    return 1 if lower else -1


def _value(arm: Arm, measured: Costs, results: Results, name: str) -> float | None:
    if name == results["primary"]:
        return arm["mean"]
    counted = arm[name] if name in ("flops", "params") else None
    return measured.get(arm["name"], {}).get(name) or counted


def _on_equal_data(results: Results) -> list[Arm]:
    bases = rungs.baselines(results) | {arm["name"]: arm for arm in results["arms"] if arm["against"] is None}
    other = {base["name"] for base in bases.values() if changes_data(base["diff"])}
    return [arm for arm in results["arms"] if (arm["against"] or arm["name"]) not in other]


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


def describe_frontiers(frontier: dict[str, list[dict[str, Any]]], metric: str) -> Iterator[str]:
    """Yield a sentence for each Pareto front."""
    for title, points in frontier.items():
        arms = [point["arm"] for point in sorted(points, key=lambda point: point["cost"]) if point["front"]]
        yield (
            f"Pareto front of {metric} and {title}, ignoring differences within the noise: {summary.join_and(arms)}."
        )
