"""Text files that editors, other systems and crashes leave behind are read rightly, or refused by name."""

import gzip
import json

import pytest
from tests.data.test_document_files import MANY, json_lines, texts_of
from tests.data.test_text_task import prepared

from taetpu.core.errors import UserError
from taetpu.data import document_files, streamed_text, text


def refused(folder, name, **layout):
    with pytest.raises(UserError) as caught:
        texts_of(name, folder, **layout)
    assert str(folder / name) in str(caught.value)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_line_ends_and_byte_order_marks(tmp_path, mark, end):
    (tmp_path / "a.txt").write_bytes(mark + end.join((b"one", b"", b"two", b"")))
    (tmp_path / "a.jsonl").write_bytes(mark + end.join((b'{"text": "one"}', b"", b'{"text": "t\\r\\nwo"}', b"")))
    (tmp_path / "a.csv").write_bytes(mark + end.join((b"text", b"one", b"two", b"")))
    for per in ("line", "blank-line"):
        assert texts_of("a.txt", tmp_path, per=per) == ["one", "two"]
    assert texts_of("a.txt", tmp_path) == [end.join((b"one", b"", b"two", b"")).decode()]  # as it is
    assert texts_of("a.jsonl", tmp_path) == ["one", "t\r\nwo"]
    assert texts_of("a.csv", tmp_path) == ["one", "two"]


@pytest.mark.parametrize("per", ["file", "line", "blank-line"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_zeros_that_a_crash_left_are_refused(tmp_path, per, name):
    content = b"text\n" * 5000 + bytes(4096)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    where = {"file": "25,000", "line": "5001", "blank-line": "5001"}[per]
    assert where in refused(tmp_path, name, per=per).problem


def test_zeros_in_json_lines(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines(["a"]) + b'{"text": "\\u0000b"}\n')
    assert texts_of("a.jsonl", tmp_path) == ["a", "\0b"]
    (tmp_path / "a.jsonl").write_bytes(json_lines(["a"]) + bytes(10))
    assert "line 2" in refused(tmp_path, "a.jsonl").problem


def test_empty_documents_and_files(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines(["", "one", " \n\t", "two", ""]))
    assert texts_of("a.jsonl", tmp_path) == ["one", "two"]
    (tmp_path / "b.txt").write_bytes(b"\n \n")
    assert texts_of(("a.jsonl", "b.txt"), tmp_path) == ["one", "two"]
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, source="b.txt")
    assert "b.txt" in caught.value.problem


def test_files_shorter_than_a_window(tmp_path):
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, source="a.txt", val=0.0, seq_len=64)
    assert caught.value.path == ("seq_len",)
    assert "5" in caught.value.problem
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text(f"file {i}")
    assert prepared(tmp_path, source="*.txt", val=0.0, seq_len=64).num_windows == 2


def test_long_lines_and_files(tmp_path, monkeypatch):
    monkeypatch.setattr(document_files, "LONGEST_FILE", 2000)
    (tmp_path / "a.txt").write_text("a" * 2000)
    assert texts_of("a.txt", tmp_path) == ["a" * 2000]
    (tmp_path / "a.txt").write_text("a" * 2001)
    error = refused(tmp_path, "a.txt")
    assert (error.path, "2,000" in error.problem) == (("per",), True)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a" * 2001))
    assert refused(tmp_path, "a.txt.gz").path == ("per",)


@pytest.mark.slow  # writes 1 GB
@pytest.mark.parametrize(("name", "per"), [("a.txt", "file"), ("a.txt", "line"), ("a.jsonl", "file")])
def test_line_of_a_gigabyte(tmp_path, name, per):
    with (tmp_path / name).open("wb") as file:
        file.write(b'{"text": "' if name == "a.jsonl" else b"")
        for _ in range(1000):
            file.write(b"0123456789" * 100_000)
        file.write(b'"}\n' if name == "a.jsonl" else b"\n")
    error = refused(tmp_path, name, per=per)
    assert ("268,435,456" if (name, per) == ("a.txt", "file") else "134,217,728") in error.problem
    (tmp_path / name).unlink()


def test_long_document_of_a_large_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text, "LARGE", 1000)
    monkeypatch.setattr(streamed_text, "LONGEST", 500)
    (tmp_path / "a.jsonl").write_bytes(json_lines([*MANY, "long " * 101]))
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, source="a.jsonl", tokenizer="byte")
    assert [value for value in ("505", "500", "long long") if value not in caught.value.problem] == []
    assert caught.value.remedy


@pytest.mark.parametrize("large", [False, True])
def test_unknown_tokens_are_counted(tmp_path, monkeypatch, large):
    """The share of unknown tokens, and the commonest unknown characters, of a tokenizer that does not fit the text."""
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text, "LARGE", 1000 if large else 2**28)
    from tokenizers import Tokenizer, decoders, models

    vocab = {char: i for i, char in enumerate(["<unk>", *sorted(set("".join(MANY)) | {"\n"})])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    inner.save(str(tmp_path / "tokenizer.json"))
    texts = [*MANY, *(f"{t} ßßé" for t in MANY[:20])]
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts))
    tokenizer = {"kind": "file", "path": "tokenizer.json"}
    facts = prepared(tmp_path, source="a.jsonl", tokenizer=tokenizer, split="hash", val=0.0).facts
    assert facts["commonest_unknown"] == {"\\xdf": 40, "\\xe9": 20}
    assert facts["unknown"]["train"] == pytest.approx(60 / facts["tokens"]["train"])
    assert facts["longest"]["train"] == max(len(f"{t}\n\n") for t in texts)
    (tmp_path / "a.jsonl").write_bytes(json_lines(MANY))
    assert "unknown" not in prepared(tmp_path, source="a.jsonl", tokenizer=tokenizer, split="hash", val=0.0).facts
    assert json.dumps(facts["unknown"])
