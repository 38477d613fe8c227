"""What commands print: sentences and tables of at most 80 columns, and JSON."""

import json
import textwrap
from typing import Any

import typer

WIDTH = 80


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
    """Print rows that share their keys; a column without any value is left out. Numbers stand to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        words = any(isinstance(row[name], str) for row in rows)
        table.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for row in rows:
        table.add_row(*(Text(_cell(row[name])) for name in names))
    console = Console(soft_wrap=False)
    console.print(table, width=min(console.width, WIDTH))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
