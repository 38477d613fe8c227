"""Large corpora: documents in the cache are those of the files, whatever interrupts the preparation."""

import json
import shutil

import numpy as np
import pytest
from tests.data.test_document_files import MANY, json_lines
from tests.data.test_text_task import prepared
from tests.tokenizer_files import write_tokenizer

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data import streamed_text, text, tokenizer_pool
from taetpu.data.splitting import hashed_split
from taetpu.data.stream_source import StreamSource
from taetpu.data.tokenizers import base
from taetpu.report.evaluation_text import describe_evaluation_text

SHARES = {"val": 0.3, "test": 0.2}
END = "!"  # in no document


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text, "LARGE", 1000)
    monkeypatch.setattr(streamed_text, "BLOCK", 300)
    monkeypatch.setattr(tokenizer_pool, "cpu_cores", lambda: 1)  # test_token_cache.py compares numbers of processes
    (tmp_path / "a.jsonl").write_bytes(json_lines(MANY))
    return tmp_path / "cache"


def expected(split):
    return [text for text in MANY if hashed_split(text, 0.3, 0.2) == split]


def streams(source):
    return {name: stream[:].tolist() for name, stream in source.streams.items()}


def test_tokens_are_those_of_the_documents_one_by_one(tmp_path, cache):
    source = prepared(tmp_path, source="a.jsonl", tokenizer="byte", **SHARES)
    assert isinstance(source, StreamSource)
    for name, stream in streams(source).items():
        assert bytes(stream).decode() == "".join(f"{text}\n\n" for text in expected(name))
    assert source.facts["documents"] == len(MANY)
    assert source.facts["bytes"] == {name: len(part) for name, part in streams(source).items()}


def test_tokens_between_documents(tmp_path, cache):
    source = prepared(
        tmp_path, source="a.jsonl", tokenizer={"kind": "bpe", "vocab_size": 300}, separator=END, segments=True, **SHARES
    )
    number = source.tokenizer.number(END)
    for name, stream in streams(source).items():
        rows = [[*source.tokenizer.encode_plain(text).tolist(), number] for text in expected(name)]
        assert stream == [number for row in rows for number in row]
        split = source.evaluation(name)
        if split is not None:
            numbers = np.repeat(np.arange(len(rows)), [*map(len, rows)])[: split.segments.size]
            assert split.segments.ravel()[: len(numbers) - 1].tolist() == numbers[:-1].tolist()
            assert split.num_bytes == sum(len(text.encode()) for text in expected(name))


def test_characters_that_training_lacks_cost_their_bits(tmp_path, cache):
    texts = [*MANY, *(f"{chr(0x4E00 + i)} alone {i}" for i in range(40))]
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts))
    source = prepared(tmp_path, source="a.jsonl", **SHARES)
    known = set("".join(text for text in texts if hashed_split(text, 0.3, 0.2) == "train"))
    for name in ("val", "test"):
        part = "".join(text for text in texts if hashed_split(text, 0.3, 0.2) == name)
        assert source.facts["escape_bits"][name] == 24 * len([char for char in part if char not in known]) > 0


@pytest.mark.slow
def test_a_stopped_preparation_continues(tmp_path, cache):
    whole = prepared(tmp_path, source="a.jsonl", tokenizer="byte", **SHARES)
    shutil.rmtree(cache / "text")

    class Stopped(Exception):
        pass

    def stop(done, total):
        if done > total // 3:
            raise Stopped

    task = build_component("task", {"kind": "text", "seq_len": 8, "source": "a.jsonl", "tokenizer": "byte", **SHARES})
    corpora = {"train": text.open_corpus("a.jsonl", tmp_path, task.layout)}
    settings = streamed_text.Settings(task.layout, 0.3, 0.2, None, None, "\n\n", text.EVAL_TOKENS)
    with pytest.raises(Stopped):
        streamed_text.prepare_text(corpora, task.tokenizer, settings, task._token, tmp_path, stop)
    (progress,) = cache.glob("text/*/progress.json")
    stored = json.loads(progress.read_bytes())
    assert not stored["done"]
    assert 0 < stored["counts"]["documents"]["train"] < len(MANY)
    with (progress.parent / "train.bin").open("ab") as file:
        file.write(b"written, but not yet counted")
    again = prepared(tmp_path, source="a.jsonl", tokenizer="byte", **SHARES)
    assert streams(again) == streams(whole)
    assert (again.fingerprint, again.evaluated) == (whole.fingerprint, whole.evaluated)
    assert again.facts == whole.facts


def test_prepared_once_until_a_file_changes(tmp_path, cache, monkeypatch):
    first = prepared(tmp_path, source="a.jsonl", tokenizer="byte", **SHARES)
    monkeypatch.setattr(streamed_text, "_write", None)  # would fail
    again = prepared(tmp_path, source="a.jsonl", tokenizer="byte", seq_len=4, **SHARES)
    assert streams(again) == streams(first)
    (tmp_path / "a.jsonl").write_bytes(json_lines(MANY[:-1]))
    with pytest.raises(TypeError):
        prepared(tmp_path, source="a.jsonl", tokenizer="byte", **SHARES)


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_damage_of_the_cache_is_named(tmp_path, cache, cut):
    prepared(tmp_path, source="a.jsonl", tokenizer="byte", **SHARES)
    (file,) = cache.glob("text/*/train.bin")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) - cut] if cut else bytes(100) + content[100:])
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, source="a.jsonl", tokenizer="byte", **SHARES)
    assert str(file) in caught.value.problem
    assert f"clean {file.parent.name}" in str(caught.value.remedy)


def test_evaluation_files_and_limits(tmp_path, cache):
    (tmp_path / "b.jsonl").write_bytes(json_lines(MANY[50:]))
    source = prepared(
        tmp_path, source="a.jsonl", val_source="b.jsonl", tokenizer="byte", eval_tokens=60, train_tokens=99
    )
    val, train = (bytes(streams(source)[name]).decode() for name in ("val", "train"))
    assert train == "".join(f"{text}\n\n" for text in MANY[:50])[:99]
    documents = val.split("\n\n")[:-1]
    assert documents == MANY[50 : 50 + len(documents)]
    assert len(val) >= 60 > len(val) - len(f"{documents[-1]}\n\n")
    assert source.facts["bytes"]["val"] == len(val)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"split": "order"}, ("split",)),
        ({"segments": True}, ("separator",)),
        ({"train_documents": 3}, ("train_documents",)),
        ({"train_tokens": 10**6}, ("train_tokens",)),
        ({"separator": "<|end|>"}, ("separator",)),
        ({"val": 0.6, "test": 0.4}, ("val",)),
    ],
)
def test_what_large_corpora_cannot_have(tmp_path, cache, settings, path):
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, **{"source": "a.jsonl", "tokenizer": "byte", **SHARES, **settings})
    assert caught.value.path == path
    assert caught.value.remedy


@pytest.mark.parametrize("crop", [False, True])
def test_a_tokenizer_that_is_read_enters_the_cache_by_content(tmp_path, cache, crop):
    for name, trained in (("a", "".join(MANY)), ("b", "some other text " * 9)):
        write_tokenizer(tmp_path / f"{name}.json", trained)
    shutil.copy(tmp_path / "a.json", tmp_path / "copy.json")

    def read(name):
        tokenizer = {"kind": "file", "path": f"{name}.json", "crop": crop}
        return prepared(tmp_path, source="a.jsonl", tokenizer=tokenizer, **SHARES)

    first, copy, other = read("a"), read("copy"), read("b")
    assert len([*cache.glob("text/*/progress.json")]) == 2
    assert first.fingerprint == copy.fingerprint != other.fingerprint
    assert first.facts["tokenizer"] == copy.facts["tokenizer"]
    train = np.concatenate([first.tokenizer.encode(f"{text}\n\n") for text in expected("train")])
    assert streams(first)["train"] == train.tolist()
    assert (copy.tokenizer.kept is not None) == crop
    if crop:
        assert [copy.tokenizer.token(i) for i in range(9)] == [
            copy.tokenizer.whole.token(int(i)) for i in copy.tokenizer.kept[:9]
        ]


def test_the_size_of_the_sample_is_said(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(base, "SAMPLE", 500)
    total = sum(len(f"{text}\n\n") for text in expected("train"))
    for kind, sample in (("byte", None), ({"kind": "bpe", "vocab_size": 300}, {"characters": 500, "of": total})):
        facts = prepared(tmp_path, source="a.jsonl", tokenizer=kind, **SHARES).facts
        assert facts.get("tokenizer_sample") == sample
        (said,) = [note for note in describe_evaluation_text({"a": facts}) if "500" in note] or [""]
        assert (f"{total:,}" in said) == (sample is not None)
