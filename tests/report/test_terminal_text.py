"""The results as plain text: sorted verdicts, joint effects, and why an interval without 0 is inconclusive."""

from itertools import pairwise

import pytest
from tests.report.designed import designed

from taetpu.report import summary
from taetpu.report.terminal_text import table_text, text_table
from taetpu.report.verdict_style import PENDING, VERDICTS

ORDER = [*VERDICTS, *PENDING]


def table_below(text: str, column: str) -> list[list[str]]:
    """Return the words of the rows of the table whose header begins with `column`."""
    block = next(block for block in text.split("\n\n") if block.startswith(f"{column} "))
    return [line.split() for line in block.splitlines()[2:]]


def test_text_table_fits_a_terminal(store_study):
    long = "a-name-that-goes-on-and-on-and-is-longer-than-any-terminal-would-like-it-to-be"
    results = store_study(
        {"baseline": ({}, 0.0), long: ({}, 0.1), "short": ({}, 0.0), "gone": ({}, None)}
    ).read_results()
    text = table_text(results)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80
    rows = {row.arm: row for row in summary.verdict_rows(results)}
    for line in text.split("\n\n")[1].splitlines()[2:]:
        row = rows[long if line.startswith("a-name-") else line.split()[0]]
        assert (".." in line) == (row.arm == long)
        assert line.endswith(row.verdict)
        assert f" {row.effect} " in line
        assert f" {row.interval} " in line


def test_wide_tables_keep_recognisable_names_and_every_digit():
    names = [f"baseline@train.optimizer.lr=0.{'0' * i}1" for i in range(3)]
    row = ("0.69314718", "+0.00000746", "+0.00000501 to +0.00000991", "<0.001", "inconclusive")
    lines = text_table(("arm", "mean", "effect", "95 % interval", "Holm p", "verdict"), [(n, *row) for n in names])
    assert max(map(len, lines)) <= 80
    assert all("  0.69314718  +7.46e-6  +5.01e-6 to +9.91e-6  <0.001  inconclusive" in line for line in lines[2:5])
    legend = dict(line.split(" = ") for line in lines[6:])
    assert [legend[line.split()[0]] for line in lines[2:5]] == names
    assert min(map(len, legend)) > 12
    assert "+0.00000746" in text_table(("arm", "mean", "effect", ""), [("a", "1", "+0.00000746", "")])[2]


def test_verdicts_are_sorted_by_kind_and_size(results):
    """The baseline is first. Within a verdict, the largest effect is first."""
    effects = {arm["name"]: abs(arm["effect"] or 0.0) for arm in results["arms"]}
    verdicts = {row.arm: row.verdict for row in summary.verdict_rows(results)}
    first, *names = [words[0] for words in table_below(table_text(results), "arm")]
    assert first == "baseline"
    assert sorted(names) == sorted(set(effects) - {"baseline"})
    keys = [(ORDER.index(verdicts[name]), -effects[name]) for name in names]
    assert keys == sorted(keys)
    assert len(set(verdicts.values())) > 3


def test_arms_of_a_scale_follow_its_baseline(tmp_path):
    results = designed(tmp_path / "s", "parts", lambda run: 2.0 + run.config.model.dim / 100).read_results()
    scales = [words[0].partition("@")[2] for words in table_below(table_text(results), "arm")]
    assert len(set(scales)) == 3
    assert sum(one != other for one, other in pairwise(scales)) == 2


@pytest.mark.parametrize(("p", "reason"), [(0.073, "corrected p is 0.073 for nope"), (0.01, "nope: it diverged")])
def test_an_interval_without_0_that_is_inconclusive_is_explained(results, p, reason):
    for arm in results["arms"]:
        if arm["verdict"] == "inconclusive":
            arm["verdict"] = "equivalent"
        if arm["name"] == "nope":
            arm |= {"verdict": "inconclusive", "ci95": [0.002, 0.06], "p_holm": p, "evidence": "it diverged"}
    text = " ".join(table_text(results).split())
    assert reason in text
    results["arms"][1]["ci95"] = [-0.001, 0.06]
    assert reason not in " ".join(table_text(results).split())


def test_joint_effects_of_parts_and_factors(tmp_path):
    def loss(run) -> float:
        layer = run.config.model.layers[0]
        position, ffn = layer.position.kind == "none", layer.ffn.kind == "none"
        return 2 + 0.2 * position + 0.3 * ffn + 0.1 * (position and ffn)

    parts = table_text(designed(tmp_path / "parts", "parts", loss).read_results())
    joint = next(block for block in parts.split("\n\n") if "left out together" in block)
    assert max(map(len, parts.splitlines())) <= 80
    words = " ".join(joint.split())
    figures = [float(words.split(before)[1].split()[0].rstrip(".;")) for before in
               ("an effect of ", "single effects is ", "difference is ")]  # fmt: skip
    assert figures == pytest.approx([0.6, 0.5, 0.1], abs=0.03)

    factors = table_text(designed(tmp_path / "factors", "fraction", loss).read_results())
    rows = table_below(factors, "factor")
    assert rows[0][0] == "ffn"
    assert rows[0][-1] == "significant"
    assert [abs(float(row[row.index("to") - 2])) for row in rows] == sorted(
        (abs(float(row[row.index("to") - 2])) for row in rows), reverse=True
    )


def test_contrasts_are_listed(results):
    results["contrasts"] = [{"name": "sizes", "effect": 0.1, "ci95": [0.05, 0.15], "p_holm": 0.001, "verdict": "worse"}]
    assert table_below(table_text(results), "contrast") == [
        ["sizes", "+0.100", "+0.050", "to", "+0.150", "0.001", "worse"]
    ]
