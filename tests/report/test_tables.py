"""The results as LaTeX and CSV: the numbers of results.json, and text that is set as it is written."""

import csv
import io

import pytest

from taetpu.report.csvs import arms_csv, runs_csv
from taetpu.report.latex import escape, format_figure, latex_table


@pytest.fixture
def results(store_study):
    return store_study(equivalence=0.02).read_results()


def test_csv_holds_every_number_in_full(results):
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


def test_latex_has_a_row_for_each_arm_and_says_what_speaks_against_it(results):
    text = latex_table(results)
    body = text.split("\\midrule\n")[1].split("  \\bottomrule")[0]
    assert [line.split(" & ")[0].strip() for line in body.splitlines()] == [
        escape(arm["name"]) for arm in results["arms"]
    ]
    assert all(line.count(" & ") == 6 and line.endswith(" \\\\") for line in body.splitlines())
    assert "Diverged runs" in text.split("\\caption")[1]
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("plain", "set"),
    [
        ("a_b & 5% $x {y} #1", r"a\_b \& 5\% \$x \{y\} \#1"),
        ("rope -> none", r"rope $\to$ none"),
        ("~^\\<|", r"\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}\textbar{}"),
    ],
)
def test_text_is_set_as_it_is_written(plain, set):
    assert escape(plain) == set


@pytest.mark.parametrize(
    ("plain", "set"),
    [("-", "--"), ("-0.02", "$-0.02$"), ("-0.1 to +0.2", "$-0.1$ to $+0.2$"), ("<0.001", "$<0.001$")],
)
def test_figures(plain, set):
    assert format_figure(plain) == set
