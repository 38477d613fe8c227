"""Verdict table as LaTeX with booktabs."""

from taetpu.report import summary
from taetpu.report.comparison import Results

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def latex_table(results: Results) -> str:
    r"""Return a LaTeX `table` with caption and label for `\input`, which requires `\usepackage{booktabs}`."""
    columns = ("Arm", "Change", "Mean", "Effect", r"95\,\% interval", r"Holm $p$", "Verdict")
    rows = [
        [escape(r.arm), escape(r.change), *map(format_figure, (r.mean, r.effect, r.interval, r.p)), escape(_verdict(r))]
        for r in summary.verdict_rows(results)
    ]
    body = [f"  {' & '.join(row)} \\\\" for row in rows]
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escape(caption(results))}}}",
        rf"  \label{{tab:{results['study']}}}",
        r"  \begin{tabular}{llrrrrl}",
        r"  \toprule",
        f"  {' & '.join(columns)} \\\\",
        r"  \midrule",
        *body,
        r"  \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def caption(results: Results) -> str:
    """Return the caption, which consists of the headline, the metric and the caveats."""
    better = "lower" if results["direction"] == "min" else "higher"
    seeds = len(results["seeds"])
    text = (
        f"{summary.headline(results)} {summary.metric_with_unit(results['primary'])}, {better} is better; "
        f"effects are arm minus baseline over {seeds} seed{'' if seeds == 1 else 's'}."
    )
    return " ".join([text, *summary.notices(results)])


def _verdict(row: summary.Row) -> str:
    return f"{row.verdict}, {row.terms}" if row.terms else row.verdict


def format_figure(text: str) -> str:
    """Format a number or an interval in math mode, so that minus signs are typeset correctly."""
    if text == "-":
        return "--"
    if text.startswith("<"):
        return f"$<{text[1:]}$"
    return " to ".join(f"${part}$" for part in text.split(" to "))


def escape(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(_SPECIAL.get(sign, sign) for sign in text).replace(r"-\textgreater{}", r"$\to$")
