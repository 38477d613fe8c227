"""Charts as Vega-Lite specs, built with Altair from plain data. What depends on light or dark is in `THEMES`."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from taetpu.report import summary
from taetpu.report.priors import NO_PRIORS, Priors
from taetpu.report.short_names import shorten_names

Spec = dict[str, Any]

COLOURS = {"better": "#2a7fc1", "worse": "#d5562f", "equivalent": "#3f9b6d", "inconclusive": "#8a9099",
           "interim": "#8a9099", "single seed": "#8a9099", "baseline": "#8a9099"}  # fmt: skip
"""By verdict; blue and vermilion stay apart for colour-blind eyes, in light and dark."""
SHAPES = {
    "better": "diamond",
    "worse": "square",
    "equivalent": "triangle-up",
    "inconclusive": "circle",
    "interim": "circle",
    "single seed": "circle",
    "baseline": "circle",
}
ROW = 30
"""Height of an arm's row in the forest plot, in pixels."""
PRIOR_TOOLTIP = {"arm": "arm", "found": "elsewhere", "what": "what", "sources": "source"}
LABEL_WIDTH, NARROW_LABEL_WIDTH = 34, 16
"""Characters of a name beside an axis, and on a page narrower than `NARROW` pixels."""
NARROW = 600
SYMLOG_RATIO = 30
"""Effects this many times the typical half interval need a scale that is logarithmic outside the noise."""


def _theme(text: str, faint: str, grid: str, band: str) -> Spec:
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
    axis = {"labelColor": text, "titleColor": text, "gridColor": grid, "tickColor": grid, "domainColor": grid}
    return {
        "background": None,
        "font": font,
        "view": {"stroke": None},
        "axis": {**axis, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 10},
        "style": {
            "zero": {"color": text, "strokeWidth": 1},
            "equivalence": {"color": COLOURS["equivalent"], "opacity": 0.13},
            "bound": {"color": COLOURS["equivalent"], "strokeWidth": 1, "strokeDash": [4, 3]},
            "noise": {"color": band},
            "note": {"color": faint, "fontSize": 12},
            "baseline-line": {"color": text, "strokeWidth": 1.4, "strokeDash": [4, 3]},
            "baseline-band": {"color": faint},
            "front": {"color": faint, "strokeWidth": 1, "strokeDash": [3, 3]},
            "arm-line": {"strokeWidth": 2},
        },
    }


THEMES = {
    "light": _theme(text="#3d434b", faint="#7b828c", grid="#e4e7eb", band="#eceff3"),
    "dark": _theme(text="#c9ced6", faint="#8b93a0", grid="#2c3138", band="#262b33"),
}
INLINE_THEME = _theme(text="currentColor", faint="currentColor", grid="#8a909955", band="#8a909930")
"""For an SVG that stands inside a page, light or dark: it takes the colour of the text around it."""


def forest_plot(results: Mapping[str, Any], priors: Priors = NO_PRIORS) -> Spec | None:
    """Every arm's effect with its interval and its seeds, the baseline's noise, and at the right what others found.
    None for a baseline alone.
    """
    arms = [arm for arm in results["arms"] if arm["against"]]
    if not arms:
        return None
    rows, seeds = [_forest_row(arm) for arm in arms], _differences(results)
    values = [row[end] for row in rows for end in ("effect", "low", "high") if row[end] is not None]
    values += [seed["difference"] for seed in seeds]
    scale, ticks = _scale(values, [arm["ci95"] for arm in arms if arm["ci95"]])
    title = _forest_title(results, bool(ticks))
    axis = alt.Axis(title=title, values=ticks, format="~g") if ticks else alt.Axis(title=title, tickCount=7)
    order = [arm["name"] for arm in sorted(arms, key=lambda arm: _rank(arm, results["direction"]))]
    y = alt.Y("arm:N", sort=order, title=None, axis=named_axis(order, labelPadding=10))
    x = alt.X("effect:Q", scale=scale, axis=axis)
    layers = [*_reference(results), *_estimates(rows, x, y), _seed_dots(seeds, y, summary.mean_places(results))]
    layers += _prior_notes([arm for arm in arms if arm["name"] in priors], priors, results["direction"], y)
    return responsive_spec(alt.layer(*layers).properties(height=ROW * len(arms)))


def _forest_title(results: Mapping[str, Any], logarithmic: bool) -> list[str]:
    lower, higher = ("better", "worse") if results["direction"] == "min" else ("worse", "better")
    lines = [f"{summary.metric_with_unit(results['primary'])}: arm minus baseline"]
    if logarithmic:
        lines.append("logarithmic outside the noise")
    return [*lines, f"\u2190 {lower} \u00b7 {higher} \u2192"]


def _reference(results: Mapping[str, Any]) -> list[alt.Chart]:
    """The line of no effect, before a band of one standard deviation of the baseline over its seeds, and one of the
    differences that are too small to matter.
    """
    sd, small = results["noise_floor"]["sd"], results["plan"]["equivalence"]
    layers = [_band(sd, "noise")] if sd else []
    if small:
        bounds = [{"bound": -small}, {"bound": small}]
        layers += [_band(small, "equivalence"), chart(bounds).mark_rule(style="bound").encode(x="bound:Q")]
    return [*layers, chart([{}]).mark_rule(style="zero").encode(x=alt.datum(0))]


def _band(half: float, style: str) -> alt.Chart:
    return chart([{"from": -half, "to": half}]).mark_rect(style=style).encode(x="from:Q", x2="to:Q")


def _estimates(rows: list[dict[str, Any]], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Interval and point of each arm, or a note in place of both."""
    table = chart(rows).encode(y=y, color=verdict_colour())
    known = table.transform_filter("datum.effect !== null")
    interval = table.transform_filter("datum.low !== null").mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    point = known.mark_point(filled=True, size=110, opacity=1)
    unknown = chart(rows).transform_filter("datum.effect === null").encode(y=y, x=alt.datum(0))
    note = unknown.mark_text(align="left", dx=6, style="note", text="no effect can be estimated")
    intervals = [interval] if any(row["low"] is not None for row in rows) else []
    return [*intervals, point.encode(x=x, shape=verdict_shape(), tooltip=["arm:N", "evidence:N"]), note]


def _prior_notes(arms: list[Mapping[str, Any]], priors: Priors, direction: str, y: alt.Y) -> list[alt.Chart]:
    """Beside the plot, what others found of an arm's change, with an arrow to where that would lie in it."""
    if not arms:
        return []
    better, worse = ("\u2190", "\u2192") if direction == "min" else ("\u2192", "\u2190")
    says = {"better": f"{better} better", "worse": f"{worse} worse", "mixed": "\u00b1 mixed"}
    rows = [
        {"arm": arm["name"], "says": says.get(priors[arm["name"]].found, "\u2248 alike"), **vars(priors[arm["name"]])}
        for arm in arms
    ]
    told = [alt.Tooltip(f"{name}:N", title=title) for name, title in PRIOR_TOOLTIP.items()]
    beside = {"align": "left", "dx": 10, "style": "note", "clip": False}
    found = chart(rows).mark_text(**beside).encode(y=y, x=alt.value("width"), text="says:N", tooltip=told)
    head = chart([{}]).mark_text(**beside, text="elsewhere").encode(x=alt.value("width"), y=alt.value(-6))
    return [found, head]


def _seed_dots(seeds: list[dict[str, Any]], y: alt.Y, places: int) -> alt.Chart:
    dots = chart(seeds).mark_circle(size=26, opacity=0.45, yOffset=8)
    difference = alt.Tooltip("difference:Q", format=f"+.{places}f")
    return dots.encode(y=y, x="difference:Q", color=verdict_colour(), tooltip=["arm:N", "seed:N", difference])


def named_axis(names: Sequence[str], long: int = LABEL_WIDTH, **options: Any) -> alt.Axis:
    """An axis of names, such as arms. Long names are shortened so that they still differ: Vega would cut their ends."""
    return alt.Axis(ticks=False, domain=False, **options, **label_options(names, long))


def label_options(names: Sequence[str], long: int = LABEL_WIDTH) -> dict[str, Any]:
    """Options of an axis or a legend that shorten its names to `long` characters, to `SHORT` on a narrow page."""
    if all(len(name) <= min(long, NARROW_LABEL_WIDTH) for name in names):
        return {"labelLimit": 0}
    wide, narrow = (
        json.dumps(dict(zip(names, shorten_names(names, width), strict=True)))
        for width in (long, min(long, NARROW_LABEL_WIDTH))
    )
    return {"labelLimit": 0, "labelExpr": f"(windowSize()[0] < {NARROW} ? {narrow} : {wide})[datum.value]"}


def verdict_colour() -> alt.Color:
    """Colour that says the verdict."""
    scale = alt.Scale(domain=list(SHAPES), range=[COLOURS[verdict] for verdict in SHAPES])
    return alt.Color("verdict:N", scale=scale, legend=None)


def verdict_shape() -> alt.Shape:
    """A shape that says it again."""
    return alt.Shape("verdict:N", scale=alt.Scale(domain=list(SHAPES), range=list(SHAPES.values())), legend=None)


def chart(rows: list[dict[str, Any]]) -> alt.Chart:
    """A chart of these rows."""
    return alt.Chart(alt.Data(values=rows))  # pyright: ignore[reportArgumentType]


def _rank(arm: Mapping[str, Any], direction: str) -> tuple[bool, float]:
    """Best first, what has no effect last."""
    effect = arm["effect"]
    return effect is None, (effect or 0.0) * (1 if direction == "min" else -1)


def _forest_row(arm: Mapping[str, Any]) -> dict[str, Any]:
    low, high = arm["ci95"] or (None, None)
    row = {"arm": arm["name"], "verdict": summary.verdict_label(arm), "evidence": arm["evidence"]}
    return {**row, "effect": arm["effect"], "low": low, "high": high}


def _differences(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Arm minus baseline on each seed that both finished."""
    values = {
        arm["name"]: {run["seed"]: run["value"] for run in arm["runs"] if run["value"] is not None}
        for arm in results["arms"]
    }
    return [
        {
            "arm": arm["name"],
            "verdict": summary.verdict_label(arm),
            "seed": seed,
            "difference": value - values[arm["against"]][seed],
        }
        for arm in results["arms"]
        if arm["against"]
        for seed, value in values[arm["name"]].items()
        if seed in values[arm["against"]]
    ]


def _scale(values: Sequence[float], intervals: Sequence[Sequence[float]]) -> tuple[alt.Scale, list[float] | None]:
    """A linear scale, or one that is logarithmic outside the noise where one effect would flatten the others."""
    largest = max(map(abs, values), default=1.0)
    typical = float(np.median([(high - low) / 2 for low, high in intervals])) if intervals else 0.0
    if not typical or largest < SYMLOG_RATIO * typical:
        return alt.Scale(zero=True, padding=8, nice=False), None
    inner = 10 ** math.floor(math.log10(2 * typical))
    powers = [inner * 10**i for i in range(math.floor(math.log10(largest / inner)) + 1)]
    ticks = [0.0, *powers, *(3 * power for power in powers if 3 * power <= largest)]
    below, above = min(values) < -inner, max(values) > inner
    signed = {sign * tick for tick in ticks for sign, used in ((-1, below), (1, above)) if used}
    return alt.Scale(type="symlog", constant=inner, padding=8, nice=False), sorted(signed)


def responsive_spec(chart: Any) -> Spec:
    """The spec, as wide as its place on the page; colours come from the page's theme."""
    fitted = chart.properties(width="container", autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return {key: value for key, value in fitted.to_dict().items() if key != "config"}
