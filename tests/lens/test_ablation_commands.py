"""`taetpu lens knockout` and `patch`: what they print, and mistakes."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from taetpu.cli.main import app
from taetpu.core.errors import UserError
from taetpu.lens.ablation import passes
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
    assert "no intervals" in out
    assert "at least 5 documents" in out


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
    options = ("--lines", "--no-controls", "--how", "counterfactual", "--counterfactual")
    with pytest.raises(UserError, match=r"all 6 counterfactual documents .*equal") as caught:
        lens("knockout", RUN, lines, *options, "same.txt")
    assert caught.value.exit_code == 2
    (trained / "other.txt").write_text("\n".join(line[::-1] for line in LINES))
    found = json.loads(lens("knockout", RUN, lines, *options, "other.txt", "--json"))
    assert np.abs([row["effect"] for row in found["components"]]).max() > 1e-4


def test_layers_are_skipped_by_default(lens, lines):
    found = json.loads(lens("knockout", RUN, lines, "--lines", "--what", "layers", "--no-controls", "--json"))
    assert found["how"] == "zero"
    assert len(found["components"]) == 2


@pytest.mark.parametrize(("mode", "what", "title"), [
    ("each", "heads", "removing each of 4 heads takes 15 passes"),
    ("pairs", "heads", "each pair of 4 heads takes 11 passes"),
    ("greedy", "heads", "the order 'greedy' of 4 heads takes 13 passes"),
    ("importance", "heads", "the order 'importance' of 4 heads takes 13 passes"),
    ("blocks", "layers", "the order 'blocks' of 2 layers takes 3 passes"),
])  # fmt: skip
def test_the_time_is_printed_first_without_a_terminal(lens, monkeypatch, mode, what, title):
    given = ("knockout", RUN, "--split", "val", "--documents", "5", "--mode", mode, "--what", what, "--how", "zero")
    assert title not in lens(*given)
    monkeypatch.setattr(passes, "TIMED", 0)
    monkeypatch.setattr(passes, "LONG", 0.0)
    result = CliRunner().invoke(app, ["lens", *given, "--root", "runs"])
    assert result.output.startswith(title)  # both streams, in the order of their lines
    assert result.stderr.startswith(title)


def test_a_knockout_of_parts_that_are_missing_already_is_refused(lens):
    given = ("knockout", RUN, "--split", "val", "--what", "mixers", "--layer", "1", "--how", "zero", "--no-controls")
    with pytest.raises(UserError, match="removing mixers 1") as caught:
        lens(*given, "--without", "mixers:1")
    assert caught.value.exit_code == 2


def test_rows_that_are_cut_are_counted(lens, lines):
    out = lens("knockout", RUN, lines, "--lines", "--what", "neurons", "--no-controls", "--top", "3")
    more = re.search(r"77 further neurons, with effects from (\S+) to (\S+): see --top", " ".join(out.split()))
    rows = json.loads(lens("knockout", RUN, lines, "--lines", "--what", "neurons", "--no-controls", "--json"))
    effects = [row["effect"] for row in rows["components"][3:]]
    assert more is not None
    assert [float(end) for end in more.groups()] == pytest.approx([min(effects), max(effects)], abs=1e-4)
    assert min(effects) < 0
    out = lens("knockout", RUN, lines, "--lines", "--mode", "pairs", "--how", "zero", "--top", "2")
    assert re.search("4 further pairs, .* at most ±", " ".join(out.split()))


@pytest.fixture
def pairs(trained):
    rows = [{"clean": f"the {word} fox", "corrupted": f"the {word} dog", "answer": " ", "wrong": "s"}
            for word in ("lazy", "brown", "quick")]  # fmt: skip
    (trained / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return rows


def test_patches_are_sorted_by_their_size(lens, pairs):
    whole = json.loads(lens("patch", RUN, "pairs.jsonl", "--what", "neurons", "--json"))
    scores = [row["score"] for row in whole["components"]]
    assert min(scores) < 0 < max(scores)
    assert scores == sorted(scores, key=abs, reverse=True)
    out = " ".join(lens("patch", RUN, "pairs.jsonl", "--what", "neurons", "--top", "5").split())
    assert re.search(rf"{len(scores) - 5} further rows, .* ±{abs(scores[5]):.3f}: see --top", out)


def test_patches(lens, pairs):
    out = lens("patch", RUN, "pairs.jsonl", "--attribution", "-o", "patches.png")
    assert out.splitlines()[0].split() == ["component", "score", "estimate"]
    assert "logit difference of 3 pairs" in out
    assert "of attribution patching" in out
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
    (("knockout", RUN, "--text", "the fox", "--at", "first"), "unknown targets 'first'", "all or last"),
    (("knockout", RUN, "--text", "the fox", "--split", "val"), "an evaluation set", "a text or"),
    (("knockout", RUN, "--split", "vall"), "no evaluation set 'vall'", "Did you mean 'val'"),
    (("knockout", RUN, "--text", "t"), "one token", "two tokens"),
    (("knockout", RUN, "--text", "the fox", "--mode", "pairs", "-o", "a.png"), "pairs have no picture", "Remove --out"),
    (
        ("knockout", RUN, "--text", "the fox", "--mode", "greedy", "--what", "mixers", "--layer", "1"),
        "of the kind mixers",
        "remove --layer",
    ),
    (
        ("knockout", RUN, "--text", "the fox", "--what", "experts"),
        "no experts",
        "layers, heads",
    ),
    (("knockout", RUN, "--text", "the fox", "--how", "zap"), "unknown replacement 'zap'", "zero"),
    (("knockout", RUN, "--text", "the fox", "--how", "noise", "--sigma", "0"), "sigma is 0", "above 0"),
    (("knockout", RUN, "--text", "the fox", "--sigma", "2"), "--sigma 2.0 has no effect", "noise"),
    (("knockout", RUN, "--text", "the fox", "--draws", "2"), "--draws 2 has no effect", "resample or noise"),
    (("knockout", RUN, "--text", "the fox", "--steps", "2"), "--steps 2 has no effect", "--how optimal"),
    (("knockout", RUN, "--text", "the fox", "--how", "zero", "--by-position"), "--by-position has no effect", "mean"),
    (
        ("knockout", RUN, "--text", "the fox", "--how", "zero", "--reference", "words.txt"),
        "--reference words.txt has no effect",
        "or noise or optimal",
    ),
    (("knockout", RUN, "--text", "the fox", "--counterfactual", "words.txt"), "has no effect", "counterfactual"),
    (("knockout", RUN, "--split", "val", "--lines"), "--lines ", "Remove --lines or --split"),
    (("knockout", RUN, "--text", "the fox", "--documents", "3"), "--documents 3 ", "Add --split"),
    (
        ("knockout", RUN, "--text", "the fox", "--mode", "pairs", "--no-controls"),
        "--no-controls has no effect",
        "--mode each",
    ),
    (
        ("knockout", RUN, "--text", "the fox", "--mode", "greedy", "--controls"),
        "--controls has no effect",
        "Remove --controls",
    ),
    (
        ("patch", RUN, "pairs2.jsonl", "--receiver", "mixer.k@1.0", "--attribution"),
        "--attribution has no effect",
        "Remove --attribution",
    ),
    (("patch", RUN, "pairs2.jsonl", "--what", "layers"), "layers are skipped", "--what residual"),
    (
        ("patch", RUN, "pairs2.jsonl", "--what", "layers", "--receiver", "mixer.k@1.0"),
        "layers are skipped",
        "--what residual",
    ),
    (("patch", RUN, "pairs2.jsonl", "--positions"), "'heads' is not one", "Add --what residual"),
    (("patch", RUN, "unknown.jsonl"), "unknown field 'wrng'", "Did you mean 'wrong'"),
    (("patch", RUN, "none.jsonl"), "cannot read", "a text file"),
    (("patch", RUN, "words.txt"), "unknown file format '.txt'", ".jsonl"),
    (("patch", RUN, "broken.jsonl"), "answer is missing", "lines such as"),
    (("patch", RUN, "pairs2.jsonl", "--receiver", "keys"), "'keys' is not", "mixer.k@1.0"),
]


@pytest.mark.parametrize(("arguments", "problem", "remedy"), MISTAKES)
def test_mistakes(lens, trained, arguments, problem, remedy):
    (trained / "broken.jsonl").write_text('{"clean": "the fox", "corrupted": "the dog"}\n')
    (trained / "pairs2.jsonl").write_text('{"clean": "the fox", "corrupted": "the dog", "answer": " "}\n')
    row = '{"clean": "the fox", "corrupted": "the dog", "answer": " ", "wrng": "s"}\n'
    (trained / "unknown.jsonl").write_text(row)
    with pytest.raises(UserError) as caught:
        lens(*arguments)
    assert caught.value.exit_code == 2
    assert problem in caught.value.problem
    assert remedy in str(caught.value.remedy)
