"""Charts as Vega-Lite specs, built with Altair from plain data. `THEMES` defines the light and dark colours."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from taetpu.report import rungs, summary
from taetpu.report.judged import noise_band
from taetpu.report.short_names import shorten_names
from taetpu.report.verdict_style import COLOURS, DARK, LIGHT, SHAPES
from taetpu.stats.formatting import fixed_places, number
from taetpu.stats.load import COMPLETED
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Arm, Results

Spec = dict[str, Any]

ROW, LEAST_ROW, TALL = 30, 13, 420
"""Height of an arm's row in the forest plot in pixels: at most, and at least if the rows would exceed a height."""
LABEL_WIDTH, NARROW_LABEL = 26, 18
"""Maximum number of characters in a name on an axis, also in windows narrower than `NARROW` pixels."""
NARROW = 600
SIDES = ("left", "right", "bottom")
VALIDATE = False
"""Whether specs are checked against the schema of Vega-Lite. Only tests of the report do: it takes half of the time."""
LOGARITHMIC = "linear near 0, logarithmic beyond"
"""Remark on a symlog axis."""
SYMLOG_RATIO = 30
"""The scale is symlog if the largest absolute value is at least this multiple of the intervals' median half-width."""


def _theme(
    text: str, faint: str, grid: str, band: str, palette: Mapping[str, str], middle: str, on_verdict: str
) -> Spec:
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
    axis = {"labelColor": text, "titleColor": text, "gridColor": grid, "tickColor": grid, "domainColor": grid}
    return {
        "background": None,
        "font": font,
        "view": {"stroke": None},
        "axis": {**axis, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 10},
        "title": {"color": text},
        "legend": {"labelColor": text, "titleColor": text, "titleFontWeight": "normal"},
        "range": {
            "category": [palette[verdict] for verdict in SHAPES],
            "diverging": [palette["better"], middle, palette["worse"]],
        },
        "style": {
            "zero": {"color": text, "strokeWidth": 1},
            "equivalence": {"color": palette["equivalent"], "opacity": 0.13},
            "bound": {"color": palette["equivalent"], "strokeWidth": 1, "strokeDash": [4, 3]},
            "noise": {"color": band},
            "note": {"color": faint, "fontSize": 12},
            **{verdict: {"color": palette[verdict], "fontSize": 12} for verdict in ("better", "worse")},
            "cell": {"color": "#1d2126", "fontSize": 12},
            "dark-cell": {"color": on_verdict, "fontSize": 12},
            "baseline-line": {"color": text, "strokeWidth": 1.4, "strokeDash": [4, 3]},
            "baseline-range": {"color": text, "strokeWidth": 0.7, "strokeDash": [1, 2]},
            "connection": {"color": faint, "strokeWidth": 1},
            "goal": {"color": text, "strokeWidth": 1.4, "strokeDash": [5, 4]},
            "front": {"color": faint, "strokeWidth": 1, "strokeDash": [3, 3]},
            "arm-line": {"strokeWidth": 2},
        },
    }


THEMES = {
    "light": _theme(
        "#3d434b",
        faint="#7b828c",
        grid="#e4e7eb",
        band="#eceff3",
        palette=LIGHT,
        middle="#f4f5f6",
        on_verdict="#ffffff",
    ),
    "dark": _theme(
        "#c9ced6", faint="#8b93a0", grid="#2c3138", band="#262b33", palette=DARK, middle="#d9dce1", on_verdict="#1d2126"
    ),
}
"""Vega's config by theme. A colour by verdict is the range `category`, so that a chart follows the page's theme."""
INLINE_THEME = _theme(
    "currentColor",
    faint="currentColor",
    grid="#8a909955",
    band="#8a909930",
    palette=COLOURS,
    middle="#f4f5f6",
    on_verdict="#1d2126",
)
"""Theme for an SVG inside a light or dark page, with the colour of the surrounding text."""


def forest_plot(results: Results) -> Spec | None:
    """Return the forest plot of effects, with intervals and values by seed; None if the study has only baselines."""
    arms = [arm for arm in results["arms"] if arm["against"]]
    if not arms:
        return None
    effects = {arm["name"]: summary.format_effect(arm, results) for arm in arms}
    if rungs.mixes_metrics(results):
        results = rungs.in_noise(results)
        arms = [arm for arm in results["arms"] if arm["against"]]
        effects = {arm["name"]: number(arm["effect"], 1, sign=True) for arm in arms}
    rows, seeds = [_forest_row(arm) for arm in arms], [*_differences(results)]
    values = [row[end] for row in rows for end in ("effect", "low", "high") if row[end] is not None]
    values += [seed["difference"] for seed in seeds]
    scale, ticks = effect_scale(values, [arm["ci95"] for arm in arms if arm["ci95"]])
    title = _forest_title(results, bool(ticks))
    axis = alt.Axis(title=title, values=ticks, format="~g") if ticks else alt.Axis(title=title, tickCount=7)
    order = [arm["name"] for arm in sorted(arms, key=lambda arm: _rank(arm, results["direction"]))]
    y = alt.Y("arm:N", sort=order, title=None, axis=None)
    x = alt.X("effect:Q", scale=scale, axis=axis)
    row = max(LEAST_ROW, min(ROW, TALL // len(arms)))
    layers = [
        *_names(rows, y, order, effects),
        *_reference(results),
        *_directions(results["direction"]),
        *_estimates(rows, x, y),
        _seed_dots(seeds, y, summary.mean_places(results), offset=round(0.27 * row)),
    ]
    resolve = alt.Resolve(axis=alt.AxisResolveMap(y="independent"))
    padding = {"top": 22, **dict.fromkeys(SIDES, 5)}
    return responsive_spec(layers, height=row * len(arms), padding=padding, resolve=resolve)


def _names(rows: list[dict[str, Any]], y: alt.Y, order: Sequence[str], effects: Mapping[str, str]) -> list[alt.Chart]:
    """Return invisible layers whose axes are the names on the left and the effects on the right."""
    values = alt.Axis(orient="right", ticks=False, domain=False, labelExpr=f"{json.dumps(effects)}[datum.value]")
    base = chart(rows).mark_point(opacity=0, style="zero")
    return [base.encode(y=y.copy().axis(axis)) for axis in (named_axis(order, labelPadding=8), values)]


def _forest_title(results: Results, logarithmic: bool) -> list[str]:
    lines = [describe_metric(results["plan"]).title, "arm minus baseline"]
    if rungs.mixes_metrics(results):
        lines = ["improvement over the task's baseline", "standard deviations of a run's noise"]
    return [*lines, LOGARITHMIC] if logarithmic else lines


def _directions(direction: str) -> list[alt.Chart]:
    """Return the words on both sides of zero, above the first row."""
    lower, higher = ("better", "worse") if direction == "min" else ("worse", "better")
    marks = [
        chart([{}]).mark_text(align="right", dx=-8, dy=-9, style=lower, text=f"\u2190 {lower}"),
        chart([{}]).mark_text(align="left", dx=8, dy=-9, style=higher, text=f"{higher} \u2192"),
    ]
    return [mark.encode(x=alt.XDatum(0), y=alt.YValue(0)) for mark in marks]


def _reference(results: Results) -> list[alt.Chart]:
    """Return the reference layers: the noise band, the equivalence margin and the line at zero."""
    (sd, _), small = noise_band(results), results["plan"]["equivalence"]
    layers = [band(sd, "noise")] if sd else []
    if small:
        bounds = [{"bound": -small}, {"bound": small}]
        layers += [band(small, "equivalence"), chart(bounds).mark_rule(style="bound").encode(x=alt.X("bound:Q"))]
    return [*layers, chart([{}]).mark_rule(style="zero").encode(x=alt.XDatum(0))]


def band(half: float, style: str) -> alt.Chart:
    """Return a band from `-half` to `half` on the x axis."""
    return chart([{"from": -half, "to": half}]).mark_rect(style=style).encode(x=alt.X("from:Q"), x2=alt.X2("to:Q"))


def _estimates(rows: list[dict[str, Any]], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Return the layers for intervals and point estimates, with a note for arms whose effect cannot be estimated."""
    table = chart(rows).encode(y=y, color=verdict_colour())
    known = table.transform_filter("datum.effect !== null")
    interval = (
        table.transform_filter("datum.low !== null")
        .mark_rule(strokeWidth=2)
        .encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    )
    point = known.mark_point(filled=True, size=110, opacity=1)
    unknown = (
        chart(rows)
        .transform_filter("datum.effect === null")
        .encode(y=y, x=alt.XValue("width"), text=alt.Text("missing:N"))
    )
    note = unknown.mark_text(align="right", dx=-6, style="note")
    intervals = [interval] if any(row["low"] is not None for row in rows) else []
    return [*intervals, point.encode(x=x, shape=verdict_shape(), tooltip=tooltips("arm:N", "evidence:N")), note]


def _seed_dots(seeds: list[dict[str, Any]], y: alt.Y, places: int, offset: int) -> alt.Chart:
    dots = chart(seeds).mark_circle(size=26, opacity=0.45, yOffset=offset)
    difference = alt.Tooltip("difference:Q", format=f"+.{fixed_places(places)}f")
    return dots.encode(
        y=y, x=alt.X("difference:Q"), color=verdict_colour(), tooltip=tooltips("arm:N", "seed:N", difference)
    )


def named_axis(names: Sequence[str], width: int = LABEL_WIDTH, **options: Any) -> alt.Axis:
    """Return an axis for names, shortened to at most `width` characters."""
    return alt.Axis(ticks=False, domain=False, **options, **label_options(names, width))


def label_options(names: Sequence[str], width: int = LABEL_WIDTH, narrow: int = NARROW_LABEL) -> dict[str, Any]:
    """Return axis or legend options that shorten names to at most `width` characters, in narrow windows to `narrow`.

    Shortened names stay distinct, which Vega's own truncation does not guarantee.
    """
    wide, short = (
        json.dumps(dict(zip(names, shorten_names(names, most), strict=True))) for most in (width, min(width, narrow))
    )
    return {"labelLimit": 0, "labelExpr": f"(windowSize()[0] < {NARROW} ? {short} : {wide})[datum.value]"}


def verdict_colour() -> alt.Color:
    """Return the encoding of the verdict as colour. The theme defines the colours."""
    return alt.Color("verdict:N", scale=alt.Scale(domain=list(SHAPES), range="category"), legend=None)


def verdict_shape() -> alt.Shape:
    """Return the encoding of the verdict as shape."""
    return alt.Shape("verdict:N", scale=alt.Scale(domain=list(SHAPES), range=list(SHAPES.values())), legend=None)


def chart(rows: list[dict[str, Any]]) -> alt.Chart:
    """Return a chart with the given rows as data.

    Encode its channels by objects such as `alt.X("effect:Q")`. Altair converts strings slowly.
    """
    return alt.Chart(alt.Data(values=rows))  # pyright: ignore[reportArgumentType]


def tooltips(*fields: str | alt.Tooltip) -> list[alt.Tooltip]:
    """Return the tooltips of fields such as `arm:N`."""
    return [alt.Tooltip(field) if isinstance(field, str) else field for field in fields]


def _rank(arm: Arm, direction: str) -> tuple[bool, float]:
    """Return the sort key that puts the best effects first and arms without an effect last."""
    effect = arm["effect"]
    return effect is None, (effect or 0.0) * (1 if direction == "min" else -1)


def _forest_row(arm: Arm) -> dict[str, Any]:
    low, high = arm["ci95"] or (None, None)
    row = {"arm": arm["name"], "verdict": summary.verdict_label(arm), "evidence": arm["evidence"]}
    return {**row, "effect": arm["effect"], "low": low, "high": high, "missing": _missing_effect(arm)}


def _missing_effect(arm: Arm) -> str:
    """Return the reason why an arm has no effect, or an empty string."""
    if arm["effect"] is not None:
        return ""
    if summary.all_diverged(arm):
        return "all runs diverged"
    finished = any(run["outcome"] in COMPLETED for run in arm["runs"])
    return "no effect can be estimated" if finished else "no finished run"


def _differences(results: Results) -> Iterator[dict[str, Any]]:
    """Yield the difference between an arm and its baseline for each arm and each seed on which both finished.

    If runs are not paired, each run is compared with the mean of the baseline's runs in its block.
    """
    for arm in (arm for arm in results["arms"] if arm["against"]):
        base = baseline_values(results, summary.baseline_of(results, arm))
        facts = {"arm": arm["name"], "verdict": summary.verdict_label(arm)}
        yield from (
            {**facts, "seed": run["seed"], "difference": run["value"] - base[run["seed"]]}
            for run in arm["runs"]
            if run["value"] is not None and run["seed"] in base
        )


def baseline_values(results: Results, baseline: Arm) -> dict[int, float]:
    """Return the value by seed with which runs are compared in the forest plot; see `_differences`."""
    values = {run["seed"]: run["value"] for run in baseline["runs"] if run["value"] is not None}
    numbers = results["judged"].get("blocks") if "judged" in results else None
    if numbers is None:
        return values
    blocks = dict(zip(results["seeds"], numbers, strict=True))
    known: dict[int, list[float]] = {}
    for seed, value in values.items():
        known.setdefault(blocks[seed], []).append(value)
    return {seed: float(np.mean(known[block])) for seed, block in blocks.items() if block in known}


def effect_scale(values: Sequence[float], intervals: Sequence[Sequence[float]]) -> tuple[alt.Scale, list[float] | None]:
    """Return a linear scale, or a symlog scale and its ticks if the largest value would flatten the other effects."""
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


def responsive_spec(layers: Sequence[alt.Chart], **properties: Any) -> Spec:
    """Return the spec of layers with container width and without config, since the page's theme defines the colours.

    `properties` are those of the layered chart. They are set at once, because every change of it copies all layers.
    """
    autosize = alt.AutoSizeParams(type="fit-x", contains="padding")
    drawn = alt.layer(*layers, width="container", autosize=autosize, **properties)
    return {key: value for key, value in drawn.to_dict(validate=VALIDATE).items() if key != "config"}


def themed(drawn: Any) -> Any:
    """Return a chart with the light colours on white, for a file or a notebook."""
    config = {key: value for key, value in THEMES["light"].items() if key != "background"}
    return drawn.configure(**config, background="white")
