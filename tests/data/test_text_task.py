"""Task `text`: corpora, splits, batches, and what is said when the data cannot be used."""

import hashlib
import math
import socket
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.core.loading import component
from taetpu.data import corpora
from taetpu.data.batches import Source
from taetpu.data.text import bigram_loss

KEY = jax.random.key(0)


def prepared(folder: Path, **fields: Any) -> Source:
    return component("task", {"kind": "text", "seq_len": 8, **fields}).prepare(folder)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file, and a folder of 20 documents each of which has a letter of its own at every place."""
    (tmp_path / "one.txt").write_text("".join(chr(0x100 + i) for i in range(400)))
    docs = tmp_path / "docs"
    (docs / "deep").mkdir(parents=True)
    for i in range(20):
        (docs / ("deep" if i % 2 else ".") / f"{i}.txt").write_text(chr(ord("a") + i) * 50)
    (docs / ".hidden").write_bytes(b"\xff")
    return tmp_path


def decoded(source: Source, split: str) -> str:
    """The text of a split as far as it is a token or a target of some weight."""
    assert source.tokenizer is not None
    if split == "train":
        windows = source.arrays["windows"]
        ids = np.concatenate([windows[:1, 0], windows[:, 1:].ravel()])
    else:
        found = source.evaluation(split)
        assert found is not None
        ids = np.concatenate([found.tokens[:1, 0], found.targets[found.weights > 0]])
    return source.tokenizer.decode(ids)


# --- splits ----------------------------------------------------------------------------------------------------------


def test_in_order_the_splits_follow_one_another(folder: Path):
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


def test_a_new_document_moves_no_other_from_training_to_test(folder: Path):
    before = corpora.by_document(corpora.read("docs", folder), 0.0, 0.2)
    (folder / "docs" / "zz.txt").write_text("z" * 50)
    after = corpora.by_document(corpora.read("docs", folder), 0.0, 0.2)
    assert len(set(before["test"]) ^ set(after["test"])) <= 2


def test_an_empty_split_is_none_and_an_unknown_one_an_error(folder: Path):
    source = prepared(folder, source="one.txt", val=0)
    assert source.evaluation("val") is None
    assert source.evaluation("test") is None
    assert len(source.prompt()) == 4
    with pytest.raises(UserError, match="no evaluation split 'valid'"):
        source.evaluation("valid")


def test_the_vocabulary_is_that_of_the_training_split(folder: Path):
    source = prepared(folder, source="one.txt", val=0.1)  # no character of validation occurs in training
    assert source.vocab_size == 360 + 1
    assert decoded(source, "val") == "\ufffd" * 40
    split = source.evaluation("val")
    assert split is not None
    assert split.num_bytes == 0
    assert source.facts["bytes_without_token"] == {"train": 0, "val": 80, "test": 0}


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_its_windows_and_a_pack_of_batches_the_same(folder: Path):
    source = prepared(folder, source="one.txt")
    arrays = {name: jnp.asarray(array) for name, array in source.arrays.items()}
    rows = np.stack([source.rows(seed, 0, 1, 3)[0] for seed in range(4)])
    keys = jax.random.split(KEY, 4)
    packed = jax.jit(jax.vmap(source.batch, in_axes=(None, 0, 0)))(arrays, rows, keys)
    for i in range(4):
        solo = source.batch(arrays, jnp.asarray(rows[i]), keys[i])
        for one, many in zip(solo, packed, strict=True):
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


def test_python_docs_repeats_no_paragraph_and_says_which_text_it_was(tmp_path: Path):
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


def test_the_digest_of_one_file_is_that_of_its_bytes(folder: Path):
    facts = prepared(folder, source="one.txt").facts
    assert facts["sha256"] == hashlib.sha256((folder / "one.txt").read_bytes()).hexdigest()


def test_what_is_evaluated_is_the_held_out_text_and_the_unit_its_tokenizer(folder: Path):
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


def test_facts_are_worked_out_once(folder: Path):
    source = prepared(folder, source="one.txt")
    assert source.facts is source.facts


# --- errors ----------------------------------------------------------------------------------------------------------


def refused(folder: Path, **fields: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        prepared(folder, **fields)
    return caught.value


def test_a_missing_file_names_what_is_near(folder: Path):
    error = refused(folder, source="on.txt")
    assert str(error).startswith(f"no file or folder 'on.txt' (looked for {folder}/on.txt)\n  where:  source\n")
    assert "did you mean 'one.txt'?" in str(error)
    assert "did you mean 'python-docs'?" in str(refused(folder, source="python-doc"))
    assert "`python-docs` needs no file" in str(refused(folder, source="nowhere/at/all.txt"))


def test_a_missing_file_names_nothing_else_of_its_folder(folder: Path):
    for name in (".bash_history", "diary.txt", "taxes"):
        (folder / name).touch()
    for asked in ("corpus.bin", ".bash_histor"):
        told = str(refused(folder, source=asked))
        assert not any(name in told for name in (".bash_history", "diary", "taxes", "one.txt"))


def test_an_empty_corpus(folder: Path):
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


@pytest.mark.parametrize(("fields", "problem", "remedy"), [
    ({"seq_len": 400}, "seq_len 400 is longer than the train split, which has 360 tokens", "at most 359"),
    ({"seq_len": 40}, "seq_len 40 is longer than the val split, which has 40 tokens", "at most 39"),
    ({"test": 0.001}, "seq_len 8 is longer than the test split, which has 1 tokens", "raise test"),
])  # fmt: skip
def test_a_sequence_longer_than_a_split(folder: Path, fields: dict[str, Any], problem: str, remedy: str):
    error = refused(folder, source="one.txt", **fields)
    assert error.problem == problem
    assert error.path == ("seq_len",)
    assert remedy in str(error.remedy)


def test_a_share_that_fits_no_document_gets_the_smallest(folder: Path):
    texts = [file for file in (folder / "docs").iterdir() if file.suffix == ".txt"]
    smallest = min(texts, key=lambda file: (len(file.read_text()), file.name))
    source = prepared(folder, source="docs", val=0.01)
    assert source.evaluation("val").weights.sum() == len(smallest.read_text()) - 1


def test_a_byte_order_mark_is_no_character(folder: Path):
    (folder / "marked.txt").write_bytes(b"\xef\xbb\xbf" + (folder / "one.txt").read_bytes())
    assert prepared(folder, source="marked.txt").vocab_size == prepared(folder, source="one.txt").vocab_size


def test_shares_and_splits_that_cannot_be(folder: Path):
    error = refused(folder, source="one.txt", val=0.6, test=0.4)
    assert str(error) == (
        "val 0.6 and test 0.4 leave nothing to train on\n  where:  val\n  remedy: val + test must be below 1"
    )
    error = refused(folder, source="one.txt", val=1.5)
    assert error.problem == "1.5 is not allowed: must be less than 1"
    error = refused(folder, source="one.txt", split="document")
    assert error.problem == "'one.txt' is a single document, which cannot be split by document"
    assert (error.path, error.remedy) == (("split",), "split: order")


def test_a_refused_character_is_an_error_of_the_tokenizer(folder: Path):
    error = refused(folder, source="one.txt", tokenizer={"kind": "char", "unseen": "error"})
    assert error.path == ("tokenizer", "unseen")
    assert "(U+0268, number 0 of the text)" in error.problem


def test_an_unreadable_file(folder: Path, monkeypatch: pytest.MonkeyPatch):
    # A socket, because root, who may run the tests, can read every file. Its address has to be short.
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("plug")
        error = refused(folder, source="plug")
    assert error.problem == f"cannot read {folder}/plug: No such device or address"
    assert error.path == ("source",)
