"""`taetpu lens knockout` and `patch`: what they print, and mistakes."""

import json

import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.lens.ablation.documents import split_documents
from taetpu.lens.ablation.knockout import knockout
from taetpu.lens.losses import find_split

pytestmark = pytest.mark.slow
RUN = "small/baseline/0"
LINES = ["the quick brown fox", "the lazy dog jumps", "a fox and the dog", "over the brown fox", "the fox jumps over",
         "quick and lazy dogs"]  # fmt: skip


@pytest.fixture
def lines(trained):
    (trained / "lines.txt").write_text("\n".join(LINES))
    return "lines.txt"


def test_effects_of_a_split_are_those_of_the_library(lens, opened):
    found = json.loads(lens("knockout", RUN, "--split", "val", "--documents", "8", "--json"))
    expected = knockout(opened, split_documents(find_split(opened, "val"), 8), "heads", "mean")
    assert [row["component"] for row in found["components"]] == [row["component"] for row in expected.rows()]
    for row, other in zip(found["components"], expected.rows(), strict=True):
        assert row == pytest.approx(other, rel=1e-6)
    assert (found["documents"], found["what"], found["how"]) == (8, "heads", "mean")
    assert found["loss"] == pytest.approx(expected.intact[0])


def test_the_table_has_intervals_and_controls_and_a_picture(lens, lines, trained):
    out = lens("knockout", RUN, lines, "--lines", "--how", "zero", "-o", "heads.png")
    header, *rows = out.splitlines()[:5]
    assert header.split() == ["component", "effect", "95", "%", "interval", "frozen", "norms", "direct"]
    assert sorted(row.split()[0] for row in rows) == ["0.0", "0.1", "1.0", "1.1"]
    assert "6 documents" in out
    assert "lower bound" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert (trained / "heads.png").stat().st_size > 1000


def test_few_documents_have_no_interval_and_say_so(lens, lines):
    out = lens("knockout", RUN, "--text", LINES[0], "--no-controls")
    assert out.splitlines()[0].split() == ["component", "effect"]
    assert "no intervals: they need at least 5 documents" in out


@pytest.mark.parametrize(("mode", "what", "columns"), [
    ("pairs", "heads", ["pair", "joint", "interaction", "low", "high"]),
    ("greedy", "mixers", ["removed", "now", "effect", "low", "high"]),
    ("importance", "heads", ["removed", "now", "effect", "low", "high"]),
    ("blocks", "layers", ["removed", "now", "effect", "low", "high", "distance"]),
])  # fmt: skip
def test_modes(lens, lines, mode, what, columns):
    out = lens("knockout", RUN, lines, "--lines", "--mode", mode, "--what", what, "--how", "zero")
    assert out.splitlines()[0].split() == columns
    assert max(map(len, out.splitlines())) <= 80


def test_counterfactual_lines(lens, lines, trained):
    (trained / "same.txt").write_text("\n".join(LINES))
    options = ("--lines", "--how", "counterfactual", "--counterfactual", "same.txt", "--json")
    found = json.loads(lens("knockout", RUN, lines, *options))
    assert np.abs([row["effect"] for row in found["components"]]).max() < 1e-5


def test_patches(lens, trained):
    pairs = [{"clean": f"the {word} fox", "corrupted": f"the {word} dog", "answer": " ", "wrong": "s"}
             for word in ("lazy", "brown", "quick")]  # fmt: skip
    (trained / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    out = lens("patch", RUN, "pairs.jsonl", "--attribution", "-o", "patches.png")
    assert out.splitlines()[0].split() == ["component", "score", "estimate"]
    assert "logit difference of 3 pairs" in out
    assert "correlation of attribution patching" in out
    whole = json.loads(lens("patch", RUN, "pairs.jsonl", "--what", "residual", "--positions", "--json"))
    # After the last layer, only the last position of the stream counts.
    last = {row["component"]: row["score"] for row in whole["components"] if row["component"].startswith("1.")}
    ends = {len(pair["clean"]) - 1 for pair in pairs}
    assert all(abs(score) < 1e-4 for name, score in last.items() if int(name[2:]) not in ends)
    path = lens("patch", RUN, "pairs.jsonl", "--receiver", "mixer.k@1.0", "--json")
    assert {row["component"] for row in json.loads(path)["components"]} == {"0.0", "0.1"}


MISTAKES = [
    (("knockout", RUN, "--text", "the fox", "--what", "headz"), "no components 'headz'", "Did you mean 'heads'"),
    (("knockout", RUN, "--text", "the fox", "--mode", "al"), "unknown mode 'al'", "each"),
    (("knockout", RUN, "--text", "the fox", "--at", "first"), "unknown targets 'first'", "Use all or last"),
    (("knockout", RUN, "--text", "the fox", "--split", "val"), "a text and an evaluation set", "Use a text or"),
    (("knockout", RUN, "--split", "vall"), "no evaluation set 'vall'", "Did you mean 'val'"),
    (("knockout", RUN, "--text", "t"), "one token", "at least two tokens"),
    (("knockout", RUN, "--text", "the fox", "--mode", "pairs", "-o", "a.png"), "pairs have no picture", "Remove --out"),
    (("patch", RUN, "none.jsonl"), "cannot read the text", "path of a text file"),
    (("patch", RUN, "words.txt"), "unknown file format '.txt'", ".jsonl"),
    (("patch", RUN, "broken.jsonl"), "the field answer is missing", "Write lines such as"),
    (("patch", RUN, "pairs2.jsonl", "--receiver", "keys"), "'keys' is not a receiver", "mixer.k@1.0"),
]


@pytest.mark.parametrize(("arguments", "problem", "remedy"), MISTAKES)
def test_mistakes(lens, trained, arguments, problem, remedy):
    (trained / "broken.jsonl").write_text('{"clean": "the fox", "corrupted": "the dog"}\n')
    (trained / "pairs2.jsonl").write_text('{"clean": "the fox", "corrupted": "the dog", "answer": " "}\n')
    with pytest.raises(UserError) as caught:
        lens(*arguments)
    assert problem in caught.value.problem
    assert remedy in str(caught.value.remedy)
