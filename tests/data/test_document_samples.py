"""Samples that are documents: begin and end tokens are scored, padding is not, and every token counts once."""

import math

import numpy as np
import pytest
from tests.data.test_document_files import json_lines
from tests.tokenizer_files import write_tokenizer

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.tokenizers.library import load_tokenizer
from taetpu.testing import check_component

NAMES = [f"{name}{chr(97 + i)}" for i in range(20) for name in ("emma", "olivia", "ava", "jo", "isabella")]
END = "<|endoftext|>"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    (tmp_path / "rows.jsonl").write_bytes(json_lines(NAMES))
    write_tokenizer(tmp_path / "tokenizer.json", "\n".join(NAMES))
    return tmp_path


def prepared(folder, **fields):
    settings = {"source": "names.txt", "per": "line", "samples": "documents", "seq_len": 12, "val": 0.2, **fields}
    return build_component("task", {"kind": "text", **settings}).prepare(folder)


def shown(source, tokens, lengths):
    """Return the text of each sequence with its last target."""
    return [source.tokenizer.decode(row[:length]) for row, length in zip(tokens, lengths, strict=True)]


TOKENIZERS = {"char": "char", "byte": "byte", "bpe": {"kind": "bpe", "vocab_size": 300}}


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("source", ["names.txt", "rows.jsonl"])
def test_each_document_is_a_sequence(folder, tokenizer, source):
    task = prepared(folder, source=source, tokenizer=TOKENIZERS[tokenizer], test=0.1)
    seen = []
    for name in ("val", "test"):
        split = task.evaluation(name)
        whole = np.concatenate([split.tokens[:, :1], split.targets], 1)
        texts = shown(task, whole, split.lengths + 1)
        assert all(text.startswith(END) and text.endswith(END) for text in texts)
        inner = [text.removeprefix(END).removesuffix(END) for text in texts]
        assert split.weights.sum() == split.lengths.sum() == task.facts["tokens"][name]
        assert (split.weights.sum(1) == split.lengths).all()
        assert split.num_bytes == sum(len(text) + 1 for text in inner)
        assert split.unpredicted_bits == 0
        seen += inner
    arrays = task.arrays
    texts = shown(task, arrays["windows"], arrays["lengths"] + 1)
    seen += [text.removeprefix(END).removesuffix(END) for text in texts]
    assert sorted(seen) == sorted(NAMES)
    assert task.num_windows == len(texts)


def test_one_token_begins_and_ends_unless_both_are_named(folder):
    same, different = prepared(folder), prepared(folder, bos="<s>", separator="</s>")
    assert same.vocab_size == len(set("".join(NAMES))) + 2  # the unknown token, and that of the ends
    assert different.vocab_size == same.vocab_size + 1
    assert same.ends == (same.vocab_size - 1,) * 2
    assert different.ends == (different.vocab_size - 2, different.vocab_size - 1)
    assert same.special_tokens == dict.fromkeys(("bos_token_id", "eos_token_id"), same.vocab_size - 1)
    assert same.prompt().tolist() == [same.vocab_size - 1]
    for source in (same, different):
        stored = load_tokenizer(source.tokenizer.to_json())
        assert stored.encode("").tolist() == [source.ends[0]]
        assert stored.encode("emma").tolist() == [source.ends[0], *source.tokenizer.encode_plain("emma")]
        assert stored.vocab_size == source.vocab_size


def test_a_tokenizer_that_is_read_keeps_its_tokens(folder):
    read = {"kind": "file", "path": "tokenizer.json"}
    with pytest.raises(UserError) as caught:
        prepared(folder, tokenizer=read, separator="<absent>")
    assert caught.value.path == ("separator",)
    assert "<absent>" in caught.value.problem
    known = load_tokenizer((folder / "tokenizer.json").read_text())
    name = known.token(5)
    source = prepared(folder, tokenizer=read, separator=name, seq_len=40)
    assert source.ends == (5, 5)
    assert source.vocab_size == known.vocab_size
    assert load_tokenizer(source.tokenizer.to_json()).encode("").tolist() == [5]
    assert source.tokenizer.whole.to_json() == known.to_json()  # whose parameters a stored model has


def test_special_names_in_a_document_are_text(folder):
    (folder / "names.txt").write_text("\n".join([*NAMES, END + "x"]))
    for tokenizer in TOKENIZERS.values():
        source = prepared(folder, tokenizer=tokenizer, seq_len=20, val=0.0)
        counts = (source.arrays["windows"] == source.ends[1]).sum(1)
        assert set(counts.tolist()) == {2}


@pytest.mark.parametrize("source", ["names.txt", "rows.jsonl"])
def test_long_documents_are_refused_with_their_line(folder, source):
    with pytest.raises(UserError) as caught:
        prepared(folder, source=source, seq_len=9)
    first = next(i for i, name in enumerate(NAMES) if len(name) > 8)
    assert f"{first + 1} of {source}" in caught.value.problem
    assert "10" in caught.value.problem
    assert caught.value.path == ("seq_len",)
    assert "10" in str(caught.value.remedy)
    assert "crop" in str(caught.value.remedy)
    assert prepared(folder, source=source, seq_len=10).num_windows > 50


def test_cropped_documents_are_counted_and_have_no_bits_per_byte(folder):
    source = prepared(folder, seq_len=6, long_documents="crop")
    cropped = sum(len(name) > 5 for name in NAMES)
    assert sum(source.facts["cropped"].values()) == cropped > 10
    arrays = source.arrays
    full = arrays["lengths"] == 6
    ends = arrays["windows"][full][:, 6] == source.ends[1]
    assert source.facts["cropped"]["train"] == (~ends).sum()
    assert source.evaluation("val").num_bytes is None
    assert source.evaluated != prepared(folder, seq_len=5, long_documents="crop").evaluated
    assert prepared(folder, seq_len=20).evaluated == prepared(folder, seq_len=30, tokenizer="byte").evaluated


def test_facts_count_documents_and_unknown_characters(folder):
    (folder / "other.txt").write_text("emma!\nolivia!?\n")
    facts = prepared(folder, val_source="other.txt").facts
    assert facts["longest"] == {"train": 9, "val": 8, "test": 0}
    assert facts["escape_bits"]["val"] == 8 * 3
    assert facts["unknown"]["val"] == pytest.approx(3 / 17)  # with begin and end tokens
    assert facts["commonest_unknown"] == {"!": 2, "?": 1}
    assert facts["windows"] == facts["documents"] == len(NAMES)


def test_the_bigram_reference_is_that_of_the_documents(folder):
    source = prepared(folder, bos="<s>", separator="</s>")
    counts = np.zeros((source.vocab_size, source.vocab_size))
    for row, length in zip(source.arrays["windows"], source.arrays["lengths"], strict=True):
        np.add.at(counts, (row[:length], row[1 : length + 1]), 1)
    split = source.evaluation("val")
    chosen = (counts[split.tokens, split.targets] + 1) / (counts.sum(1)[split.tokens] + source.vocab_size)
    expected = -(np.log(chosen) * split.weights).sum() / split.weights.sum()
    assert source.facts["decoy_loss"] == pytest.approx(expected)
    assert source.facts["chance_loss"] == pytest.approx(math.log(source.vocab_size))


@pytest.mark.parametrize(
    ("field", "value"),
    [("segments", True), ("eval_lengths", [8]), ("train_tokens", 50), ("split", "order")],
)
def test_settings_without_a_meaning_are_refused(folder, field, value):
    with pytest.raises(UserError) as caught:
        prepared(folder, **{field: value})
    assert caught.value.path == (field,)
    assert caught.value.remedy


def test_windows_refuse_the_setting_of_long_documents(folder):
    with pytest.raises(UserError) as caught:
        prepared(folder, samples="windows", long_documents="crop")
    assert caught.value.path == ("long_documents",)


def test_documents_of_a_mixture(folder):
    (folder / "words.txt").write_text("\n".join(f"word {i}" for i in range(40)))
    source = prepared(folder, source={"names.txt": 1, "words.txt": 3}, split="hash")
    arrays = source.arrays
    for row, (window, length) in enumerate(zip(arrays["windows"], arrays["lengths"], strict=True)):
        text = source.tokenizer.decode(window[1:length])
        assert source.mixture.source_of(row) == ("words.txt" if text.startswith("word ") else "names.txt")
    assert source.mixture.count(0, 1024) == [768 if name == "words.txt" else 256 for name in source.mixture.names]


def test_the_task_passes_the_checks_of_plug_ins(folder, monkeypatch):
    monkeypatch.chdir(folder)
    report = check_component("task", "text", source="names.txt", per="line", samples="documents", seq_len=12)
    assert not report.failed, str(report)


def test_identity_follows_content_and_settings(folder):
    first = prepared(folder)
    assert first.fingerprint == prepared(folder, source=["names.txt"]).fingerprint
    others = [{"seq_len": 13}, {"bos": "<s>"}, {"tokenizer": "byte"}, {"source": "rows.jsonl", "split": "hash"}]
    assert len({first.fingerprint, *(prepared(folder, **fields).fingerprint for fields in others)}) == 5
