"""Markdown and plain text: they parse, fit, and have the figures of the results."""

from itertools import pairwise

from markdown_it import MarkdownIt

from taetpu.report import summary
from taetpu.report.contents import build_sections
from taetpu.report.exports import escape_prose, markdown, table_text
from taetpu.report.inputs import Background


def cells(text: str) -> list[str]:
    """The text of every cell of the tables in a Markdown document."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    within = [after for before, after in pairwise(tokens) if before.type in ("td_open", "th_open")]
    return ["".join(child.content for child in token.children or []) for token in within]


def test_markdown_table_is_the_results(store_study) -> None:
    results = store_study().read_results()
    found = cells(markdown(results, Background()))
    table = [found[i : i + 8] for i in range(8, 8 * (1 + len(results["arms"])), 8)]
    for line, row in zip(table, summary.verdict_rows(results), strict=True):
        assert line == [row.arm, row.change, row.mean, row.effect, row.interval, row.noise_sd, row.p, row.verdict]


def test_markdown_survives_hostile_names(store_study) -> None:
    name = "a|b `c` *d* <script> [x](y) &amp; ~~z~~ $m$"
    results = store_study({"baseline": ({}, 0.0), name: ({"note": "one\ntwo | three"}, 0.1)}).read_results()
    found = cells(markdown(results, Background()))
    assert found[16:18] == [name, "note: one two | three"]
    assert (
        found.count(name)
        == sum(any(name in row for row in t.rows) for p in build_sections(results, {}) for t in p.tables) + 1
    )


def test_text_table_fits_a_terminal(store_study) -> None:
    long = "a-name-that-goes-on-and-on-and-is-longer-than-any-terminal-would-like-it-to-be"
    results = store_study(
        {"baseline": ({}, 0.0), long: ({}, 0.1), "short": ({}, 0.0), "gone": ({}, None)}
    ).read_results()
    text = table_text(results)
    assert max(map(len, text.splitlines())) <= 80
    table = text.split("\n\n")[1].splitlines()
    for line, row in zip(table[2:], summary.verdict_rows(results), strict=True):
        assert line.endswith(row.verdict)
        assert f" {row.effect} " in line
        assert f" {row.interval} " in line
    assert ".." in table[3]
    assert table[3].startswith("a-name-")


def test_text_is_plain(store_study) -> None:
    assert table_text(store_study().read_results()).isascii()


def test_code_in_a_sentence_stays_code_and_all_else_is_shown_as_it_is() -> None:
    assert escape_prose("as it *is* (`match: params`)") == r"as it \*is\* (`match: params`)"
    assert escape_prose("an odd ` alone") == r"an odd \` alone"
