"""Reports as Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from taetpu.report import overview, summary
from taetpu.report.inputs import Inputs
from taetpu.report.judged import seed_cells, seed_columns
from taetpu.report.section_types import Section, Table
from taetpu.report.sections import build_sections
from taetpu.stats.results import Results

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|&~$])")
_POWER = re.compile(r"(?<=\d)e(-?\d+)")
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\u2192": r"$\to$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
ARM = ("name", "against", "change", "planned", "diverged", "mean", "sd", "effect", "effect_sd", "p", "p_holm",
       "p_equivalent", "guarded", "more_seeds", "params", "flops", "tokens")  # fmt: skip
INTERVALS = ("ci95", "ci90", "ci_simultaneous")


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown(results: Results, inputs: Inputs) -> str:
    """Return the report as GitHub-flavoured Markdown."""
    lines = [f"# {escape(results['study'])}", "", f"**{escape(summary.headline(results))}**", ""]
    lines += [f"- {escape(line)}" for line in overview.rank_effects(results)]
    lines += ["", *(f"{escape(line)}\n" for line in inputs.trained)]
    lines += [f"> {escape_prose(notice)}\n" for notice in [*summary.notices(results), *inputs.cautions]]
    columns = ("arm", "change", "mean", "effect", "95 % interval", "effect / sd", "Holm p", "verdict")
    rows = summary.verdict_rows(results, inputs.costs)
    cells = [[r.arm, r.change, r.mean, r.effect, r.interval, r.noise_sd, r.p, r.verdict_on_terms] for r in rows]
    if not summary.is_search(results):
        lines += [escape(summary.describe_effects(results)), "", *_table(Table(columns, cells, left=2)), ""]
        lines += [escape(summary.describe_noise(results)), ""]
        lines += ["## Evidence", ""] if len(rows) > 1 else []
        lines += [f"- **{escape(row.arm)}**: {escape(row.evidence)}" for row in rows if row.verdict != "baseline"]
    for section in build_sections(results, inputs.costs, inputs.priors, inputs.places, inputs.measured, inputs.spent):
        lines += _section(section)
    lines += ["", escape(summary.describe_reuse(results))]
    return "\n".join(lines).rstrip() + "\n"


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
    return "".join(f"`{part}`" if i % 2 else _MARKDOWN.sub(r"\\\1", part) for i, part in enumerate(parts))


# --- LaTeX ------------------------------------------------------------------------------------------------------------


def latex_table(results: Results) -> str:
    r"""Return a LaTeX `table` with caption and label, for use with `\input`. It requires `\usepackage{booktabs}`.

    The caption consists of the headline, the metric and the caveats.
    """
    columns = ("Arm", "Change", "Mean", "Effect", r"95\,\% interval", r"Holm $p$", "Verdict")
    rows = [
        (
            *map(escape_latex, (r.arm, r.change)),
            *map(format_figure, (r.mean, r.effect, r.interval, r.p)),
            escape_latex(r.verdict_on_terms),
        )
        for r in summary.verdict_rows(results)
    ]
    caption = " ".join([summary.headline(results), summary.describe_effects(results), *summary.notices(results)])
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escape_latex(caption)}}}",
        rf"  \label{{tab:{results['study']}}}",
        r"  \begin{tabular}{llrrrrl}",
        r"  \toprule",
        f"  {' & '.join(columns)} \\\\",
        r"  \midrule",
        *(f"  {' & '.join(row)} \\\\" for row in rows),
        r"  \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def format_figure(text: str) -> str:
    """Format a number or an interval in math mode, so that minus signs are typeset correctly."""
    if " of " in text:  # numbers of solved runs
        return escape_latex(text)
    powers = _POWER.sub(r"\\times10^{\1}", text)
    return "--" if text == "-" else " to ".join(f"${part}$" for part in powers.split(" to "))


def escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


# --- CSV --------------------------------------------------------------------------------------------------------------


def arms_csv(results: Results) -> str:
    """Return CSV with a row for each arm and all numbers at full precision. Missing numbers are empty."""
    return _csv(*arm_rows(results))


def arm_rows(results: Results) -> tuple[list[str], list[list[Any]]]:
    """Return the names of the columns, and a row for each arm with all its numbers; None for a missing number."""
    ends = [f"{name}_{end}" for name in INTERVALS for end in ("low", "high")]
    rows = [
        [
            *(arm[name] for name in ARM),
            summary.verdict_label(arm),
            *(end for name in INTERVALS for end in arm[name] or (None, None)),
        ]
        for arm in results["arms"]
    ]
    return [*ARM, "verdict", *ends], rows


def runs_csv(results: Results) -> str:
    """Return CSV with a row for each run: the arm, seed or block, ID, outcome and value of the primary metric.

    The value of a diverged run is `nan`, which `taetpu judge` reads as such; that of an unfinished run is empty.
    """
    columns, rows = run_rows(results)
    return _csv(columns, [[*row[:-1], "nan" if row[-2] == "diverged" else row[-1]] for row in rows])


def run_rows(results: Results) -> tuple[list[str], list[list[Any]]]:
    """Return the names of the columns, and a row for each run; see `runs_csv`."""
    rows = [
        [arm["name"], *seed_cells(results, run["seed"]), *(run[name] for name in ("id", "outcome", "value"))]
        for arm in results["arms"]
        for run in arm["runs"]
    ]
    taken = {*(results.get("judged") or {"block": ()})["block"], results["primary"]}  # the names in the table are kept
    arm, *others = (f"run_{name}" if name in taken else name for name in ("arm", "id", "outcome"))
    return [arm, *seed_columns(results), *others, results["primary"]], rows


def _csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *lines])
    return out.getvalue()
