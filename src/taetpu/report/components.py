"""The parts of a model in the report of `taetpu components`: trained without, removed after training, healed."""

from typing import Any

import altair as alt

from taetpu.report import summary
from taetpu.report.charts import (
    LOGARITHMIC,
    ROW,
    Spec,
    band,
    chart,
    effect_scale,
    named_axis,
    tooltips,
    verdict_colour,
    verdict_shape,
)
from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.components import UNCLEAR, WAYS, WORDS
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Components, Experiment, Part, Results

TITLES = {"without": "trained without it", "removed": "removed after training", "healed": "removed and healed"}
TITLE = "Necessary, redundant or compensated?"
CHART = "components"
"""The name of the chart in `page.chart_data`."""
CAPTION = (
    "Effects with 95 % intervals: a square hurts, a triangle is equivalent, a circle is unclear; the band is the margin"
)
BY_WORD = {word: verdict for verdict, word in WORDS.items()}
WIDTH = 165
"""Width of a panel, in pixels."""


def components_section(results: Results, design: Components) -> Section:
    """Return the section with the three experiments on each part, and the part's name."""
    steps, margin = f"{design['steps']:,} steps", results["plan"]["equivalence"]
    lead = (
        f"Each part of the baseline of study {design['of']} was removed in three ways: the model was trained without "
        f"it; it was removed from the trained model; and the model was then trained for {steps} more (healed). The "
        "effects are differences to the baseline, to the trained model, and to the intact model after the same number "
        "of further steps."
    )
    notes = [
        "Necessary: all three hurt. Redundant: all three are equivalent. Compensated: only the removal after training "
        "hurts, so a model learns to do without the part. If any of the three is unclear, so is the name. Other "
        "patterns have no name.",
        f"Equivalent means that the effect is smaller than the margin of {margin:g}, and not that it is zero."
        if margin is not None
        else "The study sets no equivalence margin, so nothing can be called equivalent: see --equivalence.",
        "The parts were removed one at a time. Two parts that replace each other can both seem redundant.",
    ]
    rows = [[row["part"], *(_cell(row[way], results) for way in WAYS), row["name"] or "-"] for row in design["rows"]]
    return Section(TITLE, lead, [Table(("part", *TITLES.values(), "name"), rows)],
                   [(CAPTION, CHART)], notes)  # fmt: skip


def _cell(cell: Experiment, results: Results) -> str:
    effect, interval = summary.format_effect(cell, results), summary.format_interval(cell["ci95"], results)
    return f"{effect} ({interval}) {cell['says']}"


def examined_parts(results: Results) -> list[Part]:
    """Return the parts of a component study; empty without its analysis."""
    design = results["designs"].get("components")
    return design["rows"] if design else []


def part_rows(results: Results) -> list[dict[str, str]]:
    """Return a row for each experiment on each part, as text for a terminal."""
    return [
        {
            "part": row["part"] if way == WAYS[0] else "",
            "experiment": way,
            "effect": summary.format_effect(row[way], results),
            "95 % interval": summary.format_interval(row[way]["ci95"], results),
            "says": row[way]["says"],
            "name": (row["name"] or "-") if way == WAYS[0] else "",
        }
        for row in examined_parts(results)
        for way in WAYS
    ]


def components_chart(results: Results) -> Spec:
    """Return the chart of the three effects of each part, with intervals and the margin of equivalence."""
    return {key: value for key, value in draw_components(results).to_dict().items() if key != "config"}


def draw_components(results: Results) -> Any:
    """Return `components_chart` as an Altair chart."""
    parts, margin = examined_parts(results), results["plan"]["equivalence"]
    cells = [row[way] for row in parts for way in WAYS]
    values = [end for cell in cells for end in (cell["effect"], *(cell["ci95"] or ())) if end is not None]
    intervals = [cell["ci95"] for cell in cells if cell["ci95"]]
    scale, ticks = effect_scale([*values, *([] if margin is None else [-margin, margin])], intervals)
    ends: dict[str, Any] = {"values": ticks, "format": "~g", "labelOverlap": True} if ticks else {"tickCount": 4}
    order = [row["part"] for row in parts]
    panels = []
    for number, (way, title) in enumerate(TITLES.items()):
        names = named_axis(order, labelPadding=8) if number == 0 else None
        y = alt.Y("part:N", sort=order, title=None, axis=names)
        rows = [{"part": row["part"], **_drawn(row[way])} for row in parts]
        title_lines = [f"effect on {describe_metric(results['plan']).label}", *([LOGARITHMIC] if ticks else [])]
        axis = alt.Axis(title=title_lines if number == 1 else None, **ends)
        layers = [*_margin(margin), *_points(rows, y, alt.X("effect:Q", scale=scale, axis=axis))]
        caption = alt.TitleParams(title, anchor="start", fontSize=12, fontWeight="normal")
        panels.append(alt.layer(*layers).properties(width=WIDTH, height=ROW * len(order), title=caption))
    names = [{"part": row["part"], "name": row["name"] or "", "unclear": row["name"] == UNCLEAR} for row in parts]
    y = alt.Y("part:N", sort=order, title=None, axis=None)
    weight = alt.condition("datum.unclear", alt.value(0.6), alt.value(1.0))
    text = chart(names).mark_text(align="left", x=2, style="note").encode(y=y, text=alt.Text("name:N"), opacity=weight)
    panels.append(text.properties(width=70, height=ROW * len(order)))
    return alt.hconcat(*panels, spacing=12).resolve_scale(x="shared")


def _drawn(cell: Experiment) -> dict[str, Any]:
    low, high = cell["ci95"] or (None, None)
    places = formatting.effect_places(cell["effect"] or 0.0, cell["ci95"])
    text = formatting.effect(cell["effect"], cell["ci95"], places)
    facts = {"says": cell["says"], "verdict": BY_WORD[cell["says"]], "text": text}
    return {**facts, "effect": cell["effect"], "low": low, "high": high}


def _margin(margin: float | None) -> list[alt.Chart]:
    zero = chart([{}]).mark_rule(style="zero").encode(x=alt.XDatum(0))
    if margin is None:
        return [zero]
    return [band(margin, "equivalence"), zero]


def _points(rows: list[dict[str, Any]], y: alt.Y, x: alt.X) -> list[alt.Chart]:
    base = chart(rows).transform_filter("datum.effect !== null").encode(y=y, color=verdict_colour())
    interval = (
        base.transform_filter("datum.low !== null")
        .mark_rule(strokeWidth=2)
        .encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    )
    tip = tooltips("part:N", "says:N", alt.Tooltip("text:N", title="effect"))
    return [interval, base.mark_point(filled=True, size=90, opacity=1).encode(x=x, shape=verdict_shape(), tooltip=tip)]
