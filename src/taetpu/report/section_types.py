"""Sections and tables of the report, as text for every output format."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Table with cells of text.

    Attributes:
        columns: the header cells.
        rows: the cells of each row.
        left: number of leading columns that are left-aligned. The other columns contain numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    def without_empty_columns(self) -> "Table":
        """Return the table without the columns that have `-` in every row."""
        kept = [i for i in range(len(self.columns)) if any(row[i] != "-" for row in self.rows)]
        return Table([self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows], self.left)


@dataclass(frozen=True)
class Section:
    """Section of the report.

    Attributes:
        title: the heading.
        lead: introduction to the tables.
        tables: the tables, in order.
        charts: pairs of a chart's caption and its name in `page.chart_data`.
        notes: sentences below the tables.
        folded: whether the section is initially collapsed in formats that support it.
        frontier: pairs of name and title of the columns of which a reader chooses two for a chart; empty, or at least
            three.
    """

    title: str
    lead: str = ""
    tables: Sequence[Table] = ()
    charts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    folded: bool = False
    frontier: Sequence[tuple[str, str]] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the section has neither notes nor table rows."""
        return not self.notes and not any(table.rows for table in self.tables)
