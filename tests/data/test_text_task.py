"""Task `text`: corpora, splits, batches and errors."""

import gzip
import hashlib
import math
import os
import pickle
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tokenizer_files import train_bpe
from tokenizers import processors

from taetpu.cli.data import _lines
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data import corpora, splitting, text
from taetpu.data.base import Source
from taetpu.data.bigrams import bigram_loss
from taetpu.data.document_files import Layout
from taetpu.data.text_source import TextSource

KEY = jax.random.key(0)


def prepared(folder: Path, **fields: Any) -> Source:
    return build_component("task", {"kind": "text", "seq_len": 8, **fields}).prepare(folder)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a file and with 20 documents, each of which consists of a different letter."""
    (tmp_path / "one.txt").write_text("".join(chr(0x100 + i) for i in range(400)))
    docs = tmp_path / "docs"
    (docs / "deep").mkdir(parents=True)
    for i in range(20):
        (docs / ("deep" if i % 2 else ".") / f"{i}.txt").write_text(chr(ord("a") + i) * 50)
    (docs / ".hidden").write_bytes(b"\xff")
    return tmp_path


def decoded(source: Source, split: str) -> str:
    """Return the text of a split that occurs as a token or as a target with nonzero weight."""
    assert source.tokenizer is not None
    if split == "train":
        windows = source.arrays["windows"]
        ids = np.concatenate([windows[:1, 0], windows[:, 1:].ravel()])
    else:
        found = source.evaluation(split)
        assert found is not None
        ids = np.concatenate([found.tokens[:1, 0], found.targets[found.weights > 0]])
    return source.tokenizer.decode(ids)


# --- formats of files ------------------------------------------------------------------------------------------------

ROWS = '{"text": "Some words."}\n' * 50


@pytest.mark.parametrize("name", ["a.JSON", "a.xlsx", "a.tar.gz", "a.zip", "a.npy", "a.pdf"])
@pytest.mark.parametrize("in_folder", [False, True])
def test_files_of_other_formats_are_refused(tmp_path: Path, name: str, in_folder: bool):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.txt").write_text("plain text " * 50)
    (tmp_path / "docs" / name).write_text(ROWS)
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, source="docs" if in_folder else f"docs/{name}")
    assert name in caught.value.problem
    assert caught.value.path == ("source",)
    assert ".txt" in str(caught.value.remedy)


CONTENTS = {  # what a file that ends in .txt holds, and values of problem and remedy
    "gzip": (gzip.compress(ROWS.encode()), "gzip", ".gz"),
    "numbers": (np.arange(99, dtype=np.uint32).tobytes(), "byte 0", "remove"),
    "zip": (b"PK\x03\x04abc", "no text", ""),
    "a pickle": (pickle.dumps({"text": "a"}), "pickle", ""),
    "utf-16": (ROWS.encode("utf-16"), "UTF-16", "UTF-8"),
    "latin-1": ("\u00e9t\u00e9".encode("latin-1"), "0xe9", "UTF-8"),
    "JSON lines": (ROWS.encode(), "JSON lines", "format: jsonl"),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_text_files_with_other_content_are_refused(tmp_path: Path, content: str):
    raw, problem, remedy = CONTENTS[content]
    (tmp_path / "a.txt").write_bytes(raw)
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, source="a.txt")
    assert problem in caught.value.problem
    assert str(tmp_path / "a.txt") in caught.value.problem
    assert remedy in str(caught.value.remedy)
    assert caught.value.path == ("source",)


def test_the_syntax_of_any_file_is_trained_if_its_format_is_text(tmp_path: Path):
    (tmp_path / "a.txt").write_text(ROWS)
    (tmp_path / "b.csv").write_text("text,number\nA few words,1\n" * 20)
    assert prepared(tmp_path, source="a.txt", format="text").facts["characters"]["train"] == int(0.9 * len(ROWS))
    assert prepared(tmp_path, source="b.csv", format="text").facts["documents"] == 1


# --- splits ----------------------------------------------------------------------------------------------------------


def test_split_in_order_gives_consecutive_texts(folder: Path):
    source = prepared(folder, source="one.txt", tokenizer="byte", val=0.2, test=0.1)
    text = (folder / "one.txt").read_text()
    train = decoded(source, "train").rstrip("\ufffd")  # the last window may end within a character
    assert text[:280].startswith(train)
    assert len(text[:280].encode()) - len(train.encode()) <= 8  # only what fills no window is left out
    assert decoded(source, "val") == text[280:360]
    assert decoded(source, "test") == text[360:]


def test_no_document_is_in_two_splits(folder: Path):
    source = prepared(folder, source="docs", tokenizer="byte", val=0.2, test=0.1)
    letters = {split: set(decoded(source, split)) - {"\n"} for split in ("train", "val", "test")}
    assert {name: len(found) for name, found in letters.items()} == {"train": 14, "val": 4, "test": 2}
    assert set.union(*letters.values()) == {chr(ord("a") + i) for i in range(20)}


def test_a_new_document_hardly_changes_the_split(folder: Path):
    before = splitting.split_by_document(corpora.open_corpus("docs", folder, Layout()).read(), 0.0, 0.2)
    (folder / "docs" / "zz.txt").write_text("z" * 50)
    after = splitting.split_by_document(corpora.open_corpus("docs", folder, Layout()).read(), 0.0, 0.2)
    assert len(set(before["test"]) ^ set(after["test"])) <= 2


@settings(deadline=None)
@given(
    repeats=st.lists(st.tuples(st.integers(1, 4), st.integers(20, 200)), min_size=2, max_size=12),
    order=st.randoms(use_true_random=False),
    val=st.sampled_from([0.0, 0.1, 0.3]),
    test=st.sampled_from([0.0, 0.1, 0.3]),
)
def test_repeated_documents_are_in_one_split(repeats, order, val, test):
    """Text i consists of letter i. Its copies differ in white space."""
    letters = [chr(0x100 + i) for i in range(len(repeats))]
    copies = [letters[i] * size + " " * j for i, (count, size) in enumerate(repeats) for j in range(count)]
    order.shuffle(copies)
    documents = [splitting.Document(f"{i}.txt", text) for i, text in enumerate(copies)]
    for divide in (splitting.split_by_document, splitting.split_in_order):
        splits = divide(documents, val, test)
        for i, (count, size) in enumerate(repeats):
            found = {name: "".join(parts).count(letters[i]) for name, parts in splits.items()}
            assert sum(found.values()) == count * size
            if count > 1 or divide is splitting.split_by_document:
                assert sum(map(bool, found.values())) == 1


def test_documents_of_one_text_cannot_be_split_by_document(folder: Path):
    (folder / "same").mkdir()
    for i in range(3):
        (folder / "same" / f"{i}.txt").write_text("the same text " * 20)
    for fields in ({"source": "same"}, {"source": "one.txt", "split": "document"}):
        error = refused(folder, **fields)
        assert (error.path, repr(fields["source"]) in error.problem) == (("split",), True)
        assert "split: order" in str(error.remedy)


def test_an_empty_split_is_none(folder: Path):
    source = prepared(folder, source="one.txt", val=0)
    assert source.evaluation("val") is None
    assert source.evaluation("test") is None
    assert len(source.prompt()) == 4


def test_the_vocabulary_is_that_of_the_training_split(folder: Path):
    source = prepared(folder, source="one.txt", val=0.1)  # no character of validation occurs in training
    assert source.vocab_size == 360 + 1
    assert decoded(source, "val") == "\ufffd" * 40
    split = source.evaluation("val")
    assert split is not None
    assert split.num_bytes == 80
    assert split.unpredicted_bits == pytest.approx(math.log2(361) + 8 * 80)
    assert source.facts["bytes"] == {"train": 720, "val": 80, "test": 0}
    assert source.facts["escape_bits"] == {"val": 8 * 80, "test": 0}


# --- batches ---------------------------------------------------------------------------------------------------------


def test_packed_batches_equal_solo_batches_of_windows(folder: Path):
    source = prepared(folder, source="one.txt")
    arrays = {name: jnp.asarray(array) for name, array in source.arrays.items()}
    rows = np.stack([source.rows(seed, 0, 1, 3)[0] for seed in range(4)])
    keys = jax.random.split(KEY, 4)
    packed = jax.jit(jax.vmap(source.batch, in_axes=(None, 0, 0)))(arrays, rows, keys)
    for i in range(4):
        solo = source.batch(arrays, jnp.asarray(rows[i]), keys[i])
        for one, many in zip(solo[:3], packed[:3], strict=True):
            np.testing.assert_array_equal(one, many[i])
        np.testing.assert_array_equal(solo.tokens, source.arrays["windows"][rows[i]][:, :-1])
        np.testing.assert_array_equal(solo.targets, source.arrays["windows"][rows[i]][:, 1:])
        assert solo.weights.dtype == jnp.float32
        assert (solo.weights == 1).all()


def test_the_fingerprint_changes_with_the_tokens_alone(folder: Path):
    base = {"source": "one.txt", "val": 0.2}
    first = prepared(folder, **base).fingerprint
    assert prepared(folder, **base).fingerprint == first
    assert prepared(folder, **base, split="order").fingerprint == first
    for change in ({"seq_len": 9}, {"val": 0.3}, {"tokenizer": "byte"}, {"test": 0.1}):
        assert prepared(folder, **{**base, **change}).fingerprint != first
    text = (folder / "one.txt").read_text()
    (folder / "one.txt").write_text(text[:-1] + "x")
    assert prepared(folder, **{**base, "tokenizer": "byte"}).fingerprint != first


def test_bigram_loss_by_hand():
    train, held_out = np.array([0, 1, 0, 1, 0]), np.array([0, 1, 1])
    # 0 -> 1 twice of two, 1 -> 1 never of two; three tokens, one added to each count
    assert bigram_loss(train, held_out, 3) == pytest.approx(-(math.log(3 / 5) + math.log(1 / 5)) / 2)
    assert bigram_loss(train, held_out[:1], 3) is None


# --- python-docs -----------------------------------------------------------------------------------------------------


def test_python_docs_has_no_repeated_paragraphs_and_reports_its_digest(tmp_path: Path):
    documents = corpora.python_docs()
    assert [d.name for d in documents] == sorted(d.name for d in documents)
    paragraphs = [" ".join(p.split()) for d in documents for p in d.text.split("\n\n") if p.strip()]
    assert len(paragraphs) == len(set(paragraphs)) > 1000
    source = prepared(tmp_path, source="python-docs", seq_len=128)
    text = "\n\n".join(d.text for d in documents if d.text)
    facts = source.facts
    assert facts["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert facts["split"] == "document"
    assert 0.08 < facts["characters"]["val"] / facts["characters"]["train"] < 0.12
    assert facts["decoy_loss"] < facts["chance_loss"] / 1.5
    shared = set(decoded(source, "val").split("\n\n")) & set(decoded(source, "train").split("\n\n"))
    assert max(map(len, shared), default=0) < 3  # the windows' edges may leave a stump of a paragraph


def test_the_digest_of_one_file_is_its_sha256(folder: Path):
    facts = prepared(folder, source="one.txt").facts
    assert facts["sha256"] == hashlib.sha256((folder / "one.txt").read_bytes()).hexdigest()


def test_evaluated_depends_on_the_held_out_text_and_unit_on_the_tokenizer(folder: Path):
    one = prepared(folder, source="one.txt", test=0.1)
    windows, tokens = (
        prepared(folder, source="one.txt", test=0.1, seq_len=4),
        prepared(folder, source="one.txt", test=0.1, tokenizer="byte"),
    )
    assert one.evaluated == windows.evaluated == tokens.evaluated
    assert one.unit == windows.unit != tokens.unit
    (folder / "copy.txt").write_text("x" * 320 + (folder / "one.txt").read_text()[320:])  # other training text
    assert prepared(folder, source="copy.txt", test=0.1).evaluated == one.evaluated
    # The same characters, divided otherwise.
    others = [
        prepared(folder, source="one.txt", **shares) for shares in ({}, {"val": 0.2}, {"val": 0.15, "test": 0.05})
    ]
    assert len({source.evaluated for source in (one, *others)}) == 4


def test_facts_are_computed_once(folder: Path):
    source = prepared(folder, source="one.txt")
    assert source.facts is source.facts


# --- errors ----------------------------------------------------------------------------------------------------------


def refused(folder: Path, **fields: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        prepared(folder, **fields)
    return caught.value


def test_a_missing_file_suggests_a_similar_name(folder: Path):
    error = refused(folder, source="on.txt")
    assert str(error).startswith("no file")
    assert f" 'on.txt' (searched for {folder}/on.txt)\n  where:  source\n" in str(error)
    assert "Did you mean 'one.txt'?" in str(error)
    assert "Did you mean 'python-docs'?" in str(refused(folder, source="python-doc"))
    assert "`python-docs`, which" in str(refused(folder, source="nowhere/at/all.txt"))
    (folder / "books").mkdir(exist_ok=True)
    assert "'books'" in refused(folder, source="boks/*.txt").remedy


@pytest.mark.parametrize("source", [["one.txt", "one.txt"], ["one.txt", "on*.txt"]])
def test_a_file_that_is_listed_twice_is_refused(folder: Path, source: list[str]):
    error = refused(folder, source=source)
    assert (error.path, "one.txt" in error.problem) == (("source",), True)
    assert "mixture" in error.remedy


def test_a_missing_file_does_not_list_its_folder(folder: Path):
    for name in (".bash_history", "diary.txt", "taxes"):
        (folder / name).touch()
    for asked in ("corpus.bin", ".bash_histor"):
        told = str(refused(folder, source=asked))
        assert not any(name in told for name in (".bash_history", "diary", "taxes", "one.txt"))


def test_an_empty_corpus_is_refused(folder: Path):
    (folder / "empty.txt").write_text(" \n")
    (folder / "nothing").mkdir()
    for source in ("empty.txt", "nothing"):
        error = refused(folder, source=source)
        assert error.problem == f"the corpus {source!r} is empty"
        assert error.path == ("source",)


def test_bytes_that_are_not_utf8_are_located(folder: Path):
    (folder / "docs" / "bad.txt").write_bytes(b"fine\nna\xefve\n")
    error = refused(folder, source="docs")
    assert error.problem == f"{folder}/docs/bad.txt is not UTF-8: byte 0xef in line 2 (byte 7 of the file)"
    assert error.path == ("source",)


@pytest.mark.parametrize(("fields", "split", "tokens", "remedy"), [
    ({"seq_len": 400}, "train", 360, "Use seq_len 359"),
    ({"seq_len": 40}, "val", 40, "Use seq_len 39"),
    ({"test": 0.001}, "test", 1, "raise test"),
])  # fmt: skip
def test_a_sequence_longer_than_a_split_is_refused(
    folder: Path, fields: dict[str, Any], split: str, tokens: int, remedy: str
):
    error = refused(folder, source="one.txt", **fields)
    assert re.match(rf"seq_len {fields.get('seq_len', 8)} .* {split} split, .* {tokens} tokens", error.problem)
    assert error.path == ("seq_len",)
    assert remedy in str(error.remedy)


def test_a_share_that_fits_no_document_gets_the_smallest(folder: Path):
    texts = [file for file in (folder / "docs").iterdir() if file.suffix == ".txt"]
    smallest = min(texts, key=lambda file: (len(file.read_text()), file.name))
    source = prepared(folder, source="docs", val=0.01)
    assert source.evaluation("val").weights.sum() == len(smallest.read_text()) - 1


def test_a_byte_order_mark_is_ignored(folder: Path):
    (folder / "marked.txt").write_bytes(b"\xef\xbb\xbf" + (folder / "one.txt").read_bytes())
    assert prepared(folder, source="marked.txt").vocab_size == prepared(folder, source="one.txt").vocab_size


def test_invalid_shares_are_refused(folder: Path):
    error = refused(folder, source="one.txt", val=0.6, test=0.4)
    assert error.path == ("val",)
    assert "`val` and `test`" in str(error.remedy)
    assert "val 0.6 and test 0.4" in error.problem
    error = refused(folder, source="one.txt", val=1.5)
    assert error.problem.startswith("1.5 ")
    assert "less than 1" in error.problem


def test_a_refused_character_is_an_error_of_the_tokenizer(folder: Path):
    error = refused(folder, source="one.txt", tokenizer={"kind": "char", "unseen": "error"})
    assert error.path == ("tokenizer", "unseen")
    assert "(U+0268, at index 0 of the text)" in error.problem


@pytest.fixture
def special(folder: Path) -> Path:
    """Return a folder with `odd`, which has a text file, a FIFO and links to a device and to the parent."""
    (folder / "odd").mkdir()
    (folder / "odd" / "text.txt").write_text("Only this is a text. " * 20)
    os.mkfifo(folder / "odd" / "fifo")
    os.symlink("/dev/zero", folder / "odd" / "device")
    os.symlink("..", folder / "odd" / "above")
    return folder


def test_only_regular_files_are_read(special: Path):
    assert [document.name for document in corpora.open_corpus("odd", special, Layout()).read()] == ["text.txt"]
    for name in ("odd/fifo", "odd/device"):
        error = refused(special, source=name)
        assert (error.path, name in error.problem) == (("source",), True)


def test_a_broken_link_in_a_folder_is_an_error(special: Path):
    os.symlink("gone.txt", special / "odd" / "broken")
    error = refused(special, source="odd")
    assert f"{special}/odd/broken" in error.problem
    assert "No such file" in error.problem


@pytest.mark.parametrize("source", ["a\0b", "~nobody-of-this-name/text.txt", "x" * 300])
def test_an_invalid_path_is_refused(folder: Path, source: str):
    error = refused(folder, source=source)
    assert error.path == ("source",)
    assert repr(source) in error.problem


def test_a_file_name_may_contain_any_bytes(folder: Path):
    for i in range(2):
        Path(os.fsdecode(os.fsencode(folder / "docs") + b"/\xff%d.txt" % i)).write_text("more text " * 5)
    assert prepared(folder, source="docs").facts["documents"] == 22


# --- tokens that a tokenizer adds to a text, splits by hash, cropped training text -----------------------------------

DOCUMENTS = [f"words of the document {i * i}, and more of them" for i in range(30)]


@pytest.fixture
def bracketed(tmp_path: Path) -> Path:
    """Return a folder with documents and a tokenizer that adds `[CLS]` before and `[SEP]` after a text."""
    inner = train_bpe("\n".join(DOCUMENTS))
    inner.add_special_tokens(["[CLS]", "[SEP]"])
    numbers = [(name, inner.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=numbers)
    (tmp_path / "tokenizer.json").write_text(inner.to_str())
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in DOCUMENTS))
    return tmp_path


@pytest.mark.parametrize(("large", "split"), [(False, "hash"), (False, "document"), (True, "hash")])
def test_each_document_has_the_tokens_that_the_tokenizer_adds(bracketed: Path, large: bool, split: str, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(bracketed / "cache"))
    if large:
        monkeypatch.setattr(text, "LARGE", 100)
    read = {"kind": "file", "path": "tokenizer.json"}
    source: Any = prepared(bracketed, source="rows.jsonl", tokenizer=read, split=split, val=0.3)
    assert isinstance(source, TextSource) is not large
    first, last = (source.tokenizer.number(name) for name in ("[CLS]", "[SEP]"))
    count = 0
    for name in ("train", "val"):
        stream = source.streams[name][:]
        assert (stream[0], stream[-1]) == (first, last)
        assert (stream == first).sum() == (stream == last).sum() > 1
        assert (stream[1:][stream[:-1] == last] == first).all()
        count += int((stream == first).sum())
    assert count == len(DOCUMENTS)
    held_out = source.evaluation("val")
    assert held_out.unpredicted_bits == 0  # the first token is that of the tokenizer
    named = prepared(bracketed, source="rows.jsonl", tokenizer=read, split="hash", separator="[SEP]")
    assert (named.streams["train"][:] == first).sum() == 0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("texts", "count"), [(["one document " * 30], "one"), (["a b " * 30, "c d " * 30], "2")])
def test_a_split_without_documents_is_named(tmp_path: Path, large: bool, texts: list[str], count: str, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    if large:
        monkeypatch.setattr(text, "LARGE", 10)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "{part}"}}\n' for part in texts))
    with pytest.raises(UserError) as caught:
        prepared(tmp_path, source="rows.jsonl", split="hash", val=0.0001)
    assert caught.value.path == ("split",)
    assert count in caught.value.problem
    assert "val" in caught.value.problem
    assert "hash" in caught.value.problem


def test_bytes_per_token_are_those_of_the_whole_training_text(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in DOCUMENTS))
    for limit in (2**28, 100):
        monkeypatch.setattr(text, "LARGE", limit)
        facts = prepared(tmp_path, source="rows.jsonl", split="hash", tokenizer="byte", train_tokens=100).facts
        assert facts["tokens"]["train"] == 100
        assert facts["uncropped"] == {"train": facts["bytes"]["train"]}
        assert "train 1" in dict(_lines(facts))["bytes per token"]
