"""The charts of the worth in compute: the law of the baseline with all arms, and the multipliers."""

from itertools import pairwise
from typing import Any

import altair as alt

from taetpu.report.charts import Spec, chart, named_axis, responsive_spec, tooltips
from taetpu.report.worth import LAW, MULTIPLIERS, worth_of
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results
from taetpu.stats.worth_results import RungWorth, ScalingLaw, Worth

HEIGHT, ROW, POINTS = 260, 44, 60
BASELINE = "baseline"
ALL = "all rungs"
SHAPES = ("circle", "diamond", "square", "triangle-up", "triangle-down", "cross", "stroke")
"""Shapes of the baseline and of arms, repeated if there are more arms."""


def worth_charts(results: Results) -> dict[str, Spec]:
    """Return the charts by name; none without a law."""
    worth = worth_of(results)
    if worth is None or worth["law"] is None:
        return {}
    charts = {LAW: law_chart(results, worth, worth["law"])}
    if any(arm["all"] for arm in worth["arms"].values()):
        charts[MULTIPLIERS] = multiplier_chart(worth, worth["law"])
    return charts


def law_chart(results: Results, worth: Worth, law: ScalingLaw) -> Spec:
    """Return the chart of all means over training FLOPs with the law, dashed outside of its rungs."""
    metric, known = describe_metric(results["plan"]), {arm["name"]: arm for arm in results["arms"]}
    rows = [{"arm": BASELINE, "flops": r["compute"], "mean": r["mean"], "rung": r["rung"]} for r in law["rungs"]]
    for name, arm in worth["arms"].items():
        rows += [{"arm": name, "flops": known[of]["flops"], "mean": known[of]["mean"], "rung": rung}
                 for rung, of in arm["names"].items()]  # fmt: skip
    rows = [row for row in rows if row["flops"] and row["mean"] is not None]
    low, high = law["rungs"][0]["compute"], law["rungs"][-1]["compute"]
    reach = (high / low) ** (1 / (len(law["rungs"]) - 1))
    parts = [_line(law, *pair) for pair in pairwise((low / reach, low, high, high * reach))]
    x = alt.X("flops:Q", title="training FLOPs", scale=alt.Scale(type="log", nice=False, padding=8),
              axis=alt.Axis(format=".2~s", tickCount=5, grid=False))  # fmt: skip
    y = alt.Y("mean:Q", title=metric.title, scale=alt.Scale(zero=False, padding=12),
              axis=alt.Axis(tickCount=5, domain=False, ticks=False))  # fmt: skip
    names = [BASELINE, *worth["arms"]]
    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(names))]
    shape = alt.Shape("arm:N", title=None, sort=names, scale=alt.Scale(domain=names, range=shapes),
                      legend=alt.Legend(orient="top"))  # fmt: skip
    tip = tooltips("arm:N", "rung:N", alt.Tooltip("flops:Q", format=".4~s"), alt.Tooltip("mean:Q", format=".4f"))
    layers = [
        *(chart(part).mark_line(style="goal" if i != 1 else "zero").encode(x=x, y=y) for i, part in enumerate(parts)),
        chart(rows)
        .mark_point(size=70, opacity=1, filled=False, style="zero")
        .encode(x=x, y=y, shape=shape, tooltip=tip),
    ]
    return responsive_spec(layers, height=HEIGHT)


def _line(law: ScalingLaw, start: float, end: float) -> list[dict[str, float]]:
    computes = [start * (end / start) ** (i / POINTS) for i in range(POINTS + 1)]
    return [{"flops": c, "mean": law["floor"] + law["scale"] * (law["at"] / c) ** law["exponent"]} for c in computes]


def multiplier_chart(worth: Worth, law: ScalingLaw) -> Spec:
    """Return the chart of multipliers with their intervals: of each arm over all rungs, then at single rungs."""
    order = [ALL, *(rung["rung"] for rung in law["rungs"])]
    rows = [
        _row(name, rung, each)
        for name, arm in worth["arms"].items()
        if arm["all"]
        for rung, each in {ALL: arm["all"], **arm["rungs"]}.items()
    ]
    names = list(dict.fromkeys(row["arm"] for row in rows))
    x = alt.X("multiplier:Q", title="compute multiplier", axis=alt.Axis(format="~g", tickCount=6, grid=False),
              scale=alt.Scale(type="log", nice=False, padding=16))  # fmt: skip
    y = alt.Y("arm:N", sort=names, title=None, axis=named_axis(names))
    shown = {"y": y, "yOffset": alt.YOffset("rung:N", sort=order)}
    base = chart(rows)
    tip = tooltips("arm:N", "rung:N", alt.Tooltip("multiplier:Q", format=".3f"), "bound:N")
    layers: list[Any] = [
        chart([{}]).mark_rule(style="zero").encode(x=alt.XDatum(1)),
        base.transform_filter("datum.low !== null")
        .mark_rule(style="connection")
        .encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"), **shown),
        *(
            base.transform_filter(f"datum.whole === {whole}")
            .mark_point(filled=True, size=size, opacity=1, style=style)
            .encode(x=x, tooltip=tip, **shown)
            for whole, size, style in (("false", 24, "note"), ("true", 100, "zero"))
        ),
    ]
    return responsive_spec(layers, height=max(ROW, 16 * len(order)) * len(names))


def _row(name: str, rung: str, worth: RungWorth) -> dict[str, Any]:
    low, high = worth["ci95"] or (None, None)
    facts = {"arm": name, "rung": rung, "whole": rung == ALL, "bound": (worth["bound"] or "").replace("_", " ")}
    return {**facts, "multiplier": worth["multiplier"], "low": low, "high": high}
