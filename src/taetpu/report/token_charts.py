"""Charts over tokens, layers and heads, as Altair charts from plain data."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from taetpu.core.errors import UserError
from taetpu.report.charts import chart, themed

MAX_MARKS = 100_000
"""Maximum number of cells in a picture."""
FAINT = 0.005
"""Attention weights below this number are not drawn, because they would look like the background."""
LABELLED = 64
"""Maximum number of tokens on an axis that names them."""
LABEL = 10
"""Maximum number of characters of a token in a picture."""
TICKS = 10
"""Maximum number of numbers on an axis of positions."""
BLUE, GREY = "#2a7fc1", "#8a9099"
WEIGHTS = alt.Scale(scheme="blues", domain=[0, 1], clamp=True)
FRAME = alt.ViewBackground(stroke="#d5d9de")


# --- parts ------------------------------------------------------------------------------------------------------------


def token_axis(texts: Sequence[str], title: str = "", **options: Any) -> alt.Axis:
    """Return an axis of positions that shows the text of each token, or numbers if there are many tokens."""
    plain: dict[str, Any] = {"grid": False, "ticks": False, "domain": False, **options}
    if len(texts) > LABELLED:
        return alt.Axis(title=title or "position", values=[*range(0, len(texts), _nice_step(len(texts)))], **plain)
    shown = json.dumps([shorten_token(text) for text in texts])
    return alt.Axis(title=title or None, labelExpr=f"{shown}[datum.value]", labelOverlap=False, **plain)


def shorten_token(text: str) -> str:
    """Return the text of a token with at most `LABEL` characters."""
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


def _nice_step(count: int) -> int:
    """Return 1, 2 or 5 times a power of ten, so that at most `TICKS` multiples are below `count`."""
    return next(step for power in range(12) for step in (10**power, 2 * 10**power, 5 * 10**power)
                if count <= step * TICKS)  # fmt: skip


def _across(texts: Sequence[str]) -> dict[str, Any]:
    """Return the options of labels below a picture: horizontal if all tokens are short."""
    narrow = len(texts) > LABELLED or all(len(text) <= 2 for text in texts)
    return {"labelAngle": 0} if narrow else {"labelAngle": -90, "labelBaseline": "middle"}


def _check_marks(number: int) -> None:
    if number > MAX_MARKS:
        problem = f"the picture would have {number:,} cells, and at most {MAX_MARKS:,} can be drawn"
        raise UserError(problem, remedy="Use a shorter text, or choose a layer or a head.")


def _cells(tokens: int, most: int, each: int) -> int:
    """Return the size of a picture with an axis of tokens in pixels: `each` per token, but at most `most`."""
    return max(min(tokens * each, most), 24)


# --- losses -----------------------------------------------------------------------------------------------------------


def loss_chart(texts: Sequence[str], losses: Sequence[float], mean: float) -> Any:
    """Return the chart of the loss of each token, with a line at the mean."""
    _check_marks(len(losses))
    columns = zip(texts, losses, strict=True)
    rows = [{"position": i, "token": text, "loss": loss} for i, (text, loss) in enumerate(columns)]
    x = alt.X("position:O", axis=token_axis(texts, **_across(texts)))
    y = alt.Y("loss:Q", title="loss (nats per token)")
    bars = chart(rows).mark_bar(color=BLUE).encode(x=x, y=y, tooltip=["position:O", "token:N", "loss:Q"])
    line = chart([{"mean": mean}]).mark_rule(color=GREY, strokeDash=[4, 3]).encode(y="mean:Q")
    return themed(alt.layer(bars, line).properties(width=_cells(len(rows), 900, 16), height=220))


# --- attention --------------------------------------------------------------------------------------------------------


def attention_map(pattern: np.ndarray, texts: Sequence[str], title: str) -> Any:
    """Return the chart of one head's attention weights.

    Args:
        pattern: The weights, `(query, key)`.
        texts: The text of each token.
        title: The title.
    """
    rows = _weights(pattern)
    _check_marks(len(rows))
    side = _cells(len(texts), 700, 18)
    x = alt.X("key:O", axis=token_axis(texts, "key (attended to)", orient="top", **_across(texts)), scale=_all(texts))
    y = alt.Y("query:O", axis=token_axis(texts, "query"), scale=_all(texts))
    cells = chart(rows).mark_rect().encode(
        x=x, y=y, color=alt.Color("weight:Q", scale=WEIGHTS, title="weight"), tooltip=["query:O", "key:O", "weight:Q"]
    )  # fmt: skip
    return themed(cells.properties(width=side, height=side, title=title, view=FRAME))


def attention_grid(patterns: Mapping[tuple[str, str], np.ndarray], title: str, columns: str = "head") -> Any:
    """Return a grid of attention maps.

    Args:
        patterns: The weights, `(query, key)`, by the name of the row and of the column.
        title: The title.
        columns: What the columns are.
    """
    size = max(len(pattern) for pattern in patterns.values())
    rows = [{"row": row, "column": column, **cell}
            for (row, column), pattern in patterns.items() for cell in _weights(pattern)]  # fmt: skip
    _check_marks(len(rows))
    names = [[*dict.fromkeys(name[i] for name in patterns)] for i in (0, 1)]
    side = _cells(size, 110, 8)
    position = alt.Axis(labels=False, ticks=False, title=None, grid=False, domain=False)
    whole = alt.Scale(domain=[*range(size)])
    cells = chart(rows).mark_rect().encode(
        x=alt.X("key:O", axis=position, scale=whole),
        y=alt.Y("query:O", axis=position, scale=whole),
        color=alt.Color("weight:Q", scale=WEIGHTS, title="weight"),
        tooltip=["row:N", "column:N", "query:O", "key:O", "weight:Q"],
    )  # fmt: skip
    header = alt.Header(labelFontSize=11, titleFontSize=12, labelPadding=4)
    grid = cells.properties(width=side, height=side, view=FRAME).facet(
        row=alt.Row("row:N", sort=names[0], title=None, header=alt.Header(labelAngle=0, labelAlign="left")),
        column=alt.Column("column:N", sort=names[1], title=columns, header=header),
        spacing=6,
    )
    return themed(grid.properties(title=title))


def _weights(pattern: np.ndarray) -> list[dict[str, Any]]:
    """Return a row for each attention weight that can be seen."""
    queries, keys = np.nonzero(pattern >= FAINT)
    weights = pattern[queries, keys].astype(float).round(4)
    columns = zip(queries.tolist(), keys.tolist(), weights.tolist(), strict=True)
    return [{"query": query, "key": key, "weight": weight} for query, key, weight in columns]


def _all(texts: Sequence[str]) -> alt.Scale:
    return alt.Scale(domain=[*range(len(texts))])


# --- layers -----------------------------------------------------------------------------------------------------------


def layer_chart(
    values: np.ndarray,
    layers: Sequence[str],
    texts: Sequence[str],
    title: str,
    *,
    words: Sequence[Sequence[str]] | None = None,
    logarithmic: bool = False,
) -> Any:
    """Return the chart of a number for each layer and position, the first layer below.

    Args:
        values: The numbers, `(layer, position)`.
        layers: The name of each layer.
        texts: The text of each position.
        title: The title of the legend.
        words: A word in each cell.
        logarithmic: Whether the colours have a logarithmic scale.
    """
    _check_marks(values.size)
    rows = [{"layer": layers[i], "position": j, "value": float(values[i, j]), "word": words[i][j] if words else ""}
            for i, j in np.ndindex(values.shape)]  # fmt: skip
    each = 0 if words is None else max(len(shorten_token(word)) for own in words for word in own) * 8 + 8
    x = alt.X("position:O", axis=token_axis(texts, **_across(texts)))
    y = alt.Y("layer:N", sort=[*layers][::-1], title=None, axis=alt.Axis(ticks=False, domain=False))
    scale = alt.Scale(scheme="blues", type="log") if logarithmic else alt.Scale(scheme="blues", domain=[0, 1])
    base = chart(rows).encode(x=x, y=y)
    cells = base.mark_rect().encode(
        color=alt.Color("value:Q", scale=scale, title=title), tooltip=["layer:N", "position:O", "word:N", "value:Q"]
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
    return themed(drawn.properties(width=width, height=24 * len(layers)))


def head_chart(values: Mapping[str, Mapping[tuple[int, int], float]], *, signed: bool = False) -> Any:
    """Return a chart of a number for each head, one picture for each kind of number.

    Args:
        values: The numbers by kind, and by layer and head.
        signed: Whether the numbers may be negative. Otherwise, they are between 0 and 1.
    """
    largest = max((abs(value) for own in values.values() for value in own.values()), default=1.0) or 1.0
    scale = alt.Scale(scheme="redblue", domain=[-largest, largest]) if signed else WEIGHTS
    pictures = [_heads(title, own, scale, signed) for title, own in values.items()]
    return themed(alt.hconcat(*pictures).resolve_scale(color="shared"))


def _heads(title: str, values: Mapping[tuple[int, int], float], scale: alt.Scale, signed: bool) -> Any:
    rows = [{"layer": layer, "head": head, "value": value} for (layer, head), value in values.items()]
    x = alt.X("head:O", axis=alt.Axis(labelAngle=0, ticks=False, domain=False))
    y = alt.Y("layer:O", sort="descending", axis=alt.Axis(ticks=False, domain=False))
    base = chart(rows).encode(x=x, y=y)
    cells = base.mark_rect().encode(
        color=alt.Color("value:Q", scale=scale, title=None), tooltip=["layer:O", "head:O", "value:Q"]
    )
    heads, layers = (len({row[name] for row in rows}) for name in ("head", "layer"))
    drawn: Any = cells
    if heads <= 16:
        dark = "abs(datum.value) > " + str(0.6 * float(scale["domain"][1]))
        shade = alt.condition(dark, alt.value("white"), alt.value("#3d434b"))
        text = alt.Text("value:Q", format="+.2f" if signed else ".2f")
        drawn = alt.layer(cells, base.mark_text(fontSize=10).encode(text=text, color=shade))
    side = 40 if heads <= 16 else 16
    return drawn.properties(width=side * heads, height=max(24, 26 * layers), title=title)


def bar_chart(names: Sequence[str], values: Sequence[float], title: str) -> Any:
    """Return a chart with a bar for each name, in order."""
    rows = [{"name": name, "value": value} for name, value in zip(names, values, strict=True)]
    y = alt.Y("name:N", sort=[*names], title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=300))
    colour = alt.condition("datum.value < 0", alt.value("#d5562f"), alt.value(BLUE))
    bars = chart(rows).mark_bar().encode(y=y, x=alt.X("value:Q", title=title), color=colour, tooltip=["name", "value"])
    return bars.properties(width=320, height=18 * len(rows))
