"""Bits of HTML for notebooks: text is escaped, and nothing has a colour of its own, so that it suits light and dark."""

from collections.abc import Iterable, Sequence
from html import escape


def paragraph(text: object, strong: object = "") -> str:
    """A paragraph; `strong` stands before it."""
    before = f"<strong>{escape(str(strong))}</strong> " if strong else ""
    return f"<p>{before}{escape(str(text))}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A table of text, its first `left` columns set to the left, the others to the right."""
    head = _row("th", columns, left)
    body = "".join(_row("td", row, left) for row in rows)
    return f'<div style="overflow-x:auto"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _row(tag: str, cells: Sequence[object], left: int) -> str:
    sides = ["left" if i < left else "right" for i in range(len(cells))]
    made = (
        f'<{tag} style="text-align:{side}">{escape(str(cell))}</{tag}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(made)}</tr>"


def details(summary: object, inside: str) -> str:
    """HTML that is shown when its summary is clicked."""
    return f"<details><summary>{escape(str(summary))}</summary>{inside}</details>"
