"""Output of commands: paragraphs and tables of at most 80 columns, and JSON."""

import json
import re
import textwrap
from typing import Any

import typer

WIDTH = 80
UNBROKEN = 11
"""Longest word that a table column never breaks."""
FIGURE = re.compile(r"-|[<>$+-]?\d\S*( (on|of|x) \d+)?")  # `>14ms`, `29us-650us`, `3 on 8`


def wrap(text: str, first: int = 0, hanging: int = 0) -> str:
    """Return a paragraph of at most 80 columns; the first line and the following lines have separate indents."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * first,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrap_lines(lines: str) -> str:
    """Return lines of at most 80 columns; the continuation of a long line is indented by 2 more."""

    def fit(line: str) -> str:
        indent = len(line) - len(line.lstrip())
        return line if len(line) <= WIDTH else wrap(line.strip(), indent, indent + 2)

    return "\n".join(map(fit, lines.splitlines()))


def print_text(text: str, first: int = 0, hanging: int = 0) -> None:
    """Print a paragraph, see `wrap`."""
    typer.echo(wrap(text, first, hanging))


def log(line: str) -> None:
    """Print progress or a warning on standard error."""
    typer.echo(line, err=True)


def plural(number: int, noun: str) -> str:
    """Return a count with its noun: `1 run`, `12,000 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(data: Any) -> None:
    """Print plain data as strict JSON, with null for numbers that are not finite."""
    from taetpu.store.documents import finite

    typer.echo(json.dumps(finite(data), indent=2, allow_nan=False))


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows that have the same keys, without empty columns; columns of numbers are right-aligned.

    A table that is too wide breaks words but never numbers; if that is not enough, it exceeds 80 columns.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    table, needed = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0)), 0
    for name in names:
        cells = [_format_cell(row[name]) for row in rows]
        figures = [cell for cell in cells if FIGURE.fullmatch(cell)]
        numeric = len(figures) == len([cell for cell in cells if cell])
        words = [len(word) for cell in (name, *cells) for word in cell.split()]
        least = max(len(name if numeric else ""), *map(len, figures), min(UNBROKEN, max(words)))
        justify = "right" if numeric else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=numeric, min_width=least)
        needed += least + 2 * (name != names[-1])
    for row in rows:
        table.add_row(*(Text(_format_cell(row[name])) for name in names))
    width = max(min(Console().width, WIDTH), needed)
    Console(soft_wrap=False, width=width).print(table)


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
