"""Arms whose metrics cannot be compared with the baseline's are refused before training."""

import pytest

from taetpu.core.errors import UserError

SYNTHETIC = ("kind: text, source: text.txt, seq_len: 8, split: order", "kind: copy, seq_len: 8, eval_size: 4")


def refused(study, added, *replace) -> str:
    loaded = study(added, (), *replace)
    with pytest.raises(UserError) as caught:
        loaded.runs()
    return str(caught.value).replace(f"{loaded.folder}/", "")


def other_data(place: str) -> str:
    return (
        "arm 'x' is evaluated on other data than the baseline, so the two cannot be compared\n"
        f"  where:  s.yaml:7 at arms.x.{place}\n  remedy: Move this arm to a separate study."
    )


@pytest.mark.parametrize("override", ["task.val: 0.2", "task.test: 0.1", "task.source: other.txt"])
def test_other_held_out_text_is_refused(override, study, folder):
    (folder / "other.txt").write_text("hello there. " * 40)
    text = refused(study, f"arms:\n  x: {{{override}, model.dim: 32}}\n")
    assert text == other_data(override.split(":")[0])


@pytest.mark.parametrize(
    "override", ["task: {kind: reverse, seq_len: 8, eval_size: 4}", "task.seq_len: 12", "task.symbols: 5"]
)
def test_another_synthetic_evaluation_set_is_refused(override, study):
    assert refused(study, f"arms:\n  x: {{{override}}}\n", SYNTHETIC) == other_data(override.split(":")[0])


def test_arms_with_other_tokens_are_compared_only_by_bits_per_byte(study, wording):
    arms = "seeds: 1\narms:\n  x: {task.tokenizer: byte}\n"
    for metric in ("val/loss", "val/accuracy"):
        wording(refused(study, f"{arms}measure: {{primary: {metric}}}\n"))
    assert len(study(f"{arms}measure: {{primary: val/bits_per_byte}}\n").runs()) == 2


def test_the_same_text_in_other_windows_is_comparable(study):
    assert len(study("seeds: 1\narms:\n  x: {task.seq_len: [4, 16]}\n").runs()) == 3


@pytest.mark.parametrize(("val", "allowed"), [("new sounds", False), ("the old sounds", True)])
def test_an_arm_that_drops_text_is_not_compared_by_bits_per_byte(val, allowed, study, folder):
    (folder / "text.txt").write_text("the old sounds. " * 40 + f"{val}.")
    arms = "seeds: 1\narms:\n  x: {task.tokenizer.unseen: drop}\nmeasure: {primary: val/bits_per_byte}\n"
    if allowed:
        assert len(study(arms).runs()) == 2
        return
    text = refused(study, arms)
    assert text.startswith("arm 'x' ")
    assert "by val/bits_per_byte" in text.partition("\n")[0]
    assert "s.yaml:8 at arms.x.task.tokenizer.unseen" in text
    assert "unseen: unk" in text
