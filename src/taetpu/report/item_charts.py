"""The chart of a score on items by arm: over all items, and by group such as a phenomenon."""

from typing import Any

import altair as alt

from taetpu.report.charts import Spec, chart, named_axis, responsive_spec
from taetpu.report.metric_charts import BASELINE, TEN_COLOURS, TWENTY_COLOURS
from taetpu.stats.item_results import ItemScore

ALL = "all items"
ROW, GAP = 13, 14
"""Height of an arm in a group, and distance between groups, in pixels."""


def item_score_chart(score: ItemScore) -> Spec:
    """Return the chart of an accuracy, or of another score, with 95 % intervals over seeds and items."""
    rows: list[dict[str, Any]] = []
    for arm in score["arms"]:
        for entry in ({**arm, "group": ALL, "items": score["items"]}, *arm["groups"]):
            low, high = entry["ci95"] or (None, None)
            rows.append({"group": entry["group"], "items": entry["items"], "arm": arm["name"], "mean": entry["mean"],
                         "low": low, "high": high})  # fmt: skip
    names, groups = [arm["name"] for arm in score["arms"]], list(dict.fromkeys(row["group"] for row in rows))
    bases = [arm["name"] for arm in score["arms"] if arm["against"] is None]
    scheme = iter(TEN_COLOURS if len(names) <= len(TEN_COLOURS) else TWENTY_COLOURS)
    colours = [BASELINE if name == bases[0] else next(scheme) for name in names]
    legend = alt.Legend(title=None, orient="top", columns=4, labelLimit=180)
    base = chart(rows).encode(
        y=alt.Y("group:N", sort=groups, title=None, axis=named_axis(groups)),
        yOffset=alt.YOffset("arm:N", sort=names),
        color=alt.Color("arm:N", sort=names, scale=alt.Scale(domain=names, range=colours), legend=legend),
    )
    x = alt.X("mean:Q", title=score["name"], scale=alt.Scale(zero=False, padding=8))
    tip = [alt.Tooltip("arm:N"), alt.Tooltip("group:N"), alt.Tooltip("items:Q"), alt.Tooltip("mean:Q", format=".3f")]
    intervals = (
        base.transform_filter("datum.low !== null")
        .mark_rule(strokeWidth=1.5)
        .encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    )
    layers = [intervals, base.mark_point(filled=True, size=45, opacity=1).encode(x=x, tooltip=tip)]
    if score["chance"] is not None:
        layers = [chart([{}]).mark_rule(style="bound").encode(x=alt.XDatum(score["chance"])), *layers]
    height = len(groups) * (len(names) * ROW + GAP)
    return responsive_spec(layers, height=max(height, 60))
