"""HTML snippets for notebooks. Text is escaped, and no colours are set, so that the snippets suit all themes."""

from collections.abc import Iterable, Sequence
from html import escape


def paragraph(text: object, strong: object = "") -> str:
    """Return a paragraph that begins with `strong` in bold."""
    before = f"<strong>{escape(str(strong))}</strong> " if strong else ""
    return f"<p>{before}{escape(str(text))}</p>"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Return a table of text in which the first `left` columns are left-aligned and the others right-aligned."""
    head = _row("th", columns, left)
    body = "".join(_row("td", row, left) for row in rows)
    return f'<div style="overflow-x:auto"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def _row(tag: str, cells: Sequence[object], left: int) -> str:
    sides = ["left" if i < left else "right" for i in range(len(cells))]
    html = (
        f'<{tag} style="text-align:{side}">{escape(str(cell))}</{tag}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(html)}</tr>"
