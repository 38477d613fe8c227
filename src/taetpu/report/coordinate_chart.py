"""The chart of `taetpu plan --coordinates`: sizes of activations over the width of the model."""

from collections.abc import Mapping
from typing import Any

import altair as alt

from taetpu.report.charts import THEMES, chart

WIDTH, HEIGHT = 150, 110
"""Size of a panel in pixels."""


def coordinate_chart(measured: Mapping[str, Any]) -> alt.TopLevelMixin:
    """Return a chart with a row of panels for each arm and a panel for each site.

    Each line shows the mean size at each width: dashed before training, else of the change after a step. The sizes of
    several layers are averaged. Both axes are logarithmic. Sizes of 0 are omitted.
    """
    rows = [row for arm in measured["arms"] for row in _points(arm)]
    order = ["before", *map(str, range(1, measured["steps"] + 1))]
    widths = sorted({row["width"] for row in rows})
    x = alt.X("width:Q", scale=alt.Scale(type="log"), axis=alt.Axis(values=widths, labelOverlap=True), title="dim")
    y = alt.Y("size:Q", scale=alt.Scale(type="log"), title="size", axis=alt.Axis(format="~g", tickCount=4))
    colours = alt.Scale(domain=order, scheme="viridis")
    dashes = alt.Scale(domain=order, range=[[4, 3], *[[1, 0]] * measured["steps"]])
    line = chart(rows).mark_line(point=True).encode(
        x=x,
        y=y,
        color=alt.Color("step:N", sort=order, scale=colours, title="after step"),
        strokeDash=alt.StrokeDash("step:N", sort=order, scale=dashes, title="after step"),
    )  # fmt: skip
    sites = list(dict.fromkeys(row["site"] for row in rows))
    names = list(dict.fromkeys(row["arm"] for row in rows))
    panels = line.properties(width=WIDTH, height=HEIGHT).facet(
        row=alt.Row("arm:N", sort=names, title=None), column=alt.Column("site:N", sort=sites, title=None)
    )
    return panels.configure(**{**THEMES["light"], "background": "white"})


def _points(arm: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a point for each site, step and width, averaged over layers."""
    groups: dict[tuple[str, str, int], list[float]] = {}
    for row in arm["sites"]:
        site = row["site"].split()[0]
        lines = {"before": row["sizes"]} if row["moment"] == "before" else dict(enumerate(row["by_step"], 1))
        for step, sizes in lines.items():
            for width, size in zip(arm["widths"], sizes, strict=True):
                groups.setdefault((site, str(step), width), []).append(size)
    return [
        {"arm": arm["arm"], "site": site, "step": step, "width": width, "size": sum(sizes) / len(sizes)}
        for (site, step, width), sizes in groups.items()
        if 0 < sum(sizes) < float("inf")
    ]
