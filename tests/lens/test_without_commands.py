"""`--without` and `--means` of the commands `taetpu lens`."""

import json

import pytest
from tests.suites import by_default

from taetpu.core.errors import UserError
from taetpu.lens.ablation.documents import read_documents
from taetpu.lens.ablation.removal import remove_components, without
from taetpu.lens.perplexity import perplexity

RUN = "small/baseline/0"
TEXT = "the quick fox"
LINES = ["the lazy dog jumps", "a fox and the dog"]
WITHOUT = ("--without", "heads:0.1,1.0", "--without", "ffns:1")
COMMANDS = {
    "sample": ("sample", RUN, "--prompt", "the ", "--tokens", "8"),
    "beams": ("sample", RUN, "--prompt", "the ", "--tokens", "4", "--beams", "2"),
    "perplexity": ("perplexity", RUN, "--text", TEXT),
    "attention": ("attention", RUN, "--text", TEXT),
    "attention over training": ("attention", RUN, "--text", TEXT, "--layer", "1", "--head", "1", "--steps", "10,30"),
    "scores": ("scores", RUN, "--length", "8"),
    "logit-lens": ("logit-lens", RUN, "--text", TEXT),
    "attribution": ("attribution", RUN, "--text", TEXT),
    "norms": ("norms", RUN, "--text", TEXT),
    "knockout": ("knockout", RUN, "--text", TEXT, "--no-controls"),
    "patch": ("patch", RUN, "pairs.jsonl"),
    "embed": ("embed", RUN, "--text", TEXT),
    "probe": ("probe", RUN, "labels.jsonl"),
}


@pytest.fixture
def files(trained):
    pair = {"clean": "the lazy fox", "corrupted": "the lazy dog", "answer": " ", "wrong": "s"}
    (trained / "pairs.jsonl").write_text(json.dumps(pair))
    labels = [{"text": f"the {word} {'fox' if i % 2 else 'dog'}", "label": i % 2}
              for i in range(12) for word in ("lazy", "quick", "brown")]  # fmt: skip
    (trained / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    (trained / "lines.txt").write_text("\n".join(LINES))


@pytest.mark.parametrize("name", by_default(COMMANDS, "perplexity"))
def test_each_command_reads_the_model_without_the_parts(lens, files, trained, name):
    arguments = (*COMMANDS[name], "--json")
    intact, out = lens(*arguments), lens(*arguments, *WITHOUT)
    found = json.loads(out)
    assert found != json.loads(intact)
    assert "model: small/baseline/0 without heads 0.1, 1.0 and ffns 1\n" in lens(*arguments[:-1], *WITHOUT)
    if "model" in found:
        assert found["model"] == "small/baseline/0 without heads 0.1, 1.0 and ffns 1"


def test_parts_are_those_of_the_library(lens, opened, files):
    model = remove_components(opened, {"heads": ["0.1", "1.0"], "ffns": "1"})
    expected = perplexity(model, [TEXT]).mean
    found = json.loads(lens("perplexity", RUN, "--text", TEXT, "--json", *WITHOUT))
    assert found["mean"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("means", "documents"), [("val", None), ("lines.txt", LINES)])
def test_means(lens, opened, files, means, documents):
    reference = None if documents is None else read_documents(opened, documents)
    expected = perplexity(without(opened, "heads", "1.0", "mean", reference), [TEXT]).mean
    given = ("--without", "heads:1.0", "--means", means)
    found = json.loads(lens("perplexity", RUN, "--text", TEXT, "--json", *given))
    assert found["mean"] == pytest.approx(expected, rel=1e-6)
    assert found["model"] == "small/baseline/0 without heads 1.0 (mean)"


MISTAKES = [
    (("--without", "headz:0.1"), "no components 'headz'", "Did you mean 'heads'"),
    (("--without", "experts:0.1"), "no experts", "mixers, ffns, neurons."),
    (("--without", "heads:1.2"), "no component '1.2' among its heads", "Did you mean '1."),
    (("--without", "heads"), "'heads' is not", "heads:0.1,1.2"),
    (("--without", "heads:0.1,"), "'heads:0.1,' is not", "heads:0.1,1.2"),
    (("--without", "positions:3"), "to documents", "knockout"),
    (("--without", "layers:1", "--means", "val"), "layers are skipped", "zero"),
    (("--means", "val"), "requires --without", "Add --without"),
    (("--without", "heads:0.1", "--means", "vall"), "'vall' is neither", "Did you mean 'val'"),
    (("--without", "heads:0.1", "--means", "nope"), "'nope' is neither", "Use one of: val. Or use the path"),
    (("--without", "heads:0.1", "--means", "empty.txt"), "empty.txt has no text", "in each line"),
]


@pytest.mark.parametrize(("given", "problem", "remedy"), MISTAKES)
def test_mistakes(lens, trained, given, problem, remedy):
    (trained / "empty.txt").write_text("\n")
    with pytest.raises(UserError) as caught:
        lens("norms", RUN, "--text", TEXT, *given)
    assert problem in caught.value.problem
    assert remedy in str(caught.value.remedy)
    assert caught.value.path in (("--without",), ("--means",))
    assert caught.value.exit_code == 2
