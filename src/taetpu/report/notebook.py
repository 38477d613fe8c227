"""HTML for notebooks, without scripts: a study's headline, verdicts and forest plot, and the effects of components."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.notebook_html import paragraph, table
from taetpu.report import charts, summary
from taetpu.report.chart_files import draw_svg, render_svg
from taetpu.report.verdict_style import MARKS, VERDICTS
from taetpu.stats.results import Results

COLUMNS = ("arm", "change", "verdict", "mean", "effect", "95 % interval", "Holm p")
SHOWN = 10
"""The maximum number of effects in a table."""


def notebook_html(results: Results, report: Mapping[str, str], problems: Sequence[str] = ()) -> str:
    """Return a study's results as HTML.

    Args:
        results: the content of `results.json`.
        report: location of each of the report's files by format.
        problems: messages shown above the results.
    """
    rows = []
    for r in summary.verdict_rows(results):
        verdict = f"{MARKS[r.verdict]} {r.verdict_on_terms}" if r.verdict in VERDICTS else r.verdict_on_terms
        rows.append([r.arm, r.change, verdict, r.mean, r.effect, r.interval, r.p])
    forest = charts.forest_plot(results)
    parts = [
        paragraph(summary.headline(results), strong=results["study"]),
        *map(paragraph, [*problems, *summary.notices(results)]),
        table(COLUMNS, rows, left=3),
        _plot_html(render_svg(forest, charts.INLINE_THEME)) if forest else "",
        paragraph(summary.describe_noise(results)),
        *([paragraph(report["html"], strong="report:")] if "html" in report else []),
    ]
    return "".join(parts)


def _plot_html(drawing: str) -> str:
    """Wrap an SVG in a block with space on the left, since labels may be wider in the reader's font."""
    roomy = drawing.replace("<svg ", '<svg style="overflow:visible" ', 1)
    return f'<div style="overflow-x:auto;padding-left:3em">{roomy}</div>'


def effects_html(
    model: str, sentence: str, rows: Sequence[Mapping[str, Any]], chart: Callable[[], Any] | None = None
) -> str:
    """Return the effects of components as HTML: a sentence, the picture, and a table of the first rows.

    Args:
        model: The name of the model.
        sentence: The sentence after the name.
        rows: A row for each component, with equal keys.
        chart: A function that returns the picture. A picture that has too many parts is omitted.
    """
    parts = [paragraph(sentence, strong=f"{model}:")]
    with suppress(UserError):
        parts += [] if chart is None else [_plot_html(draw_svg(chart()))]
    shown = [[_format_number(value) for value in row.values()] for row in rows[:SHOWN]]
    parts.append(table([*rows[0]], shown) if rows else "")
    if len(rows) > SHOWN:
        parts.append(paragraph(f"{len(rows) - SHOWN:,} more: see rows()"))
    return "".join(parts)


def _format_number(value: object) -> object:
    if not isinstance(value, float):
        return value
    return "" if value != value else f"{value:+.4f}"
