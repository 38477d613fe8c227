"""Coloured cells with signed numbers on a terminal: a row for each layer, a column for each head."""

import math
from collections.abc import Mapping

from rich.color import Color, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.console import Console
from rich.style import Style
from rich.text import Text

from taetpu.cli.output import WIDTH

NEGATIVE, ZERO, POSITIVE = (
    ColorTriplet(0xD5, 0x56, 0x2F),
    ColorTriplet(0xFF, 0xFF, 0xFF),
    ColorTriplet(0x2A, 0x7F, 0xC1),
)
"""The colours of the charts (`report.token_charts`)."""
DARK = 0.7
"""The share of the largest number from which a cell's text is white."""
CELLS = ((5, 1), (3, 0), (2, None), (1, None))
"""The widths of a cell, from the widest, and the decimal places of its number; None for colours alone."""


def print_heatmap(cells: Mapping[tuple[int, int], float], title: str, *, columns: str = "head", noun: str = "") -> None:
    """Print numbers as coloured cells, if the output is a terminal.

    Numbers are in units of a power of ten, so that the largest has one digit before the point. Wide layers have
    colours alone, and nothing is printed for layers that are wider than 80 columns.

    Args:
        cells: The numbers by layer and column.
        title: The title.
        columns: What the columns are.
        noun: The unit of the numbers, such as `nats`.
    """
    console = Console()
    if console.is_terminal and (drawn := draw_heatmap(cells, title, columns=columns, noun=noun)) is not None:
        console.print(drawn, soft_wrap=True)


def draw_heatmap(
    cells: Mapping[tuple[int, int], float], title: str, *, columns: str = "head", noun: str = ""
) -> Text | None:
    """Return the text that `print_heatmap` prints; None if the numbers are too many for 80 columns."""
    layers, number = sorted({layer for layer, _ in cells}), 1 + max((column for _, column in cells), default=-1)
    margin = len("layer ") + len(str(max(layers, default=0))) + 1
    fitting = [(width, places) for width, places in CELLS if margin + width * number <= WIDTH]
    if not fitting or not layers:
        return None
    width, places = fitting[0]
    largest = max(map(abs, cells.values())) or 1.0
    unit = _unit(largest, places or 0)
    drawn = Text(title + _describe_scale(unit, largest, places, noun) + "\n", no_wrap=True)
    for layer in reversed(layers):  # the first layer is below, as in charts
        drawn.append(f"layer {layer}".ljust(margin))
        for column in range(number):
            drawn.append_text(_cell(cells.get((layer, column)), largest, unit, width, places))
        drawn.append("\n")
    if width >= len(str(number)) + 1:
        drawn.append(columns.ljust(margin)[:margin] + "".join(str(i).rjust(width) for i in range(number)))
    else:
        drawn.append(f"{'':{margin}}{columns}s 0 to {number - 1}")
    return drawn


def _unit(largest: float, places: int) -> float:
    """Return the power of ten in which the largest number, rounded, has one digit before the point."""
    power = math.floor(math.log10(largest))
    return 10.0 ** (power + (round(largest / 10.0**power, places) >= 10))


def _describe_scale(unit: float, largest: float, places: int | None, noun: str) -> str:
    """Return the end of the title, such as `, in 0.01 nats`."""
    if places is None:
        return f", from {-largest:+.2g} to {largest:+.2g} {noun}".rstrip()
    if unit == 1:
        return f", in {noun}" if noun else ""
    return f", in {unit:g} {noun}" if noun else f", in units of {unit:g}"


def _cell(value: float | None, largest: float, unit: float, width: int, places: int | None) -> Text:
    if value is None or math.isnan(value):
        return Text(" " * width)
    share = value / largest
    colour = blend_rgb(ZERO, POSITIVE if share > 0 else NEGATIVE, min(1.0, abs(share)))
    text = "" if places is None else f"{value / unit:+.{places}f}"
    text = text[1:] if text and not float(text) else text  # a rounded zero has no sign
    style = Style(color="#ffffff" if abs(share) > DARK else "#000000", bgcolor=Color.from_triplet(colour))
    return Text(text.rjust(width), style)
