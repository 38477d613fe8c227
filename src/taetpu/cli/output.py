"""What commands print: sentences and tables of at most 80 columns, and JSON."""

import json
import re
import textwrap
from typing import Any

import typer

WIDTH = 80
SHORT = 11  # letters of a word that are kept together
FIGURE = re.compile(r"-|[<>$+-]?\d\S*( (on|of|x) \d+)?")  # `>14ms`, `29us-650us`, `3 on 8`


def filled(text: str, first: int = 0, hanging: int = 0) -> str:
    """A paragraph, its first line and those after it indented by so many columns."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * first,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def fitting(lines: str) -> str:
    """Lines as they are where they fit; those that do not go on below, indented."""

    def one(line: str) -> str:
        indent = len(line) - len(line.lstrip())
        return line if len(line) <= WIDTH else filled(line.strip(), indent, indent + 2)

    return "\n".join(map(one, lines.splitlines()))


def say(text: str, first: int = 0, hanging: int = 0) -> None:
    """Print a paragraph, see `filled`."""
    typer.echo(filled(text, first, hanging))


def count(number: int, noun: str) -> str:
    """`1 run`, `12,000 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_json(data: Any) -> None:
    """Print plain data as strict JSON: null where a number is not finite."""
    from taetpu.store.documents import finite

    typer.echo(json.dumps(finite(data), indent=2, allow_nan=False))


def show_table(rows: list[dict[str, Any]]) -> None:
    """Print rows that share their keys; a column without any value is left out. Numbers stand to the right.

    Where there is too little room words are broken, never figures: rather than that a table is too wide.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    table, needed = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0)), 0
    for name in names:
        cells = [_cell(row[name]) for row in rows]
        figures = [cell for cell in cells if FIGURE.fullmatch(cell)]
        whole = len(figures) == len([cell for cell in cells if cell])
        words = [len(word) for cell in (name, *cells) for word in cell.split()]
        least = max(len(name if whole else ""), *map(len, figures), min(SHORT, max(words)))
        justify = "right" if whole else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=whole, min_width=least)
        needed += least + 2 * (name != names[-1])
    for row in rows:
        table.add_row(*(Text(_cell(row[name])) for name in names))
    width = max(min(Console().width, WIDTH), needed)
    Console(soft_wrap=False, width=width).print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
