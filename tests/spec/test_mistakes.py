"""Independent mistakes are raised together, in the order of the file."""

from pathlib import Path

import pytest

from taetpu.core.errors import MAX_ERRORS_SHOWN, UserError
from taetpu.spec.loading import load_study

WRONG = """\
study: s
base:
  task: {kind: copy, seq_len: many}
  model:
    dim: 0
    num_layers: 2
    colour: red
    norm: {kind: batch}
    mixer: {kind: attention, num_head: 2, num_heads: 2.5}
  train: {steps: 6, optimizer: {kind: adamw, lr: -1}}
"""


def mistakes(folder: Path, text: str, sets: tuple[str, ...] = ()) -> list[UserError]:
    (folder / "s.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_study(folder / "s.yaml", sets)
    return caught.value.all_errors


def places(found: list[UserError]) -> list[tuple[str, int | None]]:
    return [(".".join(map(str, error.path)), error.line) for error in found]


def test_all_mistakes_of_the_baseline_are_raised_together(folder) -> None:
    assert places(mistakes(folder, WRONG)) == [
        ("base.task.seq_len", 3), ("base.model.dim", 5), ("base.model.colour", 7),
        ("base.model.norm.kind", 8), ("base.model.mixer.num_head", 9), ("base.model.mixer.num_heads", 9),
        ("base.train.optimizer.lr", 10),
    ]  # fmt: skip


def test_mistakes_of_all_arms_and_of_all_set_options_are_raised_together(study, folder) -> None:
    text = "arms:\n  x: {model.mixr: none}\n  3: {model.bias: true}\n  ok: {model.bias: true}\n  y: {model.dim: -1}\n"
    with pytest.raises(UserError) as caught:
        study(text)
    assert places(caught.value.all_errors) == [("arms.x.model.mixr", 7), ("arms.3", 8), ("arms.y.model.dim", 10)]
    with pytest.raises(UserError) as caught:
        study("", ("model.dim", "train.steps=[", "model.bias=true"))
    assert [error.path for error in caught.value.all_errors] == [("--set model.dim",), ("--set train.steps=[",)]


def test_consequences_of_a_mistake_are_not_reported(folder) -> None:
    """An invalid field is not reported as missing, and disables the checks that compare fields."""
    sections = "task: {kind: copy, seq_len: 8}\n  model: {dim: x, num_layers: 1}\n  train: {steps: x, epochs: 2}\n"
    text = f"study: s\nbase:\n  {sections}"
    assert places(mistakes(folder, text)) == [("base.model.dim", 4), ("base.train.steps", 5)]
    misspelt = text.replace("seq_len: 8", "seq_lem: 8").replace("dim: x", "dim: 8").replace("steps: x, ", "")
    assert places(mistakes(folder, misspelt)) == [("base.task.seq_lem", 3)]


def test_missing_and_unknown_fields_are_reported_together(folder) -> None:
    sections = "task: {kind: copy, colour: red}\n  model: {wide: 8, num_layers: 1}\n  train: {steps: 2}\n"
    text = f"study: s\nbase:\n  {sections}"
    found = mistakes(folder, text)
    assert places(found) == [
        ("base.task.colour", 3), ("base.task", 3), ("base.model.wide", 4), ("base.model", 4)
    ]  # fmt: skip
    assert [str(error.remedy) for error in found[1::2]] == ["Add seq_len: ...", "Add dim: ..."]


def test_all_set_options_that_match_nothing_are_raised_together(folder) -> None:
    sets = ("model.mixr=3", "train.stps=2", "model.layers.9.ffn=none", "model.layers.8.ffn=none")
    sections = "task: {kind: copy, seq_len: 8}\n  model: {dim: 8, num_layers: 2}\n  train: {steps: 2}\n"
    text = f"study: s\nbase:\n  {sections}"
    assert sorted(places(mistakes(folder, text, sets))) == [
        ("--set model.layers.8.ffn=none", None), ("--set model.layers.9.ffn=none", None),
        ("--set model.mixr=3", None), ("--set train.stps=2", None),
    ]  # fmt: skip


def test_all_arms_that_cannot_be_compared_are_reported(study) -> None:
    bpe = "{kind: bpe, vocab_size: 270}"
    text = f"arms:\n  b: {{task.tokenizer: byte}}\n  ok: {{model.bias: true}}\n  c: {{task.tokenizer: {bpe}}}\n"
    with pytest.raises(UserError) as caught:
        study(text).runs()
    assert places(caught.value.all_errors) == [("arms.b.task.tokenizer", 7), ("arms.c.task.tokenizer", 9)]


def test_many_mistakes_are_shortened_and_counted(folder) -> None:
    (first, *others) = mistakes(folder, "study: s\nbase: {}\n" + "".join(f"wrong{i}: 1\n" for i in range(30)))
    assert len(others) >= 29
    assert str(first).count("unknown field") == MAX_ERRORS_SHOWN
    assert str(first).endswith(f"and {1 + len(others) - MAX_ERRORS_SHOWN} more")
