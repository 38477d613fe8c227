"""HTML summary of a study for notebooks, with headline, verdicts and forest plot but without scripts."""

from collections.abc import Mapping, Sequence

from taetpu.core.notebook_html import paragraph, table
from taetpu.report import charts, summary
from taetpu.report.chart_files import render_svg
from taetpu.report.summary import Results

COLUMNS = ("arm", "change", "verdict", "mean", "effect", "95 % interval", "Holm p")


def notebook_html(results: Results, report: Mapping[str, str], problems: Sequence[str] = ()) -> str:
    """Return a study's results as HTML.

    Args:
        results: the content of `results.json`.
        report: location of each of the report's files by format.
        problems: messages shown above the results.
    """
    rows = []
    for r in summary.verdict_rows(results):
        verdict = f"{summary.MARKS.get(r.verdict, '')} {r.verdict_on_terms}".strip()
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
