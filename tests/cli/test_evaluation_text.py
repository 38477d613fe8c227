"""`plan` states overlap with the training text and characters without a token, as the report does."""

import pytest
from tests.dataset_hub import COMMIT, serving

STUDY = """\
study: leaky
base:
  task: {kind: text, source: letters, seq_len: 16, val: 0.3}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 1}}
  train: {steps: 2, batch_size: 2, optimizer: {kind: adamw, lr: 1e-3}}
seeds: 1
arms: {hot: {train.optimizer.lr: 1e-2}}
"""
HEAD = "This letter is confidential, and meant for whom it is addressed to and for nobody else in the world."


@pytest.fixture
def folder(here):
    (here / "letters").mkdir()
    for i in range(10):
        own = "".join(chr(0x400 + (i * j * j + j) % 97 + 100 * i) for j in range(200))
        (here / "letters" / f"{i}.txt").write_text(f"{HEAD}\n{own}")
    (here / "s.yaml").write_text(STUDY)
    return here


@pytest.mark.slow
def test_plan_states_overlap_and_escapes(taetpu, folder):
    arm = taetpu("plan", "s.yaml", "--json").json()["arms"][0]
    share, raw = arm["data"]["overlap"]["val"], arm["data"]["bytes"]["val"]
    # Of each letter's 301 characters and the empty line after it, the windows within its head are found in training.
    assert share == pytest.approx((len(HEAD) + 2 - 63) / 303, rel=0.1)
    assert arm["data"]["escape_bits"]["val"] == 8 * 2 * 3 * 200
    said = (
        f"{100 * share:.2g} % of the 64-token windows of val occur verbatim in the training split",
        f"val/bits_per_byte includes {8 * 1200 / raw:.2g} for characters that do not occur in the training split",
    )
    planned = " ".join(taetpu("plan", "s.yaml").out.split())
    assert all(sentence in planned for sentence in said)


@pytest.mark.slow
def test_plan_says_which_splits_were_downloaded(taetpu, here, tmp_path, monkeypatch):
    rows = {
        split: "".join(f'{{"text": "{split} {i}, {i * i}"}}\n' for i in range(50)) for split in ("train", "validation")
    }
    (here / "s.yaml").write_text(STUDY.replace("letters", "hf://datasets/their/data"))
    with serving(monkeypatch, tmp_path / "hub") as state:
        state.datasets["their/data"] = {f"{split}.jsonl": text.encode() for split, text in rows.items()}
        planned = " ".join(taetpu("plan", "s.yaml").out.split())
    for split, stored in (("train", "train"), ("val", "validation")):
        told = planned.partition(f"Data of {split}: ")[2].partition(" Data of")[0]
        assert all(text in told for text in ("hf://datasets/their/data", f"split {stored}", COMMIT))
