"""A study of a dataset of the hub: trained, reported, and continued without a network."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.dataset_hub import COMMIT, State, forget, serving, unreachable

STUDY = """\
study: stories
base:
  task: {kind: text, source: hf://datasets/their/data, seq_len: 8, tokenizer: {kind: byte}}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 4, batch_size: 4, sample: none}
seeds: SEEDS
arms: {low: {train.optimizer.lr: 1e-5}}
measure: {primary: val/loss}
"""


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[State]:
    """Return a server that answers as the hub, without datasets."""
    with serving(monkeypatch, tmp_path / "hub") as state:
        yield state


@pytest.mark.slow
def test_a_study_of_the_hub_is_continued_without_a_network(taetpu, here, datasets, monkeypatch):
    rows = {split: "".join(f'{{"text": "{split} {i} {i * i}"}}\n' for i in range(60)) for split in ("train", "dev")}
    datasets.datasets["their/data"] = {f"{split}.jsonl": text.encode() for split, text in rows.items()}
    (here / "s.yaml").write_text(STUDY.replace("SEEDS", "1"))
    assert taetpu("run", "s.yaml", "--root", "runs").code == 0
    results = sorted((here / "runs").glob("stories/runs/*/*/result.json"))
    stored = json.loads(results[0].read_bytes())["environment"]["data"]["fetched"]
    assert {split: about[0]["commit"] for split, about in stored.items()} == {"train": COMMIT, "val": COMMIT}
    assert f"commit {COMMIT}" in (here / "runs/stories/report/index.html").read_text()
    unreachable(monkeypatch)
    (here / "s.yaml").write_text(STUDY.replace("SEEDS", "2"))
    assert taetpu("run", "s.yaml", "--root", "runs").code == 0
    assert len([*(here / "runs").glob("stories/runs/*/*/result.json")]) == 2 * len(results)
    forget()
    datasets.datasets["their/data"]["train.jsonl"] = b'{"text": "other"}\n' * 60
    assert taetpu("report", "stories", "--root", "runs").code == 0


@pytest.mark.slow
def test_a_dataset_that_changed_is_another_study(taetpu, here, datasets):
    datasets.datasets["their/data"] = {"a.jsonl": b"".join(b'{"text": "row %d"}\n' % i for i in range(90))}
    (here / "s.yaml").write_text(STUDY.replace("SEEDS", "1"))
    assert taetpu("run", "s.yaml", "--root", "runs").code == 0
    datasets.commits["main"] = "b" * 40
    datasets.datasets["their/data"] = {"a.jsonl": b"".join(b'{"text": "line %d"}\n' % i for i in range(90))}
    forget()
    refused = taetpu("run", "s.yaml", "--root", "runs")
    assert (refused.code, "base.task" in refused.err) == (2, True)
