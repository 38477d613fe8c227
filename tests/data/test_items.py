"""Files of items are read as lm-evaluation-harness counts them, and invalid rows are named."""

import json
from typing import Any

import numpy as np
import pytest
from tests.lens.item_files import ITEMS, write_items

from taetpu.core.errors import DataWarning, UserError
from taetpu.core.model_interface import Interface
from taetpu.data.base import BatchSpec
from taetpu.data.items.formats import FORMATS, read_items
from taetpu.data.items.item_set import encode_items, pad_prompts, pad_rows, prefix_token
from taetpu.data.tokenizers.characters import ByteConfig, CharConfig

SWAG, ARC = ITEMS["hellaswag"][1][0], ITEMS["arc"][1][0]
BYTES = ByteConfig().train("")


@pytest.fixture
def read(tmp_path):
    """Return a function that writes rows to a file and reads their items."""

    def write(*rows: Any, **options: Any):
        file = tmp_path / "items.jsonl"
        file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return read_items(file, **options)

    return write


@pytest.mark.parametrize("name", ITEMS)
def test_the_format_and_the_kind_of_score_follow_from_the_fields(tmp_path, name) -> None:
    write_items(tmp_path)
    kind, rows = ITEMS[name]
    read = read_items(tmp_path / f"{name}.jsonl")
    assert (read.format, FORMATS[name].kind, [item.row for item in read.items]) == (
        name, kind, [*range(1, len(rows) + 1)],
    )  # fmt: skip


def test_contexts_and_continuations_are_those_of_the_harness(read) -> None:
    marks = {"ctx": "x", "activity_label": "Roof", "ctx_a": "[header] A man [title] climbs.", "ctx_b": "he",
             "endings": ["falls [step] down", "sings"], "label": "1"}  # fmt: skip
    (item,) = read(marks).items
    assert item.pairs == (("Roof: A man. climbs. He", " falls down"), ("Roof: A man. climbs. He", " sings"))
    assert item.label == 1
    (item,) = read(ARC).items
    assert (item.pairs[0], item.label) == (("Question: Who jumps?\nAnswer:", " the fox"), 0)
    (item,) = read({"sentence": "The _ ate", "option1": "cat", "option2": "dog", "answer": "2"}).items
    assert (item.pairs, item.label) == ((("The cat", " ate"), ("The dog", " ate")), 1)
    (item,) = read({"text": "a b\nc d"}).items
    assert item.pairs == (("a b\nc", " d"),)


def test_groups_are_phenomena_or_the_values_of_a_field(read) -> None:
    pairs = [{"sentence_good": "a", "sentence_bad": "b", "linguistics_term": "x", "UID": "y", "field": 3}] * 2
    assert [item.group for item in read(*pairs).items] == ["x", "x"]
    assert read(*pairs, by="UID").items[0].group == "y"
    assert read(*pairs, by="field").items[0].group == "3"
    assert read(SWAG).items[0].group == ""


BAD = {
    "fields of no format": ([{"a": 1}], ("row 1", "'a'", "hellaswag")),
    "no JSON": ([SWAG, "{"], ("row 2",)),
    "no object": (["[1]"], ("row 1", "[1]")),
    "a missing field": ([SWAG, {"ctx": "a", "endings": ["b", "c", "d", "e"]}], ("row 2", "'label'")),
    "a label beyond": ([{**SWAG, "label": 4}], ("row 1", "'label'", "4", "0, 1, 2, 3")),
    "a negative label": ([{**SWAG, "label": -1}], ("row 1", "-1")),
    "a label that is a truth value": ([{**SWAG, "label": True}], ("row 1", "True")),
    "an empty label": ([{**SWAG, "label": ""}], ("row 1", "''")),
    "an answer without choice": ([{**ARC, "answerKey": "D"}], ("row 1", "'D'", "A, B, C")),
    "numbers of endings that differ": ([SWAG, {**SWAG, "endings": ["a", "b"]}], ("row 2", "2 choices", "row 1", "4")),
    "a single choice": ([{**SWAG, "endings": ["a"]}], ("row 1", "'endings'")),
    "an empty choice": ([{**SWAG, "endings": ["a", "[x]", "c", "d"]}], ("row 1", "choice 1", "empty")),
    "a choice that is a number": ([{**SWAG, "endings": ["a", 2, "c", "d"]}], ("row 1", "choice 1", "2")),
    "labels twice": ([{**ARC, "choices": {"text": ["a", "b"], "label": ["A", "A"]}}], ("row 1", "'A', 'A'")),
    "choices as a list": ([{**ARC, "choices": ["a", "b"]}], ("row 1", "'choices'", "label")),
    "equal sentences": ([{"sentence_good": "a b", "sentence_bad": "a b"}], ("row 1",)),
    "equal options": ([{"sentence": "a _ b", "option1": "c", "option2": "c", "answer": "1"}], ("row 1",)),
    "no blank": ([{"sentence": "a b", "option1": "c", "option2": "d", "answer": "1"}], ("row 1", "'_'")),
    "one word": ([{"text": "word"}], ("row 1", "'word'")),
    "half a pair": ([{"text": "a \ud800"}], ("row 1", "\\ud800")),
    "no items": ([""], ("items.jsonl",)),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_row_is_named_with_a_remedy(read, case) -> None:
    rows, parts = BAD[case]
    with pytest.raises(UserError) as caught:
        read(*rows)
    error = caught.value
    assert [part for part in ("items.jsonl", *parts) if part not in f"{error.problem} {error.remedy}"] == []
    assert (error.path, bool(error.remedy)) == (("file",), True)


def test_arc_may_have_different_numbers_of_choices_and_other_kinds_are_named(read) -> None:
    other = {**ARC, "choices": {"text": ["a", "b"], "label": [1, 2]}, "answerKey": 2}
    assert [len(item.pairs) for item in read(ARC, other).items] == [3, 2]
    with pytest.raises(UserError) as caught:
        read(ARC, kind="cloze")
    assert "kind: multiple-choice" in (caught.value.remedy or "")


def encoded(file, tokenizer=BYTES, seq_len: int = 64, special=None, generated: int = 0):
    return encode_items(file, tokenizer, Interface(tokenizer.vocab_size), seq_len, special or {}, generated)


def test_rows_are_padded_sequences_whose_continuations_have_weight(read) -> None:
    items = encoded(read(SWAG))
    rows = [*zip(items.ids, items.starts.tolist(), strict=True)]
    split = pad_rows(rows, 32, BatchSpec(segments=True, lengths=True))
    assert split.tokens.shape == (4, 32)
    for row, (context, end) in enumerate(items.file.items[0].pairs):
        scored = split.weights[row] > 0
        assert bytes(split.targets[row][scored].astype(np.uint8)) == end.encode()
        assert split.lengths[row] == len(context + end) - 1
        assert bytes(split.tokens[row, : split.lengths[row]].astype(np.uint8)) == (context + end)[:-1].encode()
    assert not split.segments.any()
    assert items.num_tokens.tolist() == [len(end) for _, end in items.file.items[0].pairs]


def test_a_text_without_context_follows_the_first_special_token_or_is_scored_uniformly(read) -> None:
    pair = read({"sentence_good": "ab", "sentence_bad": "cd"})
    alone = encoded(pair)
    assert alone.starts.tolist() == [0, 0]
    scores = alone.row_scores(np.zeros(2), np.array([2.0, 2.0]))
    assert scores.logp == pytest.approx([-np.log(256)] * 2)
    assert not scores.greedy.any()
    after = encoded(pair, special={"eos_token_id": [7, 8]})
    assert (after.ids[0].tolist(), after.starts.tolist()) == ([7, *b" ab"], [1, 1])
    assert (prefix_token({"bos_token_id": 5, "eos_token_id": 7}, 256), prefix_token({"bos_token_id": 300}, 256)) == (
        5,
        None,
    )


def test_items_that_are_too_long_or_unknown_are_refused(read) -> None:
    file = read(ITEMS["lambada"][1][0], {"text": "x" * 40 + " y"})
    assert len(encoded(file, seq_len=41)) == 2
    for options, parts in [
        ({"seq_len": 40}, ("row 2", "42", "40")),
        ({"seq_len": 50, "generated": 11}, ("row 2", "11")),
    ]:
        with pytest.raises(UserError) as caught:
            encoded(file, **options)
        assert all(part in caught.value.problem for part in parts)
        assert "task.seq_len" in (caught.value.remedy or "")
    letters = "the quick brown fox"
    with pytest.warns(DataWarning, match="1 of the 2 items .*'y' in row 2"):
        encoded(file, tokenizer=CharConfig().train(letters))
    with pytest.raises(UserError) as caught:
        encoded(file, tokenizer=CharConfig(unseen="error").train(letters))
    assert "row 2" in caught.value.problem


def test_prompts_have_room_for_their_answers() -> None:
    tokens, lengths = pad_prompts([np.array([1, 2, 3]), np.array([4])], 2)
    assert (tokens.tolist(), lengths.tolist()) == ([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]], [3, 1])
