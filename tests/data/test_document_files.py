"""Documents of every format are read as their own tools wrote them; damage is refused with file and row."""

import csv
import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet
from tests.data.test_text_task import prepared

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.corpora import open_corpus
from taetpu.data.document_files import Layout

TEXTS = ["One line.", 'Two lines,\nwith "quotes" and commas.', "Zwölf Boxkämpfer\tjagen 🥊.", "The last\r\nof them."]


def json_lines(texts):
    return "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)).encode()


def table(path, texts, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([("id", "text"), *enumerate(texts)])


def arrow_table(texts):
    return pyarrow.table({"id": [*range(len(texts))], "text": texts})


def zstd(path, content):
    with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(content)


def arrow_file(path, texts, new):
    rows = arrow_table(texts)
    with new(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)


WRITERS = {
    "a.jsonl": lambda path: path.write_bytes(json_lines(TEXTS)),
    "a.ndjson": lambda path: path.write_bytes(b"\n" + json_lines(TEXTS).replace(b"\n", b"\r\n")),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(json_lines(TEXTS))),
    "a.jsonl.zst": lambda path: zstd(path, json_lines(TEXTS)),
    "a.csv": lambda path: table(path, TEXTS),
    "a.tsv": lambda path: table(path, TEXTS, "\t"),
    "a.parquet": lambda path: parquet.write_table(arrow_table(TEXTS), path, row_group_size=3),
    "stream.arrow": lambda path: arrow_file(path, TEXTS, pyarrow.ipc.new_stream),
    "file.arrow": lambda path: arrow_file(path, TEXTS, pyarrow.ipc.new_file),
}


def texts_of(source, folder, **layout):
    return [document.text for document in open_corpus(source, folder, Layout(**layout))]


@pytest.mark.parametrize("name", WRITERS)
def test_rows_are_documents(tmp_path, name):
    WRITERS[name](tmp_path / name)
    expected = [text.replace("\r\n", "\n") for text in TEXTS] if name[-3:] in ("csv", "tsv") else TEXTS
    assert [text.replace("\r\n", "\n") if name[-3:] in ("csv", "tsv") else text
            for text in texts_of(name, tmp_path)] == expected  # fmt: skip


@pytest.mark.slow  # imports datasets
def test_folders_of_datasets(tmp_path):
    import datasets

    rows = {name: datasets.Dataset.from_dict({"text": TEXTS[i:]}) for i, name in enumerate(("train", "validation"))}
    datasets.DatasetDict(rows).save_to_disk(tmp_path / "both", num_shards={"train": 2, "validation": 1})
    assert texts_of("both", tmp_path) == TEXTS
    assert texts_of("both/validation", tmp_path) == TEXTS[1:]
    task = build_component("task", {"kind": "text", "source": "both", "seq_len": 2})
    assert task.prepare(tmp_path).facts["bytes"]["val"] == len("\n\n".join(TEXTS[1:]).encode())
    for file in task.files(tmp_path):  # on another machine
        copy = tmp_path / "other" / file.relative_to(tmp_path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    assert task.prepare(tmp_path / "other").fingerprint == task.prepare(tmp_path).fingerprint


def test_field_of_files_without_fields(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(UserError, match="body") as caught:
        texts_of("a.txt", tmp_path, field="body")
    assert caught.value.path == ("field",)


def test_documents_of_text_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\n  \nthree\nfour\nfive")
    assert texts_of("a.txt", tmp_path, per="line") == ["one", "two", "three", "four", "five"]
    assert texts_of("a.txt", tmp_path, per="line", lines=2) == ["one\ntwo", "three\nfour", "five"]
    assert texts_of("a.txt", tmp_path, per="blank-line") == ["one\ntwo", "three\nfour\nfive"]


def test_long_cells_are_read_and_the_limit_of_others_stays(tmp_path):
    before = csv.field_size_limit()
    table(tmp_path / "a.csv", ["a" * 200_000])
    assert texts_of("a.csv", tmp_path) == ["a" * 200_000]
    assert csv.field_size_limit() == before


def test_lists_and_patterns(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "d.jsonl").write_bytes(json_lines(["d"]))
    assert texts_of("[ab].txt", tmp_path) == ["a", "b"]
    assert texts_of(str(tmp_path / "?.txt"), tmp_path) == ["a", "b", "c"]
    assert texts_of(("c.txt", "*.jsonl", "a.txt"), tmp_path) == ["c", "d", "a"]


# --- damage ----------------------------------------------------------------------------------------------------------

DAMAGED = {  # content, field of the error, values of the problem
    "no such field.jsonl": (b'{"body": "a"}\n', "field", ("line 1", "body")),
    "number.jsonl": (json_lines(["a"]) + b'{"text": 3}\n', "field", ("line 2", "3")),
    "no object.jsonl": (b'{"text": "a"}\n["b"]\n', "source", ("line 2", "b")),
    "cut.jsonl": (json_lines(["a", "b"])[:-5], "source", ("line 2",)),
    "latin.jsonl": (b'{"text": "a"}\n{"text": "\xe9"}\n', "source", ("line 2", "0xe9")),
    "cut.jsonl.gz": (gzip.compress(json_lines(TEXTS))[:-9], "source", ()),
    "text.jsonl.gz": (b"a", "source", ()),
    "text.jsonl.zst": (b"a", "source", ()),
    "no column.csv": (b"id,body\n1,a\n", "field", ("body",)),
    "twice.csv": (b"text,text\na,b\n", "field", ("2",)),
    "surrogate.jsonl": (b'{"text": "a"}\n{"text": "\\ud800"}\n', "source", ("line 2", "hex escape")),
    "cells.csv": (b"id,text\n1,a,b\n", "source", ("line 2", "3", "2")),
    "quotes.csv": (b'id,text\n1,"a\n', "source", ()),
    "text.parquet": (b"PAR1 but no more", "source", ()),
    "text.arrow": (b"nothing", "source", ()),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_refused(tmp_path, name):
    content, field, values = DAMAGED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        texts_of(name, tmp_path)
    assert caught.value.path == (field,)
    assert [value for value in (name, *values) if value not in str(caught.value)] == []
    assert caught.value.remedy


def test_column_that_parquet_lacks(tmp_path):
    parquet.write_table(arrow_table(TEXTS), tmp_path / "a.parquet")
    for field, values in (("body", ("'id'", "'text'")), ("id", ("0",))):
        with pytest.raises(UserError) as caught:
            texts_of("a.parquet", tmp_path, field=field)
        assert caught.value.path == ("field",)
        assert [value for value in values if value not in caught.value.problem] == []


# --- the task --------------------------------------------------------------------------------------------------------

MANY = [f"Document {i} says {i * 7919 % 1000}." for i in range(60)]


def decoded(source, split):
    return source.tokenizer.decode(source.streams[split][:])


def test_evaluation_files_leave_training_text_whole(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines(MANY[:50]))
    (tmp_path / "b.jsonl").write_bytes(json_lines(MANY[45:]))  # five documents are also training documents
    source = prepared(tmp_path, source="a.jsonl", val_source="b.jsonl", tokenizer="byte")
    assert decoded(source, "train") == "\n\n".join(MANY[:45])
    assert decoded(source, "val") == "\n\n".join(MANY[45:])
    assert source.facts["removed"] == 5


def test_split_by_hash_moves_no_document_if_others_are_added(tmp_path):
    splits = []
    for count in (40, 60):
        (tmp_path / "a.jsonl").write_bytes(json_lines([*MANY[:count], MANY[3]]))
        source = prepared(tmp_path, source="a.jsonl", split="hash", val=0.3, test=0.2, tokenizer="byte")
        splits.append({name: decoded(source, name).split("\n\n") for name in ("train", "val", "test")})
    small, large = splits
    for name, part in small.items():
        assert set(part) <= set(large[name])
        assert len(part) > 3
    assert sum(part.count(MANY[3]) for part in small.values()) == 2
    assert 2 in [part.count(MANY[3]) for part in small.values()]


def test_crops_leave_the_evaluation(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines(MANY))
    whole, documents, tokens = (
        prepared(tmp_path, source="a.jsonl", split="hash", tokenizer="byte", **crop)
        for crop in ({}, {"train_documents": 10}, {"train_tokens": 99})
    )
    assert whole.evaluated == documents.evaluated == tokens.evaluated
    assert decoded(documents, "train").split("\n\n")[:10] == decoded(whole, "train").split("\n\n")[:10]
    assert len(decoded(documents, "train").split("\n\n")) == 11  # with the separator after the tenth
    assert decoded(tokens, "train") == decoded(whole, "train")[:99]
    assert len({whole.fingerprint, documents.fingerprint, tokens.fingerprint}) == 3


def test_fingerprint_is_of_text_not_of_files(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(json_lines(MANY))
    parquet.write_table(arrow_table(MANY), tmp_path / "b.parquet")
    first, second = (prepared(tmp_path, source=name, split="hash") for name in ("a.jsonl", "b.parquet"))
    assert first.fingerprint == second.fingerprint


def test_files_that_travel_with_a_study(tmp_path):
    for name in ("a.jsonl", "b.jsonl", "c.jsonl"):
        (tmp_path / name).write_bytes(json_lines(MANY))
    settings = {"kind": "text", "seq_len": 8, "source": ["a.jsonl", "[b].jsonl"], "val_source": "c.jsonl"}
    component = build_component("task", settings)
    assert [path.name for path in component.files(tmp_path)] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert component.sources == ("a.jsonl", "[b].jsonl", "c.jsonl")
    docs = build_component("task", {"kind": "text", "seq_len": 8, "source": "python-docs"})
    assert (docs.files(tmp_path), docs.sources) == ([], ())
