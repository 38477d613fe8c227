"""Tasks on labelled rows: formats, splits, sequences, labels, and mistakes in files."""

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow
import pytest
import tokenizers as hf
from pyarrow import parquet
from sklearn.utils.class_weight import compute_class_weight
from tests.labelled_files import labelled_rows, write_json_lines, write_table
from tests.tokenizer_files import train_bpe
from tokenizers import models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.data.base import Batch
from taetpu.data.labelled.sequences import fit, frame_of
from taetpu.data.tokenizers.library import wrap_tokenizer
from taetpu.train.model_io import InterfaceRecord

ROWS = labelled_rows()
KINDS = {
    "classification": {},
    "regression": {"label": "score"},
    "token-classification": {},
    "pairs": {"size": 4, "candidates": 5},
}


@pytest.fixture
def files(tmp_path):
    write_json_lines(tmp_path / "rows.jsonl", ROWS)
    return tmp_path


def task(kind: str = "classification", **fields: Any) -> Any:
    fields = {"source": "rows.jsonl", "seq_len": 40, "val": 0.2, "test": 0.1, **KINDS[kind], **fields}
    return build_component("task", {"kind": kind, **fields})


def shown(source, split) -> list[tuple[str, Any]]:
    """Return the text of each sequence of a split, and the names or numbers of its targets."""
    batch: Any = Batch(**source.arrays) if split == "train" else source.evaluation(split).batch
    rows = []
    for tokens, targets, weights, length in zip(batch.tokens, batch.targets, batch.weights, batch.lengths, strict=True):
        named = [source.interface.labels[t] if source.interface.labels else t for t in targets[weights > 0].tolist()]
        rows.append((source.show(tokens[:length]), named))
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "arrow"])
def test_all_formats_give_the_data_of_json_lines(kind, ending, files):
    file = files / f"rows.{ending}"
    if ending == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    elif ending == "arrow":
        table = pyarrow.Table.from_pylist(ROWS)
        with pyarrow.ipc.new_stream(str(file), table.schema) as stream:
            stream.write_table(table)
    else:
        write_table(file, ROWS)
    first, second = (
        task(kind, source=name, split="hash", tokenizer="byte").prepare(files) for name in ("rows.jsonl", file.name)
    )
    assert (first.fingerprint, first.evaluated, first.unit) == (second.fingerprint, second.evaluated, second.unit)
    assert first.num_windows > 60


@pytest.mark.parametrize("split", ["document", "hash"])
def test_rows_with_one_text_are_in_one_split_and_keep_their_labels(split, files):
    rows = [*ROWS, *({**row, "second_text": "other", "text": f"  {row['text']} "} for row in ROWS[:60])]
    write_json_lines(files / "rows.jsonl", rows)
    source = task(second_text="second_text", split=split, seq_len=80).prepare(files)
    parts = {name: shown(source, name) for name in ("train", "val", "test")}
    assert sum(map(len, parts.values())) == len(rows) == sum(source.facts["examples"].values())
    texts = {name: {text.split("[SEP]")[0].strip("[CLS] ") for text, _ in part} for name, part in parts.items()}
    assert not texts["train"] & texts["val"] | texts["train"] & texts["test"] | texts["val"] & texts["test"]
    by_text = {row["text"]: row["label"] for row in ROWS}
    for text, labels in (row for part in parts.values() for row in part):
        assert labels == [by_text[text.split("[SEP]")[0].removeprefix("[CLS]").strip()]]
    for name, share in (("val", 0.2), ("test", 0.1)):
        assert len(parts[name]) / len(rows) == pytest.approx(share, abs=0.12)


def test_training_rows_that_are_evaluation_rows_are_left_out(files):
    write_json_lines(files / "val.jsonl", ROWS[:30])
    source = task(val_source="val.jsonl", test=0).prepare(files)
    assert source.facts["removed"] == 30
    assert (source.num_windows, len(source.evaluation("val").tokens)) == (90, 30)
    assert source.evaluation("test") is None


def test_classes_are_those_of_training_in_order_and_references_follow_from_them(files):
    source = task().prepare(files)
    assert source.interface == Interface(source.vocab_size, 3, labels=("even", "neg", "pos"), pooling="last")
    train, val = (Counter(labels[0] for _, labels in shown(source, name)) for name in ("train", "val"))
    assert source.facts["classes"] == {name: train[name] for name in source.interface.labels}
    shares = {name: count / train.total() for name, count in train.items()}
    expected = -sum(count * math.log(shares[name]) for name, count in val.items()) / val.total()
    assert source.facts["constant_loss"] == pytest.approx(expected)
    assert source.facts["constant_accuracy"] == val[max(shares, key=shares.__getitem__)] / val.total()
    assert source.facts["chance_loss"] == pytest.approx(math.log(3))
    stored = load_config(InterfaceRecord, json.loads('{"vocab_size": 9, "outputs": 3, "labels": ["a", "b", "c"]}'))
    assert stored.build().labels == ("a", "b", "c")


@pytest.mark.parametrize(
    ("labels", "names"),
    [([10, 9, True], ["10", "9", "true"]), ([10, 9, -1], ["-1", "9", "10"]), (["b ", "A", "é"], ["A", "b", "é"])],
)
def test_labels_may_be_texts_integers_or_booleans(labels, names, files):
    write_json_lines(files / "rows.jsonl", [{**row, "label": labels[i % 3]} for i, row in enumerate(ROWS)])
    assert task(test=0).prepare(files).interface.labels == tuple(names)


def test_class_weights_scale_the_loss_of_training_rows_only(files):
    source = task(class_weights="balanced").prepare(files)
    weights, targets = source.arrays["weights"], source.arrays["targets"][:, 0]
    by_class = [weights[targets == number].max() for number in range(3)]
    np.testing.assert_allclose(by_class, compute_class_weight("balanced", classes=np.arange(3), y=targets), rtol=1e-6)
    assert (weights > 0).sum() == source.num_windows
    assert set(np.unique(source.evaluation("val").weights)) == {0, 1}
    mapped = task(class_weights={"neg": 2, "pos": 0.5, "even": 1}).prepare(files).arrays["weights"]
    np.testing.assert_array_equal(mapped.max(1), np.array([1, 2, 0.5])[targets])


def test_regression_states_the_error_of_the_mean(files):
    source = task("regression").prepare(files)
    train, val = source.arrays["targets"][:, 0], source.evaluation("val").targets[:, 0]
    assert source.facts["constant_loss"] == pytest.approx(((val - train.mean()) ** 2).mean())
    assert source.facts["variance"] == pytest.approx(train.var())


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_one_position_of_each_sequence_is_scored(pooling, files):
    source = task(pooling=pooling).prepare(files)
    lengths = source.arrays["lengths"]
    places = source.arrays["weights"].argmax(1)
    np.testing.assert_array_equal(places, 0 if pooling == "first" else lengths - 1)
    assert (source.arrays["weights"].sum(1) == 1).all()
    assert (source.arrays["targets"] == source.arrays["targets"][:, :1]).all()


@pytest.mark.parametrize("scored", ["first", "last"])
def test_a_token_of_each_word_has_its_label(scored, files):
    source = task("token-classification", scored=scored, tokenizer="byte", test=0).prepare(files)
    batch, by_text = Batch(**source.arrays), {row["text"]: row for row in ROWS}
    names = np.array(source.interface.labels)
    for i in range(source.num_windows):
        text = source.show(batch.tokens[i, 1 : batch.lengths[i] - 1])
        places = np.flatnonzero(batch.weights[i])
        assert names[batch.targets[i, places]].tolist() == by_text[text]["labels"]
        ends = np.cumsum([len(word) + 1 for word in by_text[text]["tokens"]]) - 1
        starts = [0, *ends[:-1]]
        np.testing.assert_array_equal(places - 1, ends - 1 if scored == "last" else starts)


def test_a_sequence_of_pairs_has_two_texts(files):
    source = task("pairs", types=2).prepare(files)
    batch, by_text = Batch(**source.arrays), {row["text"]: row["second_text"] for row in ROWS}
    for i in range(source.num_windows):
        first, second = (
            source.show(ids[i, :n]).removeprefix("[CLS]").removesuffix("[SEP]")
            for ids, n in ((batch.tokens, batch.lengths[i]), (batch.second, batch.second_lengths[i]))
        )
        assert by_text[first] == second
    both = batch.both_texts
    np.testing.assert_array_equal(both.tokens[::2], batch.tokens)
    np.testing.assert_array_equal(both.lengths[1::2], batch.second_lengths)
    count = len(source.evaluation("val").tokens)
    sizes = [5] * (count // 5) + [count % 5] * (count % 5 > 0)
    assert source.facts["chance_accuracy"] == pytest.approx(len(sizes) / count)
    assert source.facts["chance_loss"] == pytest.approx(sum(n * math.log(n) for n in sizes) / count)


# --- special tokens --------------------------------------------------------------------------------------------------

WORDS = {word: i for i, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "a", "b", "c"])}


def word_tokenizer(form: str | None) -> hf.Tokenizer:
    inner = hf.Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if form == "bert":
        inner.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    elif form == "roberta":
        inner.post_processor = processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1))
    elif form == "template":
        inner.post_processor = processors.TemplateProcessing("$A [SEP]", "$A $B:1 [SEP]:1", [("[SEP]", 2)])
    return inner


@pytest.mark.parametrize("form", ["bert", "roberta", "template"])
@pytest.mark.parametrize("room", [3, 5, 20])
def test_sequences_of_one_and_two_texts_are_those_of_transformers(form, room):
    inner = word_tokenizer(form)
    reference = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[UNK]", unk_token="[UNK]")
    ours = wrap_tokenizer(hf.Tokenizer.from_str(inner.to_str()))
    for texts in (("a b c a b",), ("a b", "c c c c"), ("a b c a b c", "c b"), ("a b c a b c", "a a a a a")):
        frame = frame_of(ours, len(texts))
        size = room + frame.size
        wanted = reference(*texts, truncation="longest_first", max_length=size, return_token_type_ids=True)
        ids, types = frame.join(fit(tuple(map(ours.encode_plain, texts)), room))
        assert ids.tolist() == wanted["input_ids"]
        assert types.tolist() == wanted["token_type_ids"]


def test_types_tell_the_texts_apart(files):
    source = task(second_text="second_text", seq_len=80).prepare(files)
    types, lengths = source.arrays["types"], source.arrays["lengths"]
    assert source.interface.types == 2
    for tokens, row, length in zip(source.arrays["tokens"], types, lengths, strict=True):
        first = len(source.show(tokens[:length]).split("[SEP]")[0]) - len("[CLS]") + 2
        assert row[:length].tolist() == [0] * first + [1] * (length - first)
    assert task(second_text="second_text", seq_len=80, types=1).prepare(files).interface.types == 1
    assert task(types=2).prepare(files).arrays["types"].max() == 0


def test_long_texts_are_cropped_or_refused(files):
    source = task(seq_len=12, long_texts="crop").prepare(files)
    assert source.facts["cropped"]["train"] > 10
    assert source.facts["longest"]["train"] > 12 >= source.arrays["lengths"].max()
    assert all(source.show(row[:n]).endswith("[SEP]") for row, n in zip(
        source.arrays["tokens"], source.arrays["lengths"], strict=True))  # fmt: skip


def test_a_tokenizer_without_special_tokens_needs_a_separator_between_two_texts(files):
    (files / "t.json").write_text(train_bpe("good bad tree " * 20).to_str())
    read = {"tokenizer": {"kind": "file", "path": "t.json"}, "seq_len": 120}
    assert "endoftext" not in shown(task(**read).prepare(files), "train")[0][0]
    with pytest.raises(UserError) as caught:
        task(**read, second_text="second_text").prepare(files)
    assert caught.value.path == ("separator",)
    separated = task(**read, second_text="second_text", separator="<|endoftext|>").prepare(files)
    assert all(text.count("<|endoftext|>") == 2 for text, _ in shown(separated, "train"))
    for fields, path in (({"separator": "</s>"}, "separator"), ({"bos": "<|endoftext|>"}, "bos")):
        with pytest.raises(UserError) as caught:
            task(**read, **fields).prepare(files)
        assert caught.value.path == (path,)


# --- mistakes --------------------------------------------------------------------------------------------------------

LAST = len(ROWS) + 1
WRONG = {
    "no label": ("classification", {"text": "x"}, "label"),
    "empty label": ("classification", {"text": "x", "label": None}, "label"),
    "real label": ("classification", {"text": "x", "label": 0.5}, "label"),
    "empty text": ("classification", {"text": " ", "label": "pos"}, "text"),
    "no text": ("classification", {"text": 3, "label": "pos"}, "text"),
    "nan": ("regression", {"text": "x", "score": float("nan")}, "label"),
    "infinite": ("regression", {"text": "x", "score": "1e39"}, "label"),
    "no number": ("regression", {"text": "x", "score": "much"}, "label"),
    "boolean": ("regression", {"text": "x", "score": True}, "label"),
    "fewer labels": ("token-classification", {"tokens": ["a", "b"], "labels": ["O"]}, "label"),
    "no words": ("token-classification", {"tokens": [], "labels": []}, "text"),
    "a number": ("token-classification", {"tokens": 3, "labels": []}, "text"),
    "a word that is no text": ("token-classification", {"tokens": ["a", 1], "labels": ["O", "O"]}, "text"),
    "no second text": ("pairs", {"text": "x", "second_text": ""}, "second_text"),
    "too long": ("classification", {"text": "x" * 99, "label": "pos"}, "seq_len"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_row_that_is_wrong_is_refused_with_its_place(case, files):
    kind, row, setting = WRONG[case]
    write_json_lines(files / "rows.jsonl", [*ROWS, row])
    with pytest.raises(UserError) as caught:
        task(kind).prepare(files)
    assert caught.value.path == (setting,)
    assert f"line {LAST} of {files / 'rows.jsonl'}" in caught.value.problem
    assert caught.value.remedy


def test_a_label_that_training_lacks_is_refused_with_its_row(files):
    write_json_lines(files / "val.jsonl", [*ROWS[:9], {"text": "x", "label": "new"}])
    with pytest.raises(UserError) as caught:
        task(val_source="val.jsonl", test=0).prepare(files)
    assert caught.value.path == ("label",)
    assert f"line 10 of {files / 'val.jsonl'}" in caught.value.problem
    assert "'new'" in caught.value.problem
    assert "'even', 'neg', 'pos'" in caught.value.remedy


def test_a_class_of_one_row_is_refused(files):
    splits = set()
    for number in range(12):
        write_json_lines(files / "rows.jsonl", [*ROWS, {"text": f"alone {number}", "label": "rare"}])
        with pytest.raises(UserError) as caught:
            task(split="hash", val=0.4).prepare(files)
        assert (caught.value.path, bool(caught.value.remedy)) == (("label",), True)
        assert f"line {LAST} " in caught.value.problem
        assert "'rare'" in caught.value.problem
        splits.add(caught.value.problem.split()[-1])
    assert splits == {"train", "val"}


REFUSED = {
    "one class": ({}, {"label": "a"}, "label"),
    "one text": ({}, {"text": "a"}, "split"),
    "unknown class": ({"class_weights": {"pos": 1, "neg": 1, "even": 1, "x": 2}}, {}, "class_weights"),
    "missing class": ({"class_weights": {"pos": 1}}, {}, "class_weights"),
    "negative weight": ({"class_weights": {"pos": 1, "neg": -1, "even": 1}}, {}, "class_weights"),
    "infinite weight": ({"class_weights": {"pos": 1, "neg": 1e39, "even": 1}}, {}, "class_weights"),
    "column": ({"label": "text"}, {}, "label"),
    "lengths": ({"eval_lengths": [8]}, {}, "eval_lengths"),
    "shares": ({"val": 0.6, "test": 0.5}, {}, "val"),
    "plain text": ({"source": "rows.txt"}, {}, "source"),
    "builtin": ({"source": "python-docs"}, {}, "source"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_and_settings_that_do_not_fit_are_refused(case, files):
    fields, row, setting = REFUSED[case]
    write_json_lines(files / "rows.jsonl", [{**other, **row} for other in ROWS])
    (files / "rows.txt").write_text("good")
    with pytest.raises(UserError) as caught:
        task(**fields).prepare(files)
    assert caught.value.path[0] == setting
    assert caught.value.remedy


def test_a_table_without_the_column_names_those_that_it_has(files):
    write_table(files / "rows.csv", ROWS)
    with pytest.raises(UserError) as caught:
        task(source="rows.csv", label="sentiment").prepare(files)
    assert caught.value.path == ("label",)
    assert "'score'" in caught.value.problem
