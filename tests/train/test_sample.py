"""Sampling follows the distribution of its settings."""

import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.train.sample import continue_tokens, draw

LOGITS = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))


def frequencies(**settings):
    drawn = draw(jnp.tile(LOGITS, (4000, 1)), root_key(0), **settings)
    return np.bincount(np.asarray(drawn), minlength=4) / 4000


def test_plain_sampling_follows_the_distribution():
    np.testing.assert_allclose(frequencies(), [0.5, 0.3, 0.15, 0.05], atol=0.03)


def test_low_temperature_sharpens_and_zero_selects_the_most_likely():
    np.testing.assert_allclose(frequencies(temperature=0.5), np.array([0.25, 0.09, 0.0225, 0.0025]) / 0.365, atol=0.03)
    assert frequencies(temperature=0).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("settings", [{"top_k": 2}, {"top_p": 0.6}, {"top_k": 3, "top_p": 0.8}])
def test_top_k_and_nucleus_keep_the_two_likeliest_in_proportion(settings):
    np.testing.assert_allclose(frequencies(**settings), [0.625, 0.375, 0, 0], atol=0.03)


def test_nucleus_keeps_at_least_one():
    assert frequencies(top_p=0.01).tolist() == [1, 0, 0, 0]


def test_greedy_continuation_agrees_with_separate_forward_passes(draw):
    model = draw({"dim": 16, "num_layers": 1, "position": "learned"}, vocab=9, seq=8)
    prompt = [1, 2, 3]
    out = continue_tokens(model, jnp.array(prompt), root_key(0), length=9, window=8, temperature=0)
    expected = list(prompt)
    forward = jit_once(lambda m, x: m(x))
    for _ in range(9):  # beyond 8 tokens, the model sees the last 8 only
        seen = expected[-8:]
        padded = jnp.array([seen + [0] * (8 - len(seen))])
        expected.append(int(forward(model, padded)[0, len(seen) - 1].argmax()))
    assert out.tolist() == expected
