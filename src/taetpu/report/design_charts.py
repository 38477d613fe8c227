"""Charts for designs and costs: tradeoffs, effects over scales, and interactions."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from functools import cache
from itertools import permutations
from typing import Any

import altair as alt

from taetpu.report import factors, rungs, summary
from taetpu.report.charts import Spec, chart, named_axis, responsive_spec, tooltips, verdict_colour, verdict_shape
from taetpu.report.components import CHART, components_chart, examined_parts
from taetpu.report.designs import heatmap_name
from taetpu.report.frontier import column_title, front_columns, front_points, frontiers
from taetpu.report.goal_chart import goal_charts
from taetpu.report.item_charts import item_score_chart
from taetpu.report.item_scores import chart_name, charted_scores
from taetpu.report.point_labels import REACH, SIDES, place_labels
from taetpu.report.repeats import ELSEWHERE, HEATMAP, PROFILES, across_cells, score_differences
from taetpu.report.rungs import in_order
from taetpu.report.short_names import shorten_names
from taetpu.report.summary import Costs
from taetpu.report.verdict_style import MARKS
from taetpu.report.worth_chart import worth_charts
from taetpu.stats import formatting
from taetpu.stats.formatting import fixed_places
from taetpu.stats.ladder_results import LadderArm
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results, TasksDesign, Term

HEIGHT, TRADEOFF_HEIGHT = 150, 230
PLOT_WIDTH = 240
"""Width that the points of a tradeoff chart have at least on pages and in files, in pixels."""
FACTOR, POINT = 17, 22
"""Maximum number of characters in a factor's label in the heatmap, and in an arm's label in the tradeoff chart."""
CELL = 48
"""Height of a row in the heatmap, in pixels."""
LEVEL_LABELS = 50
"""Number of characters from which on the labels below the heatmap are slanted."""
DARK_CELL = 0.75
"""Share of the largest effect from which a cell needs bright text on a light page."""


def draw_panels(results: Results, measured: Costs) -> dict[str, Spec]:
    """Return all charts by the names under which sections refer to them."""
    costs = frontiers(results, measured)
    places, metric = fixed_places(summary.mean_places(results)), describe_metric(results["plan"]).title
    panels = {title: tradeoff_chart(points, title, metric, places) for title, points in costs.items()}
    designs = results["designs"]
    panels |= {chart_name(score): item_score_chart(score) for score in charted_scores(results)}
    panels |= goal_charts(results)
    panels |= worth_charts(results)
    if examined_parts(results):
        panels[CHART] = components_chart(results)
    if "ladder" in designs:
        panels |= {f"ladder {name}": ladder_chart(results, arm) for name, arm in designs["ladder"]["arms"].items()}
    if tasks := designs.get("tasks"):
        names = [name for name, entry in in_order(results, tasks["arms"]) if entry["pooled"]]
        panels[HEATMAP] = heatmap([*score_differences(tasks)], tasks["rungs"], names, "max")
        panels[PROFILES] = profiles_chart(tasks)
    if across := designs.get("across"):
        names, cells = [name for name, _ in in_order(results, across["arms"])], [*across_cells(results, across)]
        panels[ELSEWHERE] = heatmap(cells, across["rungs"], names, results["direction"])
    for rung, entry in designs["factorial"]["scales"].items() if "factorial" in designs else ():
        if known := factors.single_effects(entry["terms"]):
            panels[heatmap_name(rung)] = interaction_heatmap(known, results["direction"], places)
    return panels


def interaction_heatmap(terms: Sequence[Term], direction: str, places: int = 0) -> Spec:
    """Return the heatmap of two-factor interactions, with main effects on the diagonal."""
    cells = []
    for term in terms:
        first, last = term["factors"][0], term["factors"][-1]
        shown = {"effect": term["effect"], "text": formatting.effect(term["effect"], term["ci95"], places)}
        cells += [{"column": column, "row": row, **shown} for column, row in {(first, last), (last, first)}]
    names = list(dict.fromkeys(term["factors"][0] for term in terms if len(term["factors"]) == 1))
    return heatmap(cells, names, names, direction)


def heatmap(cells: list[dict[str, Any]], columns: list[str], rows: list[str], direction: str) -> Spec:
    """Return a heatmap of effects: cells with `column`, `row`, `effect` and `text`."""
    most = max((abs(cell["effect"]) for cell in cells), default=1.0) or 1.0
    colours = alt.Scale(domain=[-most, 0, most], range="diverging", reverse=direction != "min", interpolate="rgb")
    across, down = (named_axis(names, FACTOR, labelAngle=0) for names in (columns, rows))
    if len(columns) * min(FACTOR, max(map(len, columns), default=0)) > LEVEL_LABELS:
        across = named_axis(columns, FACTOR, labelAngle=-35, labelAlign="right")
    base = chart(cells).encode(
        x=alt.X("column:N", sort=columns, title=None, axis=across), y=alt.Y("row:N", sort=rows, title=None, axis=down)
    )
    squares = base.mark_rect(stroke="white", strokeWidth=2).encode(
        color=alt.Color("effect:Q", scale=colours, legend=None), tooltip=tooltips("column:N", "row:N", "text:N")
    )
    texts = [
        base.transform_filter(f"{sign}(abs(datum.effect) > {DARK_CELL * most})")
        .mark_text(style=style)
        .encode(text=alt.Text("text:N"))
        for sign, style in (("!", "cell"), ("", "dark-cell"))
    ]
    return responsive_spec([squares, *texts], height=CELL * len(rows) + CELL)


def profiles_chart(tasks: TasksDesign) -> Spec:
    """Return the performance profiles: the share of runs that reach each score, a line for each arm."""
    rows = [
        {"arm": name, "score": level, "share": share}
        for name, entry in tasks["arms"].items()
        for level, share in zip(tasks["levels"], entry["profile"] or (), strict=False)
    ]
    axis = alt.Axis(tickCount=5, domain=False, ticks=False)
    lines = chart(rows).mark_line(interpolate="step-after").encode(
        x=alt.X("score:Q", title="score", scale=alt.Scale(domain=[0, 1])),
        y=alt.Y("share:Q", title="share of runs", scale=alt.Scale(domain=[0, 1]), axis=axis),
        strokeDash=alt.StrokeDash("arm:N", title=None, sort=[*tasks["arms"]]),
        tooltip=tooltips("arm:N", "score:Q", "share:Q"),
    )  # fmt: skip
    return responsive_spec([lines], height=TRADEOFF_HEIGHT)


def tradeoff_chart(points: list[dict[str, Any]], title: str, metric: str, places: int = 4) -> Spec:
    """Return the chart of means over cost, with a line that joins the arms on the Pareto front.

    Points are labelled as far as there is room: first the Pareto front, then arms with a verdict.
    """
    rows = _labelled(points)
    return _tradeoff(chart(rows), title, metric, {row["side"] for row in rows}, f".{places}f")


def frontier_charts(results: Results, measured: Costs) -> dict[str, Spec]:
    """Return a `tradeoff_chart` of every two columns, in both orders, by their names: `params val/loss`.

    The first column is on the horizontal axis.
    """
    titles = {name: column_title(name, results) for name in front_columns(results, measured)}
    return {
        f"{x} {y}": _fill(_labelled(front_points(results, measured, x, y)), titles[x], titles[y])
        for x, y in permutations(titles, 2)
    }


@cache
def _blank(sides: frozenset[str]) -> Spec:
    """Return a chart of `_tradeoff` without points. Building the chart of every two columns would take seconds."""
    return _tradeoff(alt.Chart(alt.NamedData("points")), "", "", sides, ".4~s")


def _fill(rows: list[dict[str, Any]], x: str, y: str) -> Spec:
    """Return a chart of `_tradeoff` with labelled points and titles."""
    spec = deepcopy(_blank(frozenset(row["side"] for row in rows)))
    for layer in spec["layer"]:
        layer["encoding"]["x"]["title"], layer["encoding"]["y"]["title"] = x, y
        for tip in layer["encoding"].get("tooltip", ()):
            tip["title"] = {"cost": x, "mean": y}.get(tip["field"], tip["field"])
    return {**spec, "datasets": {"points": rows}}


def _labelled(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = shorten_names([point["arm"] for point in points], POINT)
    order = sorted(range(len(points)), key=lambda i: _label_rank(points[i]))
    sides = place_labels([(p["cost"], p["mean"]) for p in points], names, order, (PLOT_WIDTH, TRADEOFF_HEIGHT))
    return [{**point, "label": name, "side": side} for point, name, side in zip(points, names, sides, strict=True)]


def _tradeoff(data: alt.Chart, title: str, metric: str, sides: Collection[str], decimals: str) -> Spec:
    x = alt.X("cost:Q", title=title, scale=alt.Scale(zero=False, nice=False, padding=24),
              axis=alt.Axis(format=".4~s", tickCount=4, grid=False))  # fmt: skip
    axis = alt.Axis(tickCount=5, domain=False, ticks=False)
    y = alt.Y("mean:Q", title=metric, scale=alt.Scale(zero=False, padding=24), axis=axis)
    base = data.encode(x=x, y=y)
    mean = alt.Tooltip("mean:Q", format=decimals)
    tip = tooltips(alt.Tooltip("arm:N"), alt.Tooltip("cost:Q", format=".4~s"), mean, "verdict:N")
    dots = base.mark_point(filled=True, size=80, opacity=0.9)
    labels = [
        base.transform_filter(f"datum.side === '{side}'")
        .mark_text(align=align, baseline=baseline, dx=REACH * right, dy=REACH * down, style="note")
        .encode(text=alt.Text("label:N"))
        for side, (align, baseline, right, down) in SIDES.items()
        if side in sides
    ]
    layers = [
        base.transform_filter("datum.front").mark_line(interpolate="step-after", style="front"),
        dots.encode(color=verdict_colour(), shape=verdict_shape(), tooltip=tip),
        *labels,
    ]
    return responsive_spec(layers, height=TRADEOFF_HEIGHT)


def _label_rank(point: Mapping[str, Any]) -> tuple[bool, bool, int]:
    return not point["front"], point["verdict"] != "baseline", [*MARKS].index(point["verdict"])


def ladder_chart(results: Results, arm: LadderArm) -> Spec:
    """Return the chart of an arm's effects, with their intervals, over scales."""
    names = arm["rungs"]
    arms = {entry["name"]: entry for entry in results["arms"]}
    measure, bases, rows = rungs.trend_measure(results), rungs.baselines(results), []
    for rung in (rung for rung in rungs.ordered(results) if rung in names):
        at = arms[names[rung]]
        low, high = at["ci95"] or (at["effect"], at["effect"])
        facts = {"scale": rung, "size": measure and bases[rung][measure], "verdict": summary.verdict_label(at)}
        rows.append(
            {**facts, "effect": at["effect"], "low": low, "high": high, "text": summary.format_effect(at, results)}
        )
    known = [row for row in rows if row["effect"] is not None]
    if measure is None:
        x = alt.X("scale:N", sort=[row["scale"] for row in rows], title=None, axis=alt.Axis(labelAngle=0))
    else:
        x = alt.X("size:Q", scale=alt.Scale(type="log", nice=False, padding=14),
                  title=f"{rungs.NAMES[measure]} of the baseline",
                  axis=alt.Axis(values=[row["size"] for row in rows], format=".3~s", grid=False))  # fmt: skip
    axis = alt.Axis(tickCount=4, domain=False, ticks=False)
    y = alt.Y("effect:Q", title="effect", scale=alt.Scale(zero=True), axis=axis)
    base = chart(known).encode(x=x, tooltip=tooltips("scale:N", alt.Tooltip("text:N", title="effect"), "verdict:N"))
    layers = [
        chart([{}]).mark_rule(style="zero").encode(y=alt.YDatum(0)),
        *([base.mark_line(style="connection").encode(y=y)] if measure else []),
        base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), color=verdict_colour()),
        base.mark_point(filled=True, size=90, opacity=1).encode(y=y, color=verdict_colour(), shape=verdict_shape()),
    ]
    return responsive_spec(layers, height=HEIGHT)
