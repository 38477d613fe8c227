"""Scores of heads: a hand-made induction circuit scores 1, a head that attends equally scores as stated."""

import json
from dataclasses import replace

import numpy as np
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.lens.attribution import attribution
from taetpu.lens.head_scores import KINDS, head_scores, score_pattern
from taetpu.nn.lm import ModelConfig


def test_a_hand_made_induction_circuit_is_found(made):
    scores = head_scores(made)
    assert (scores.length, scores.sequences) == (16, 10)
    assert scores.best("induction")[:2] == (1, 1)
    # Position 0 has no token before and copies itself, so the first of the 16 queries attends to two keys.
    assert scores.scores["induction"][1][1] == pytest.approx(1 - 0.5 / 16, abs=1e-3)
    assert scores.best("previous-token")[:2] == (0, 0)
    assert scores.scores["previous-token"][0][0] > 0.95
    for kind in KINDS:
        for layer, head in ((0, 1), (1, 0)):
            assert scores.scores[kind][layer][head] == pytest.approx(scores.uniform[kind], abs=1e-6)
    assert scores.scores["duplicate-token"][1][1] == pytest.approx(0.5 / 16, abs=1e-3)


@pytest.mark.slow
def test_the_logits_come_from_the_induction_head(made):
    text = "the fox. the f"
    (found,) = attribution(made, text)
    at = text.index("h", 5)
    own = {row["part"]: row["contribution"] for row in found.rows(at)[:-1]}
    assert found.target_texts[at] == "e"
    assert own["1.mixer"] == pytest.approx(found.logits[at], abs=1e-3)
    assert found.heads[1][1, at] == pytest.approx(5, abs=0.01)


def test_an_untrained_model_scores_as_attention_to_all_tokens(opened, draw):
    settings = {"dim": 16, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2, "scale": 1e-6}}
    config = load_config(ModelConfig, settings).resolve()
    other = replace(opened, model=draw(settings, vocab=29, seq=32), config=config, _programs={})
    scores = head_scores(other, length=8, sequences=3)
    for kind in KINDS:
        np.testing.assert_allclose(scores.scores[kind][0], scores.uniform[kind], atol=1e-5)
        np.testing.assert_allclose(scores.errors[kind][0], 0, atol=1e-5)
    harmonic = np.mean([1 / (i + 1) for i in range(1, 16)])
    assert scores.uniform["previous-token"] == pytest.approx(harmonic)


def test_scores_are_the_stated_means():
    n = 5
    pattern = np.random.default_rng(0).random((2, 2 * n, 2 * n))
    scores = score_pattern(pattern, n)
    late = range(n, 2 * n)
    np.testing.assert_allclose(scores["induction"], np.mean([pattern[:, i, i - n + 1] for i in late], 0))
    np.testing.assert_allclose(scores["duplicate-token"], np.mean([pattern[:, i, i - n] for i in late], 0))
    np.testing.assert_allclose(scores["previous-token"], np.mean([pattern[:, i, i - 1] for i in range(1, 2 * n)], 0))


def test_seeds_and_padding(opened):
    one, same, other = (head_scores(opened, length=5, seed=seed) for seed in (0, 0, 1))
    assert one.rows() == same.rows() != other.rows()
    assert np.isnan(head_scores(opened, length=4, sequences=1).errors["induction"][0]).all()


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"length": 30}, "30 different tokens .* vocabulary of 29", "from 2 to 29"),
        ({"length": 1}, "1 different tokens", "from 2 to 29"),
        ({"sequences": 0}, "0 sequences were requested", "at least 1"),
    ],
)
def test_invalid_requests_are_refused(opened, options, problem, remedy):
    with pytest.raises(UserError, match=problem) as caught:
        head_scores(opened, **options)
    assert remedy in str(caught.value.remedy)


def test_sequences_longer_than_learned_positions_are_refused(made):
    with pytest.raises(UserError, match=r"'learned' positions .* 32 tokens .* 34"):
        head_scores(made, length=17)


@pytest.mark.slow
def test_the_picture_has_a_cell_for_each_head(made):
    scores = head_scores(made, length=6)
    pictures = scores.chart().to_dict()["hconcat"]
    assert [one["title"]["text"] for one in pictures] == [*KINDS]
    for kind, picture in zip(KINDS, pictures, strict=True):
        for cell in picture["data"]["values"]:
            assert cell["value"] == pytest.approx(float(scores.scores[kind][cell["layer"]][cell["head"]]))


@pytest.mark.slow
def test_the_command(lens, opened, tmp_path):
    text = lens("scores", "small/baseline/0", "--length", "6", "-o", str(tmp_path / "a.svg"))
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<svg")
    scores = head_scores(opened, length=6)
    assert f"{scores.rows()[0]['induction']:.3f}" in text
    data = json.loads(lens("scores", "small/baseline/0", "--length", "6", "--json"))
    assert data["heads"][2]["induction"] == pytest.approx(scores.rows()[2]["induction"])
    assert data["uniform"]["induction"] == pytest.approx(scores.uniform["induction"])
