"""Scores of items follow from the log-probabilities of their choices."""

import json

import numpy as np
import pytest
from tests.lens.item_files import ITEMS

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.data.items.formats import read_items
from taetpu.data.items.item_set import RowScores, encode_items
from taetpu.data.tokenizers.characters import ByteConfig


@pytest.fixture
def load(tmp_path):
    """Return a function that writes rows, and returns the score of a kind and the items."""

    def make(kind: str, rows: list, **settings):
        (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        score = build_component("eval_metric", {"kind": kind, "file": "x.jsonl", **settings})
        file = read_items(tmp_path / "x.jsonl", kind)
        return score, encode_items(file, ByteConfig().train(""), Interface(256), 99, {}, score.generated)

    return make


def rows(logp, greedy=()):
    return RowScores(np.array(logp, float), np.array(greedy or [False] * len(logp)))


def test_choices_are_compared_whole_by_character_by_byte_and_by_token(load) -> None:
    row = {"ctx": "c", "endings": ["éé", "abc", "a"], "label": 0}
    score, items = load("multiple-choice", [row])
    found = score.score_rows(items, rows([-8.0, -9.9, -4.5]))
    # by character -4, -3.3, -4.5; by byte -2, -3.3, -4.5; by token with the space -8/5, -9.9/4, -4.5/2
    assert {name: value[0] for name, value in found.items()} == {
        "acc": 0, "acc_norm": 0, "acc_bytes": 1, "acc_token": 1, "nll": 8.0,
    }  # fmt: skip
    assert score.chance(items) == pytest.approx(1 / 3)


def test_choices_with_equal_scores_share_the_point_and_nan_is_no_answer(load) -> None:
    score, items = load("minimal-pairs", [{"sentence_good": "a", "sentence_bad": "b"}] * 4)
    found = score.score_rows(items, rows([-1, -2, -2, -1, -1, -1, np.nan, -1]))
    assert found["acc"][:3].tolist() == [1, 0, 0.5]
    assert np.isnan(found["acc"][3])
    assert found["margin"][:3].tolist() == [1, -1, 0]


def test_items_with_fewer_choices_are_not_answered_with_others(load) -> None:
    fewer = {"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}
    score, items = load("multiple-choice", [ITEMS["arc"][1][0], fewer])
    found = score.score_rows(items, rows([-1, -2, -3, -5, -4]))
    assert (found["acc"].tolist(), found["nll"].tolist()) == ([1, 1], [1, 4])
    assert score.chance(items) == pytest.approx((1 / 3 + 1 / 2) / 2)


def test_perplexity_is_that_of_the_mean_over_words(load) -> None:
    score, items = load("last-word", ITEMS["lambada"][1])
    values = score.score_rows(items, rows([-1.0, -2.0, -6.0], [True, False, True]))
    totals = score.totals(values)
    assert totals == pytest.approx({"acc": 2 / 3, "nll": 3.0, "perplexity": np.exp(3.0)})
    assert score.totals({"acc": np.ones(1), "nll": np.array([1e4])})["perplexity"] < np.inf
    assert (score.item_metrics["nll"].mean_of, score.item_metrics["perplexity"].mean_of) == (("nll", "weight"), ())


def test_generated_texts_end_at_the_first_stop(load) -> None:
    score, items = load("generation", ITEMS["prompts"][1], stop=[".", "#"])
    texts = [" fox jumps over the lazy dog # x.", "fox dog."]
    assert score.score_texts(items, texts)["exact_match"].tolist() == [1, 0]
    assert build_component("eval_metric", {"kind": "generation", "file": "x"}).cut("a\nb") == "a"


@pytest.mark.parametrize("every", [0, -3])
def test_an_interval_below_one_step_is_refused(every) -> None:
    with pytest.raises(UserError) as caught:
        build_component("eval_metric", {"kind": "cloze", "file": "x", "every": every})
    assert caught.value.path[-1] == "every"
