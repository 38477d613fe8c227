"""Invalid input exits with 2, one message with problem, place and remedy, and no change on disk."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Mistake(NamedTuple):
    """Replace `old` in the tiny study by `new` (or append `new`), and the expected parts of the message."""

    old: str
    new: str
    problem: str
    where: str
    remedy: str = ""


ARM = "{train.optimizer.lr: 1e-4}"
TASK = "{kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}"
MISTAKES = {
    "an unknown kind": Mistake(
        ARM, "{model.ffn: swigloo}", "unknown ffn kind 'swigloo'", "8 at arms.low-lr.model.ffn.kind",
        "Did you mean 'swiglu'?"),
    "an unknown field": Mistake(
        "dim: 16,", "dim: 16, depth: 2,", "unknown field 'depth'", "4 at base.model.depth", "after, bias, dim,"),
    "an override that matches nothing": Mistake(
        ARM, "{model.mixr.num_heads: 1}", "'model.mixr.num_heads' matches nothing",
        "8 at arms.low-lr.model.mixr.num_heads", "Did you mean 'mixer'?"),
    "an unknown task": Mistake(
        "kind: copy", "kind: copi", "unknown task kind 'copi'", "3 at base.task.kind", "Did you mean 'copy'?"),
    "a missing file": Mistake(
        TASK, "{kind: text, source: txet.txt, seq_len: 8}", "no file or folder 'txet.txt'", "3 at base.task.source",
        "remedy:"),
    "an empty corpus": Mistake(
        TASK, "{kind: text, source: empty.txt, seq_len: 8}", "empty", "3 at base.task.source", "remedy:"),
    "a sequence longer than the data": Mistake(
        TASK, "{kind: text, source: text.txt, split: order, seq_len: 5000}", "seq_len 5000 is longer than",
        "3 at base.task.seq_len", "remedy:"),
    "heads that do not divide": Mistake(
        "num_heads: 2", "num_heads: 3", "dim=16 is not divisible by num_heads=3", "4 at base.model.mixer.num_heads",
        "num_heads to one of 1, 2, 4"),
    "a wrong type": Mistake(
        "steps: 20", "steps: ten", "'ten' is not allowed: must be a valid integer", "5 at base.train.steps"),
    "negative steps": Mistake(
        "steps: 20", "steps: -20", "-20 is not allowed: must be greater than or equal to 0", "5 at base.train.steps"),
    "a YAML typo": Mistake("num_heads: 2}}", "num_heads: 2}", "not valid YAML", "5", "Check colons"),
    "a duplicate key": Mistake("", "seeds: 3", "a key is given twice: 'seeds: 3'", "9", "Remove or rename"),
    "a duplicate arm": Mistake(
        "", "  low-lr: {model.ffn: none}", "a key is given twice: 'low-lr: ", "9", "rename"),
    "an unknown primary metric": Mistake(
        "", "measure: {primary: val/los}", "'val/los'", "9 at measure.primary", "Did you mean 'val/loss'?"),
    "an unknown tracker": Mistake(
        "", "trackers: [tensorbord]", "unknown tracker kind 'tensorbord'", "9 at trackers.tensorbord.kind",
        "Did you mean 'tensorboard'?"),
    "an unknown field of a tracker": Mistake(
        "", "trackers: {wandb: {projekt: mine}}", "unknown field 'projekt'", "9 at trackers.wandb.projekt",
        "Did you mean 'project'?"),
}  # fmt: skip


def refused(done, *said: str) -> None:
    """Check that a command printed a single error message with the given parts."""
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    for part in said:
        assert part in done.err
    others = done.err.splitlines()[1:]
    assert [line for line in others if not re.match(r"  (where:  |remedy: )\S", line)] == []
    assert len(others) <= 2


@pytest.fixture
def mistaken(here: Path, text: str) -> Callable[[Mistake], None]:
    (here / "text.txt").write_text("hello world. " * 100)
    (here / "empty.txt").write_text("")

    def write(mistake: Mistake) -> None:
        assert mistake.old in text
        wrong = text.replace(mistake.old, mistake.new) if mistake.old else f"{text}{mistake.new}\n"
        (here / "s.yaml").write_text(wrong)

    return write


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_invalid_study_is_refused_before_anything_is_written(taetpu, here, contents, mistaken, mistake):
    mistaken(mistake)
    before = contents(here)
    refused(taetpu("run", "s.yaml"), mistake.problem, f"  where:  s.yaml:{mistake.where}\n", mistake.remedy)
    assert contents(here) == before


def test_study_with_unusable_data_is_not_frozen(taetpu, here, contents, mistaken):
    mistaken(Mistake(TASK, "{kind: text, source: text.txt, split: order, seq_len: 8}", "", ""))
    text = (here / "s.yaml").read_text()
    (here / "s.yaml").write_text(text.replace(ARM, "{task.seq_len: 5000}"))
    before = contents(here)
    refused(taetpu("run", "s.yaml"), "seq_len 5000 is longer than", "s.yaml:8 at arms.low-lr.task.seq_len")
    assert contents(here) == before


ARGUMENTS = [
    ("run nowhere.yaml", "no such file", "where:  nowhere.yaml", "Did you mean 's.yaml'?"),
    ("run .", "Is a directory", "where:  .", "readable YAML file"),
    ("run s.yaml --set train.stps=3", "'train.stps' matches nothing", "where:  --set train.stps=3", "'steps'"),
    ("run s.yaml --root gs://b/r", "invalid bucket name 'b'", "3 to 63 lower-case letters"),
    ("list --root s.yaml", "is a file", "where:  s.yaml", "./runs/s"),
    (
        "status s.yaml",
        "is a file",
        "where:  s.yaml",
        "Pass the folder",
    ),
    ("status nowhere", "or run 'nowhere'", "where:  ./runs", "STUDY/ARM/SEED"),
    ("report nowhere", "or run 'nowhere'", "where:  ./runs", "STUDY/ARM/SEED"),
    ("catalog mixr", "slot, kind or field 'mixr'", "Did you mean 'mixer'?"),
    ("catalog /x", "slot, kind or field '/x'", "Use one of: "),
    ("catalog mixer/atention", "unknown mixer kind 'atention'", "Did you mean 'attention'?"),
    ("new a/b", "study name 'a/b'", "e.g. a-b"),
    ("new s", "file exists", "where:  s.yaml", "another name"),
]


@pytest.mark.parametrize(("line", "said"), [(line, said) for line, *said in ARGUMENTS], ids=[a[0] for a in ARGUMENTS])
def test_invalid_arguments_are_refused_and_nothing_is_written(taetpu, here, contents, line, said):
    before = contents(here)
    refused(taetpu(*line.split()), *said)
    assert contents(here) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "old", "new", "said"),
    [
        ("plan", "symbols: 5", "symbols: 6", ("base.task.symbols was 5", "s.yaml:3 at base.task.symbols")),
        ("run", "lr: 1e-4", "lr: 1e-5", ("arm 'low-lr' was", "s.yaml:8 at arms.low-lr")),
    ],
)
def test_folder_of_another_study_is_not_changed(taetpu, here, text, contents, trained, command, old, new, said):
    root, _ = trained
    (here / "s.yaml").write_text(text.replace(old, new))
    before = contents(root)
    refused(taetpu(command, "s.yaml", "--root", root), *said, "study name or --root")
    signed = {"small/lock": (root / "small/lock").read_bytes()}  # by each who asks
    assert contents(root) == {**before, **signed}


@pytest.mark.slow
def test_read_only_root_is_refused(on_disk):
    """The disk is mounted read-only, since a folder's mode does not stop root."""
    done = on_disk("ro", "taetpu run s.yaml; echo code $?")
    assert done.out == "code 2\n"
    refused(done._replace(code=2, out=""), "cannot write: Read-only file system", "where:  disk/small", "--root")
