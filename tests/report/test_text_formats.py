"""Exports as Markdown, LaTeX and CSV show the numbers of the results and escape all text."""

import csv
import io
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt

from taetpu.report import summary
from taetpu.report.inputs import Inputs
from taetpu.report.sections import build_sections
from taetpu.report.text_formats import (
    arms_csv,
    escape_latex,
    escape_prose,
    format_figure,
    latex_table,
    markdown,
    runs_csv,
)


def cells(text: str) -> list[str]:
    """Return the text of every table cell in a Markdown document."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    within = [after for before, after in pairwise(tokens) if before.type in ("td_open", "th_open")]
    return ["".join(child.content for child in token.children or []) for token in within]


def test_markdown_table_shows_the_results(results) -> None:
    found = cells(markdown(results, Inputs()))
    table = [found[i : i + 8] for i in range(8, 8 * (1 + len(results["arms"])), 8)]
    for line, row in zip(table, summary.verdict_rows(results), strict=True):
        assert line == [row.arm, row.change, row.mean, row.effect, row.interval, row.noise_sd, row.p, row.verdict]


def test_other_metrics_of_the_evaluation_set_are_shown(results) -> None:
    for i, arm in enumerate(results["arms"]):
        arm["metrics"] = {results["primary"]: 1.0, "val/f1": 0.25 + i, "val/f1.yes": 0.5, "train/loss": 2.0}
    (section,) = (each for each in build_sections(results, {}, {}) if each.title == "Other metrics")
    assert section.tables[0].columns == ("arm", "val/f1")
    assert section.tables[0].rows == [[arm["name"], f"{i + 0.25:.4g}"] for i, arm in enumerate(results["arms"])]


def test_markdown_escapes_names(store_study) -> None:
    name = "a|b `c` *d* <script> [x](y) &amp; ~~z~~ $m$"
    results = store_study({"baseline": ({}, 0.0), name: ({"note": "one\ntwo | three"}, 0.1)}).read_results()
    found = cells(markdown(results, Inputs()))
    assert found[16:18] == [name, "note: one two | three"]
    assert (
        found.count(name)
        == sum(any(name in row for row in t.rows) for p in build_sections(results, {}, {}) for t in p.tables) + 1
    )


def test_code_in_a_sentence_stays_code_and_other_text_is_escaped() -> None:
    assert escape_prose("as it *is* (see `match: params` there)") == r"as it \*is\* (see `match: params` there)"
    assert escape_prose("an odd ` alone") == r"an odd \` alone"


def test_csv_has_every_number_at_full_precision(results):
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(arms_csv(results)))}
    assert list(rows) == [arm["name"] for arm in results["arms"]]
    for arm in results["arms"]:
        row = rows[arm["name"]]
        for name in ("mean", "effect", "p", "p_holm", "sd", "params"):
            assert row[name] == ("" if arm[name] is None else str(arm[name]))
            assert not row[name] or float(row[name]) == arm[name]
        ends = [float(row[f"ci95_{end}"]) if row[f"ci95_{end}"] else None for end in ("low", "high")]
        assert ends == (arm["ci95"] or [None, None])
    runs = list(csv.DictReader(io.StringIO(runs_csv(results))))
    assert len(runs) == sum(len(arm["runs"]) for arm in results["arms"])
    assert {run["outcome"] for run in runs} == {"finished", "diverged"}


def test_latex_has_a_row_for_each_arm_and_the_caveats_in_the_caption(results):
    text = latex_table(results)
    body = text.split("\\midrule\n")[1].split("  \\bottomrule")[0]
    assert [line.split(" & ")[0].strip() for line in body.splitlines()] == [
        escape_latex(arm["name"]) for arm in results["arms"]
    ]
    assert all(line.count(" & ") == 6 and line.endswith(" \\\\") for line in body.splitlines())
    assert "Diverged runs" in text.split("\\caption")[1]
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("plain", "typeset"),
    [
        ("a_b & 5% $x {y} #1", r"a\_b \& 5\% \$x \{y\} \#1"),
        ("rope \u2192 none", r"rope $\to$ none"),
        ("~^\\<|", r"\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}\textbar{}"),
    ],
)
def test_latex_escapes_text(plain, typeset):
    assert escape_latex(plain) == typeset


@pytest.mark.parametrize(
    ("plain", "typeset"),
    [("-", "--"), ("-0.02", "$-0.02$"), ("-0.1 to +0.2", "$-0.1$ to $+0.2$"), ("<0.001", "$<0.001$")],
)
def test_latex_typesets_figures_in_math_mode(plain, typeset):
    assert format_figure(plain) == typeset
