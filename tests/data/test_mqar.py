"""Multi-query associative recall: the generator against its definition, and what a model needs to learn it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import taetpu
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.data.synthetic import attention_free_bound

SYMBOLS, PAIRS, SEQ, COUNT = 16, 3, 20, 20_000
GAPS = (SEQ - 2 * PAIRS) // 2


def prepared(**fields):
    config = {"kind": "mqar", "seq_len": SEQ, "symbols": SYMBOLS, "pairs": PAIRS, "eval_size": 16, **fields}
    return build_component("task", config).prepare(None)  # pyright: ignore


@pytest.fixture(scope="module")
def drawn():
    batch = jit_once(prepared().batch)({}, jnp.zeros(COUNT, jnp.int32), jax.random.key(0))
    return tuple(np.asarray(part) for part in batch[:3])


def test_each_query_is_answered_by_the_value_of_its_key(drawn):
    for tokens, targets, weights in zip(*(part[:500] for part in drawn), strict=True):
        keys, values = tokens[: 2 * PAIRS : 2], tokens[1 : 2 * PAIRS : 2]
        assert len(set(keys)) == len(set(values)) == PAIRS  # no repeats
        assert (keys >= 1).all()
        assert (keys < SYMBOLS // 2).all()
        assert (values >= SYMBOLS // 2).all()
        value_of = dict(zip(keys, values, strict=True))
        queries = np.flatnonzero(weights)
        assert sorted(tokens[queries]) == sorted(keys)  # each key once
        assert all(targets[i] == value_of[tokens[i]] for i in queries)
        assert ((queries >= 2 * PAIRS) & (queries % 2 == 0)).all()
        assert set(np.flatnonzero(tokens)) == {*range(2 * PAIRS), *queries}  # all other tokens are 0


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_gaps_follow_the_power_law(power, drawn):
    if power == 1.0:
        batch = jit_once(prepared(power=1.0).batch)({}, jnp.zeros(COUNT, jnp.int32), jax.random.key(0))
        drawn = tuple(np.asarray(part) for part in batch[:3])
    tokens = drawn[0]
    first = (tokens[:, 2 * PAIRS :] == tokens[:, :1]).argmax(1) // 2  # of the first key, which is drawn first
    expected = np.arange(1, GAPS + 1) ** (power - 1.0)
    found = np.bincount(first, minlength=GAPS) / COUNT
    np.testing.assert_allclose(found, expected / expected.sum(), atol=0.015)  # four standard errors


def test_the_score_without_attention_equals_counts(drawn):
    tokens, targets, weights = drawn
    scored = weights > 0
    joint = np.zeros((SEQ, SYMBOLS, SYMBOLS))
    place = np.broadcast_to(np.arange(SEQ), scored.shape)[scored]
    np.add.at(joint, (place, tokens[scored], targets[scored]), 1)
    loss, accuracy = attention_free_bound.score_best_policy(joint)
    assert prepared().facts["decoy_loss"] == pytest.approx(loss, abs=0.03)
    assert prepared().facts["decoy_accuracy"] == pytest.approx(accuracy, abs=0.04)


def test_the_place_of_a_query_says_something_about_its_value():
    task = prepared(seq_len=24, symbols=32, pairs=4)  # that of studies/known/mqar.yaml
    tokens, _, weights = jit_once(task.batch)({}, jnp.zeros(COUNT, jnp.int32), jax.random.key(0))[:3]
    sequences, places = np.nonzero(weights)
    pairs = (np.asarray(tokens)[sequences, :8:2] == np.asarray(tokens)[sequences, places, None]).argmax(1)
    counts = np.zeros((24, 4))
    np.add.at(counts, (places, pairs), 1)
    share = counts.max(1).sum() / counts.sum()  # of queries that are right with the likeliest pair of their place
    assert share == pytest.approx(0.323, abs=0.004)  # docs/tasks.md; four standard errors


def test_longer_sequences_have_the_same_pairs_and_larger_gaps():
    longer = prepared(eval_lengths=(40,)).evaluation("val@40")
    assert longer.tokens.shape == (16, 40)
    assert (longer.weights.sum(1) == PAIRS).all()


@pytest.mark.parametrize(("fields", "most"), [({"pairs": 6}, 5), ({"pairs": 8, "symbols": 64}, 5), ({"symbols": 6}, 2)])
def test_too_many_pairs_are_refused(fields, most):
    with pytest.raises(UserError, match="pairs do not") as caught:
        prepared(**fields)
    assert caught.value.remedy == f"Use at most {most}."


STUDY = """\
study: mqar
base:
  task: {kind: mqar, seq_len: 16, symbols: 16, pairs: 3, eval_size: 256}
  model:
    {dim: 32, num_layers: 2, ffn: none, position: learned, init: fan-in, mixer: {kind: attention, num_heads: 1}}
  train: {steps: 1500, batch_size: 64, optimizer: {kind: adamw, lr: 3e-3}, sample: none, eval_metrics: [exact_match]}
seeds: 1
arms:
  no-attention: {model.mixer: none, model.ffn: swiglu}
measure: {primary: val/exact_match}
"""


@pytest.mark.nightly
def test_attention_learns_to_recall_and_a_model_without_attention_guesses(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    outcome = taetpu.run(tmp_path / "study.yaml", root=str(tmp_path / "root"))
    attention, without = (arm["metrics"] for arm in outcome.results["arms"])
    assert attention["val/exact_match"] > 0.9
    assert attention["val/accuracy"] > 0.95
    assert without["val/accuracy"] == pytest.approx(1 / 8, abs=0.06)
    assert without["val/loss"] > np.log(8) - 0.05
