"""`taetpu data`: what a study's data is, before anything is trained, and what the cache keeps."""

import json

import pytest
from tests.data.test_document_files import MANY, json_lines

from taetpu.data import streamed_text, text

STUDY = """\
study: s
base:
  task:
    {kind: text, source: a.jsonl, tokenizer: byte, split: hash, val: 0.3, separator: "#", segments: true, seq_len: 24}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 5, batch_size: 4}
seeds: 1
arms:
  relu: {model.ffn: relu}
  fewer: {task.train_tokens: 300}
"""


@pytest.fixture
def study(here, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(here / "cache"))
    (here / "a.jsonl").write_bytes(json_lines(MANY))
    (here / "data.yaml").write_text(STUDY.replace('separator: "#", ', "").replace("segments: true, ", ""))
    return here / "data.yaml"


def test_stats_of_each_task(study, taetpu):
    facts = json.loads(taetpu("data", "stats", "data.yaml", "--json").out)
    assert set(facts) == {"baseline, relu", "fewer"}
    assert facts["fewer"]["tokens"]["train"] == 300
    assert facts["baseline, relu"]["documents"] == len(MANY)
    table = taetpu("data", "stats", "data.yaml").out
    assert "bytes per token" in table
    assert max(map(len, table.splitlines())) <= 80


def test_sequences_of_the_first_batch(study, taetpu):
    study.write_text(STUDY.replace('"#"', '"!"').replace("tokenizer: byte", "tokenizer: {kind: bpe, vocab_size: 280}"))
    shown = json.loads(taetpu("data", "show", "data.yaml", "--count", "2", "--json").out)
    rows = shown["baseline, relu"]
    assert len(rows) == 2
    for row in rows:
        assert (row["tokens"], row["scored"]) == (24, 24)
        assert len(row["documents"]) == row["text"][:-1].count("!")
    assert "'" in taetpu("data", "show", "data.yaml").out


def test_prepared_corpora_are_listed_and_deleted(study, taetpu, monkeypatch):
    monkeypatch.setattr(text, "LARGE", 1000)
    monkeypatch.setattr(streamed_text, "BLOCK", 300)
    assert "window" in taetpu("data", "prepare", "data.yaml").out
    (row,) = json.loads(taetpu("data", "list", "--json").out)
    assert row["complete"]
    assert row["train"] + row["val"] == sum(len(f"{text}\n\n") for text in MANY)
    refused = taetpu("data", "clean", "absent", "--yes")
    assert (refused.code, "absent" in refused.err, row["name"] in refused.err) == (2, True, True)
    taetpu("data", "clean", row["name"], "--yes")
    assert json.loads(taetpu("data", "list", "--json").out) == []


def test_downloads_are_listed_and_deleted_by_name(study, taetpu, here):
    for name in ("corpora/ptb/train.txt", "corpora/ptb/lock", "buckets/mine/objects/data/a.bin.7.part"):
        (here / "cache" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "cache" / name).write_bytes(b"x" * 100)
    rows = {row["name"]: row for row in json.loads(taetpu("data", "list", "--json").out)}
    assert {name: (row["complete"], row["bytes"]) for name, row in rows.items()} == {
        "corpora/ptb": (True, 200), "buckets/mine": (False, 100),
    }  # fmt: skip
    assert "corpora/ptb" in taetpu("data", "list").out
    assert taetpu("data", "clean", "--yes").code == 0
    assert (here / "cache" / "corpora/ptb/train.txt").is_file()
    assert taetpu("data", "clean", "corpora/ptb", "--yes").code == 0
    assert [row["name"] for row in json.loads(taetpu("data", "list", "--json").out)] == ["buckets/mine"]
