"""Output of commands: JSON, paragraphs with at most 80 columns, and tables of the terminal's width."""

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from taetpu.core.errors import UserError
from taetpu.core.streams import escape_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 80
UNBROKEN = 11
"""Length up to which words in a table are never broken."""
FIGURE = re.compile(r"-|[<>$+-]?\d\S*( (on|of|x) \d+)?")  # `>14ms`, `29us-650us`, `3 on 8`


def wrap(text: str, first: int = 0, hanging: int = 0) -> str:
    """Wrap a paragraph to 80 columns. `first` indents its first line, and `hanging` indents the following lines."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * first,
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_text(text: str, first: int = 0, hanging: int = 0) -> None:
    """Wrap a paragraph with `wrap`, and print it."""
    typer.echo(escape_controls(wrap(text, first, hanging)))


def log(line: str) -> None:
    """Print a line of progress or a warning to standard error."""
    typer.echo(escape_controls(line), err=True)


def print_sample(text: str, *, end: str = "\n") -> None:
    """Print a text of a model. A terminal shows its control characters escaped; files and pipes receive them."""
    shown = escape_controls(text + end) if sys.stdout.isatty() else text + end
    typer.echo(shown, nl=False, color=True)  # `color` keeps escape sequences


@contextmanager
def explain_write_error(file: Path, remedy: str) -> Iterator[None]:
    """Raise `UserError` with a remedy in place of an `OSError` raised while a file is written in the `with` block."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", file=file, remedy=remedy) from None


def plural(number: int, noun: str) -> str:
    """Return a count with its noun: `1 run`, `12,000 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(data: Any) -> None:
    """Print plain data as strict JSON. Numbers that are not finite are printed as null."""
    from taetpu.store.documents import finite

    typer.echo(json.dumps(finite(data), indent=2, allow_nan=False))


def print_table(rows: Iterable[dict[str, Any]], floats: str = "") -> None:
    """Print a table of rows that have the same keys; see `build_table`.

    Args:
        rows: The rows.
        floats: The format of floating-point numbers, such as `.3f`.
    """
    from rich.console import Console

    console = Console()
    if floats:
        rows = ({name: f"{v:{floats}}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)
    table = build_table([*rows], console)
    Console(soft_wrap=False, width=max(console.width, table.width or 0)).print(table)


def print_rows(rows: list[dict[str, Any]], as_json: bool, none: str) -> None:
    """Print rows as JSON or as a table, or the text `none` in place of an empty table."""
    if as_json:
        print_json(rows)
    elif rows:
        print_table(rows)
    else:
        typer.echo(none)


def build_table(rows: list[dict[str, Any]], console: "Console") -> "Table":
    """Return a table of the given rows. Empty columns are omitted, and columns of numbers are right-aligned.

    If the table is wider than the console, long words are broken. Numbers are never broken, so the table may stay
    wider. The output has 80 columns if it is not a terminal and `COLUMNS` is not set.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    widths, smallest = [], []
    for name in names:
        cells = [_format_cell(row[name]) for row in rows]
        figures = [cell for cell in cells if FIGURE.fullmatch(cell)]
        numeric = len(figures) == len([cell for cell in cells if cell])
        words = [len(word) for cell in (name, *cells) for word in cell.split()]
        least = max(len(name if numeric else ""), *map(len, figures), min(UNBROKEN, max(words)))
        table.add_column(name, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
        smallest.append(least)
        widths.append(max(least, cell_len(name), *(cell_len(line) for cell in cells for line in cell.splitlines())))
    gaps = 2 * (len(names) - 1)
    while sum(widths) + gaps > console.width and widths != smallest:
        widest = max(range(len(widths)), key=lambda i: (widths[i] > smallest[i], widths[i]))
        widths[widest] -= 1
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width  # rich would narrow columns below their smallest width, and crop what it folded for it
    for row in rows:
        table.add_row(*(Text(_format_cell(row[name])) for name in names))
    table.width = sum(widths) + gaps
    return table


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else escape_controls(str(value))
