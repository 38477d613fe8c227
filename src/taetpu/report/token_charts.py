"""Charts over tokens, layers and heads, as Altair charts from plain data."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from taetpu.core.errors import UserError
from taetpu.report.charts import chart, themed, tooltips

MAX_MARKS = 100_000
"""Maximum number of cells in a picture."""
FAINT, FAINTER = 0.005, 0.0005
"""Attention weights below the second number are not drawn, below the first one if there are more than `MAX_MARKS`."""
LABELLED = 64
"""Maximum number of tokens on an axis that names them."""
GRID_LABELLED, GRID_WIDTH = 30, 1600
"""Maximum number of tokens, and of pixels, of a grid of pictures that names tokens."""
LABEL = 10
"""Maximum number of characters of a token in a picture."""
TICKS = 10
"""Maximum number of numbers on an axis of positions."""
NUMBERED = 16
"""Maximum number of heads of a layer in a picture with numbers."""
LEGEND_TICKS = 4
"""Number of numbers in the legend of a logarithmic scale."""
BLUE, GREY = "#2a7fc1", "#8a9099"
SHADES = ["#ffffff", "#c4dcf0", "#6aaed6", "#2a7fc1", "#08386e"]
SIGNED = ["#d5562f", "#ffffff", "#2a7fc1"]
UNIFORM = 0.25
"""The place in the colours, from 0 to 1, of the attention weight 1 / n in a picture with n tokens."""
WEIGHT_LEGEND = {"values": [0, 0.01, 0.1, 0.3, 1], "format": ".2~g"}
WEIGHTS = alt.Scale(range=SHADES, domain=[0, 1], clamp=True, interpolate="rgb")
FRAME = alt.ViewBackground(stroke="#d5d9de")


# --- parts ------------------------------------------------------------------------------------------------------------


def token_axis(texts: Sequence[str], title: str = "", first: int = 0, **options: Any) -> alt.Axis:
    """Return an axis of positions that shows the text of each token, or numbers if there are many tokens.

    Args:
        texts: The text of each token.
        title: The title; by default, none for texts, and "position" for numbers.
        first: The position of the first token.
        options: Further options of the axis.
    """
    plain: dict[str, Any] = {"grid": False, "ticks": False, "domain": False, **options}
    if len(texts) > LABELLED:
        step = _nice_step(len(texts))
        values = [*range(-(-first // step) * step, first + len(texts), step)]
        return alt.Axis(title=title or "position", values=values, **plain)
    shown = json.dumps([shorten_token(text) for text in texts])
    return alt.Axis(title=title or None, labelExpr=f"{shown}[datum.value - {first}]", labelOverlap=False, **plain)


def shorten_token(text: str) -> str:
    """Return the text of a token with at most `LABEL` characters."""
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


def _nice_step(count: int, ticks: int = TICKS) -> int:
    """Return 1, 2 or 5 times a power of ten, so that at most `ticks` multiples are below `count`."""
    return next(step for power in range(12) for step in (10**power, 2 * 10**power, 5 * 10**power)
                if count <= step * ticks)  # fmt: skip


def _across(texts: Sequence[str]) -> dict[str, Any]:
    """Return the options of labels below a picture: horizontal if all tokens are short."""
    narrow = len(texts) > LABELLED or all(len(text) <= 2 for text in texts)
    return {"labelAngle": 0} if narrow else {"labelAngle": -90, "labelBaseline": "middle"}


def _check_marks(number: int) -> None:
    if number > MAX_MARKS:
        problem = f"the picture would have {number:,} cells, and at most {MAX_MARKS:,} can be drawn"
        raise UserError(problem, remedy="Use a shorter text, or choose a layer or a head.")


def _title(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, anchor="start", fontSize=13, fontWeight="normal")


def _legend(title: str | None, height: int, **options: Any) -> alt.Legend:
    """Return the legend of colours beside a picture of a height in pixels."""
    length = min(120, max(50, height - 20))
    return alt.Legend(title=title, titleFontWeight="normal", gradientLength=length, **options)


def _cells(tokens: int, most: int, each: int) -> int:
    """Return the size of a picture with an axis of tokens in pixels: `each` per token, but at most `most`."""
    return max(min(tokens * each, most), 24)


# --- losses -----------------------------------------------------------------------------------------------------------


def loss_chart(rows: Sequence[Mapping[str, Any]], mean: float) -> Any:
    """Return the chart of the loss of each predicted token, with a line at the mean.

    Args:
        rows: For each predicted token, the name of its `text`, its `position` in it, its `token` and its `loss`.
            Several texts are drawn one after the other.
        mean: The mean loss.
    """
    _check_marks(len(rows))
    names = ("text", "position", "token", "loss")
    first = rows[0]["position"]
    marks = [{"number": first + i, **{name: row[name] for name in names}} for i, row in enumerate(rows)]
    texts = [row["token"] for row in rows]
    title = "predicted token" if len({row["text"] for row in rows}) > 1 else ""
    x = alt.X("number:O", axis=token_axis(texts, title, first, **_across(texts)))
    y = alt.Y("loss:Q", title="loss (nats per token)")
    bars = (
        chart(marks)
        .mark_bar(color=BLUE)
        .encode(x=x, y=y, tooltip=tooltips("text:N", "position:O", "token:N", "loss:Q"))
    )
    line = chart([{"mean": mean}]).mark_rule(color=GREY, strokeDash=[4, 3]).encode(y=alt.Y("mean:Q"))
    return themed(alt.layer(bars, line).properties(width=_cells(len(rows), 900, 16), height=220))


# --- attention --------------------------------------------------------------------------------------------------------


def attention_map(pattern: np.ndarray, texts: Sequence[str], title: str) -> Any:
    """Return the chart of one head's attention weights.

    Args:
        pattern: The weights, `(query, key)`.
        texts: The text of each token.
        title: The title.
    """
    (rows,), scale = _weights([pattern])
    side = _cells(len(texts), 700, 18)
    x = alt.X("key:O", axis=token_axis(texts, "key (attended to)", orient="top", **_across(texts)), scale=_all(texts))
    cells = (
        chart(rows)
        .mark_rect()
        .encode(
            x=x,
            y=alt.Y("query:O", axis=token_axis(texts, "query"), scale=_all(texts)),
            color=alt.Color("weight:Q", scale=scale, legend=_legend("weight", side, **WEIGHT_LEGEND)),
            tooltip=tooltips("query:O", "key:O", "weight:Q"),
        )
    )
    return themed(cells.properties(width=side, height=side, title=_title(title), view=FRAME))


def attention_grid(
    patterns: Mapping[tuple[str, str], np.ndarray], texts: Sequence[str], title: str, columns: str = "head"
) -> Any:
    """Return a grid of attention maps.

    Args:
        patterns: The weights, `(query, key)`, by the name of the row and of the column.
        texts: The text of each token.
        title: The title.
        columns: What the columns are.
    """
    drawn, scale = _weights([*patterns.values()])
    rows = [{"row": row, "column": column, **cell}
            for (row, column), cells in zip(patterns, drawn, strict=True) for cell in cells]  # fmt: skip
    names = [[*dict.fromkeys(name[i] for name in patterns)] for i in (0, 1)]
    labelled = len(texts) <= GRID_LABELLED and len(names[1]) * len(texts) * 11 <= GRID_WIDTH
    side = len(texts) * 11 if labelled else _cells(len(texts), 110, 8)
    across, down = (_grid_axis(texts, labelled, **options) for options in (_across(texts), {}))
    cells = chart(rows).mark_rect().encode(
        x=alt.X("key:O", axis=across, scale=_all(texts)),
        y=alt.Y("query:O", axis=down, scale=_all(texts)),
        color=alt.Color("weight:Q", scale=scale, legend=_legend("weight", side, **WEIGHT_LEGEND)),
        tooltip=tooltips("row:N", "column:N", "query:O", "key:O", "weight:Q"),
    )  # fmt: skip
    header = alt.Header(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", labelPadding=2, titlePadding=0)
    grid = cells.properties(width=side, height=side, view=FRAME).facet(
        row=alt.Row("row:N", sort=names[0], title=None, header=alt.Header(labelAngle=0, labelAlign="left")),
        column=alt.Column("column:N", sort=names[1], title=columns, header=header),
        spacing=6,
    )
    return themed(grid.properties(title=_title(title)))


def _grid_axis(texts: Sequence[str], labelled: bool, **options: Any) -> alt.Axis:
    """Return an axis of a small picture: the texts of tokens, or the numbers of a few positions."""
    if labelled:
        return token_axis(texts, labelFontSize=8, labelPadding=2, **options)
    step = _nice_step(len(texts), 3)
    plain: dict[str, Any] = {"grid": False, "domain": False, "title": None, "labelFontSize": 8, "labelAngle": 0}
    return alt.Axis(values=[*range(0, len(texts), step)], tickSize=3, labelPadding=2, **plain)


def _weights(patterns: Sequence[np.ndarray]) -> tuple[list[list[dict[str, Any]]], alt.Scale]:
    """Return a row for each attention weight that can be seen, by pattern, and the scale of their colours.

    The scale is a power, so that the weights of uniform attention have a visible colour.
    """
    least = FAINTER if sum(int((pattern >= FAINTER).sum()) for pattern in patterns) <= MAX_MARKS else FAINT
    _check_marks(sum(int((pattern >= least).sum()) for pattern in patterns))
    rows = []
    for pattern in patterns:
        queries, keys = np.nonzero(pattern >= least)
        weights = pattern[queries, keys].astype(float).round(4)
        columns = zip(queries.tolist(), keys.tolist(), weights.tolist(), strict=True)
        rows.append([{"query": query, "key": key, "weight": weight} for query, key, weight in columns])
    tokens = max(len(pattern) for pattern in patterns)
    exponent = round(min(1.0, math.log(UNIFORM) / math.log(1 / max(tokens, 2))), 3)
    return rows, alt.Scale(**{**WEIGHTS.to_dict(), "type": "pow", "exponent": exponent})


def _all(texts: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=[*range(len(texts))])


# --- layers -----------------------------------------------------------------------------------------------------------


def layer_chart(
    values: np.ndarray,
    layers: Sequence[str],
    texts: Sequence[str],
    title: str,
    legend: str,
    *,
    words: Sequence[Sequence[str]] | None = None,
    logarithmic: bool = False,
) -> Any:
    """Return the chart of a number for each layer and position, the first layer below.

    Args:
        values: The numbers, `(layer, position)`. Cells with numbers that are not finite are empty.
        layers: The name of each layer.
        texts: The text of each position.
        title: The title.
        legend: The title of the legend.
        words: A word in each cell.
        logarithmic: Whether the colours have a logarithmic scale.
    """
    _check_marks(values.size)
    rows = [{"layer": layers[i], "position": j, "value": float(values[i, j]) if np.isfinite(values[i, j]) else None,
             "word": words[i][j] if words else ""} for i, j in np.ndindex(values.shape)]  # fmt: skip
    each = 0 if words is None else max(len(shorten_token(word)) for row in words for word in row) * 8 + 8
    x = alt.X("position:O", axis=token_axis(texts, **_across(texts)))
    y = alt.Y("layer:N", sort=[*layers][::-1], title=None, axis=alt.Axis(ticks=False, domain=False))
    scale, options = _logarithmic(values) if logarithmic else (WEIGHTS, {})
    base = chart(rows).encode(x=x, y=y)
    cells = base.mark_rect().encode(
        color=alt.Color("value:Q", scale=scale, legend=_legend(legend, 24 * len(layers), **options)),
        tooltip=tooltips("layer:N", "position:O", "word:N", "value:Q"),
    )
    width = _cells(len(texts), 2000 if words else 900, max(each, 18))
    drawn: Any = cells
    if words is not None and len(texts) <= LABELLED:
        shade = alt.condition("datum.value > 0.6", alt.value("white"), alt.value("#3d434b"))
        label = alt.Text("short:N")
        written = base.transform_calculate(
            short=f"length(datum.word) > {LABEL} ? slice(datum.word, 0, {LABEL - 1}) + '…' : datum.word"
        )
        drawn = alt.layer(cells, written.mark_text(fontSize=11).encode(text=label, color=shade))
    return themed(drawn.properties(width=width, height=24 * len(layers), title=_title(title)))


def _logarithmic(values: np.ndarray) -> tuple[alt.Scale, dict[str, Any]]:
    """Return a logarithmic scale of colours, and the options of its legend: rounded numbers at equal distances."""
    finite = values[np.isfinite(values)] if np.isfinite(values).any() else np.ones(1)
    low, high = float(finite.min()), float(finite.max())
    if high < low * 1.01:
        low, high = low / 1.01, high * 1.01
    ticks = [float(f"{value:.3g}") for value in np.geomspace(low, high, LEGEND_TICKS)]
    shown = [*dict.fromkeys(min(max(tick, low), high) for tick in ticks)]
    scale = alt.Scale(range=SHADES, domain=[low, high], type="log", interpolate="rgb")
    return scale, {"values": shown, "format": ".3~g"}


def head_chart(values: Mapping[str, Mapping[tuple[int, int], float]]) -> Any:
    """Return a chart of numbers between 0 and 1 for each head, one picture for each kind of number.

    Args:
        values: The numbers by kind, and by layer and head.
    """
    pictures = [head_picture(title, numbers) for title, numbers in values.items()]
    return themed(alt.hconcat(*pictures).resolve_scale(color="shared"))


def head_picture(
    title: str,
    values: Mapping[tuple[int, int], float],
    *,
    signed: bool = False,
    places: int = 2,
    columns: str = "head",
) -> Any:
    """Return the picture of a number for each head, the first layer below, without a theme.

    Args:
        title: The title.
        values: The numbers by layer and head.
        signed: Whether the numbers may be negative. Otherwise, they are between 0 and 1.
        places: The number of decimal places.
        columns: What the columns are.
    """
    largest = max((abs(value) for value in values.values()), default=0.0) or 1.0
    rows = [{"layer": layer, "head": head, "value": value, "dark": abs(value) > 0.6 * (largest if signed else 1.0)}
            for (layer, head), value in values.items()]  # fmt: skip
    scale = alt.Scale(range=SIGNED, domain=[-largest, 0, largest], interpolate="rgb") if signed else WEIGHTS
    heads, layers = (len({row[name] for row in rows}) for name in ("head", "layer"))
    base = chart(rows).encode(
        x=alt.X("head:O", title=columns, axis=alt.Axis(labelAngle=0, ticks=False, domain=False)),
        y=alt.Y("layer:O", sort="descending", axis=alt.Axis(ticks=False, domain=False)),
    )
    cells = base.mark_rect().encode(
        color=alt.Color("value:Q", scale=scale, legend=_legend(None, 26 * layers)),
        tooltip=tooltips("layer:O", "head:O", "value:Q"),
    )
    drawn: Any = cells
    if heads <= NUMBERED:
        shade = alt.condition("datum.dark", alt.value("white"), alt.value("#3d434b"))
        text = alt.Text("value:Q", format=f"{'+' if signed else ''}.{places}f")
        drawn = alt.layer(cells, base.mark_text(fontSize=10).encode(text=text, color=shade))
    side = 28 + 6 * places if heads <= NUMBERED else 16
    return drawn.properties(width=side * heads, height=26 * layers, title=_title(title), view=FRAME)


def bar_chart(names: Sequence[str], values: Sequence[float], title: str) -> Any:
    """Return the chart of a bar for each name, in order, without a theme."""
    rows = [{"name": name, "value": value} for name, value in zip(names, values, strict=True)]
    y = alt.Y("name:N", sort=[*names], title=None, axis=alt.Axis(ticks=False, domain=False, grid=False, labelLimit=300))
    colour = alt.condition("datum.value < 0", alt.value(SIGNED[0]), alt.value(BLUE))
    x = alt.X("value:Q", title=title)
    bars = chart(rows).mark_bar().encode(x=x, y=y, color=colour, tooltip=tooltips("name:N", "value:Q"))
    return bars.properties(width=320, height=18 * len(rows))


def effect_chart(
    names: Sequence[str], values: np.ndarray, low: np.ndarray, high: np.ndarray, title: str, what: str
) -> Any:
    """Return the chart of a point with its interval for each name, in order.

    Args:
        names: The names.
        values: The values.
        low: The lower ends of the intervals; NaN without intervals.
        high: The upper ends.
        title: The title of the axis of values.
        what: What the names are.
    """
    _check_marks(len(names))
    columns = zip(names, values.tolist(), low.tolist(), high.tolist(), strict=True)
    rows = [{"name": name, "value": value, "low": below if below == below else value,
             "high": above if above == above else value} for name, value, below, above in columns]  # fmt: skip
    y = alt.Y("name:N", sort=[*names], title=what, axis=alt.Axis(ticks=False, domain=False, labelLimit=300))
    base = chart(rows).encode(y=y, tooltip=tooltips("name:N", "value:Q", "low:Q", "high:Q"))
    zero = chart([{"zero": 0}]).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x=alt.X("zero:Q"))
    lines = base.mark_rule(color=BLUE).encode(x=alt.X("low:Q", title=title), x2=alt.X2("high:Q"))
    points = base.mark_point(color=BLUE, filled=True, size=40).encode(x=alt.X("value:Q"))
    return themed(alt.layer(zero, lines, points).properties(width=420, height=max(60, 16 * len(names))))


def curve_chart(rows: Sequence[Mapping[str, Any]], across: str, title: str) -> Any:
    """Return the chart of a line with its band of intervals.

    Args:
        rows: For each step, the number `removed`, the `effect`, its interval `low` and `high` (NaN without one), and
            what is removed `now`.
        across: The title of the axis of numbers.
        title: The title of the axis of effects.
    """
    plain = [{**row, **{end: row[end] if row[end] == row[end] else row["effect"] for end in ("low", "high")}}
             for row in rows]  # fmt: skip
    base = chart(plain).encode(x=alt.X("removed:Q", title=across, axis=alt.Axis(tickMinStep=1, format="d")))
    band = base.mark_area(color=BLUE, opacity=0.2).encode(y=alt.Y("low:Q", title=title), y2=alt.Y2("high:Q"))
    tooltip = tooltips("removed:Q", "now:N", "effect:Q", "low:Q", "high:Q")
    line = base.mark_line(color=BLUE, point=alt.OverlayMarkDef(color=BLUE)).encode(y=alt.Y("effect:Q"), tooltip=tooltip)
    return themed(alt.layer(band, line).properties(width=420, height=240))


def probe_chart(rows: Sequence[Mapping[str, Any]], title: str) -> Any:
    """Return the chart of the accuracies of probes by layer, with bars of one standard error.

    Args:
        rows: For each layer, `layer`, and `accuracy`, `control` and `majority` with their `_error`.
        title: The title.
    """
    names = {"accuracy": "probe", "control": "control task", "majority": "most frequent label"}
    points = [
        {"layer": "-" if row["layer"] is None else str(row["layer"]), "task": shown, "accuracy": row[name],
         "low": row[name] - row[f"{name}_error"], "high": row[name] + row[f"{name}_error"]}
        for row in rows for name, shown in names.items()
    ]  # fmt: skip
    scale = alt.Scale(domain=[*names.values()], range=[BLUE, SIGNED[0], GREY])
    layers = [*dict.fromkeys(point["layer"] for point in points)]
    base = chart(points).encode(
        x=alt.X("layer:N", title="layer", sort=layers, axis=alt.Axis(labelAngle=0, grid=False)),
        color=alt.Color("task:N", title=None, scale=scale, sort=[*names.values()]),
    )
    y = alt.Y("accuracy:Q", title="accuracy (cross-validated)", scale=alt.Scale(domain=[0, 1], clamp=True))
    bars = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    line = base.mark_line(point=True).encode(
        y=y, tooltip=tooltips("layer:N", "task:N", "accuracy:Q", "low:Q", "high:Q")
    )
    width = max(160, min(60 * len(layers), 700))
    return themed(alt.layer(line, bars).properties(width=width, height=240, title=_title(title)))
