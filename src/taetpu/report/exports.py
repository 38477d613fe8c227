"""Reports as Markdown and as plain text."""

import re
import textwrap

from taetpu.report import designs, overview, summary
from taetpu.report.comparison import Results
from taetpu.report.contents import build_sections
from taetpu.report.inputs import Background
from taetpu.report.sections import Section, Table
from taetpu.report.short_names import shorten_names

COLUMNS = 80
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|&~$])")


def markdown(results: Results, beside: Background) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    direction = "lower" if results["direction"] == "min" else "higher"
    lines = [f"# {escape(results['study'])}", "", f"**{escape(summary.headline(results))}**", ""]
    lines += [f"- {escape(line)}" for line in overview.rank_effects(results)]
    lines += ["", *(f"{escape(line)}\n" for line in beside.trained)]
    lines += [f"> {escape_prose(notice)}\n" for notice in [*summary.notices(results), *beside.cautions]]
    metric = escape(summary.metric_with_unit(results["primary"]))
    lines += [f"{metric}, {direction} is better; effects are arm minus baseline.", ""]
    columns = ("arm", "change", "mean", "effect", "95 % interval", "in noise sd", "Holm p", "verdict")
    rows = summary.verdict_rows(results, beside.costs)
    cells = [[r.arm, r.change, r.mean, r.effect, r.interval, r.noise_sd, r.p, _verdict(r)] for r in rows]
    lines += [
        *_table(Table(columns, cells, left=2)),
        "",
        escape(summary.describe_noise(results)),
        "",
        "## Evidence",
        "",
    ]
    lines += [f"- **{escape(row.arm)}**: {escape(row.evidence)}" for row in rows if row.verdict != "baseline"]
    wanted = summary.seeds_needed(results)
    if wanted:
        lines += ["", f"Seeds still needed if the observed effects are the true ones: {escape('; '.join(wanted))}."]
    for section in build_sections(results, beside.costs, beside.priors):
        lines += _section(section)
    trained = [f"Trained {'; '.join(summary.describe_packing(results))}."] if summary.describe_packing(results) else []
    lines += ["", *map(escape, [*trained, *filter(None, [summary.describe_reuse(results)])])]
    return "\n".join(lines).rstrip() + "\n"


def _verdict(row: summary.Row) -> str:
    return f"{row.verdict}, {row.terms}" if row.terms else row.verdict


def _section(section: Section) -> list[str]:
    lines = ["", f"## {escape(section.title)}", ""]
    lines += [escape_prose(section.lead), ""] if section.lead else []
    for table in section.tables:
        lines += [*_table(table), ""]
    return [*lines, *(f"- {escape_prose(note)}" for note in section.notes)]


def _table(table: Table) -> list[str]:
    rule = [":--" if i < table.left else "--:" for i in range(len(table.columns))]
    return [f"| {' | '.join(map(escape, cells))} |" for cells in (table.columns, rule, *table.rows)]


def escape(text: str) -> str:
    """Escape text for Markdown, including tables, and join its lines."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))


def escape_prose(text: str) -> str:
    """Escape a sentence for Markdown, except code between backticks."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # odd number of backticks, e.g. one inside a name
        return escape(text)
    return "".join(f"`{part}`" if i % 2 else escape(part) for i, part in enumerate(parts))


def table_text(results: Results) -> str:
    """Return the study's headline, notices, verdict table and remarks for a terminal with 80 columns."""
    header = ("arm", "mean", "effect", "95 % interval", "Holm p", "verdict")
    table = [(row.arm, row.mean, row.effect, row.interval, row.p, row.verdict) for row in summary.verdict_rows(results)]
    widths = [max(map(len, column)) for column in zip(header, *table, strict=True)]
    gaps = 2 * (len(widths) - 1)
    widths[0] = max(8, min(widths[0], COLUMNS - gaps - sum(widths[1:])))
    rule = tuple("-" * width for width in widths)
    names = shorten_names([cells[0] for cells in table], widths[0])
    table = [(name, *cells[1:]) for name, cells in zip(names, table, strict=True)]
    lines = [_line(cells, widths) for cells in (header, rule, *table)]
    above = [f"{results['study']}: {summary.headline(results)}", *summary.notices(results)]
    below = [
        summary.describe_noise(results),
        *designs.describe_designs(results),
        *filter(None, [summary.describe_reuse(results)]),
    ]
    return "\n".join([*map(_wrap, above), "", *lines, "", *map(_wrap, below)])


def _wrap(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    """Format a table row with left-aligned name and verdict and right-aligned numbers."""
    name, *figures, verdict = cells
    middle = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:-1], strict=True)]
    return "  ".join([f"{name:<{widths[0]}}", *middle, verdict]).rstrip()
