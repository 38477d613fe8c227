"""Dropped heads, branches and layers equal models without them, and share one program with the full model."""

import jax
import numpy as np
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.nn.lm import ModelConfig
from taetpu.nn.named_arrays import named_parameters, with_parameters

TOKENS = jax.random.randint(root_key(1), (2, 8), 0, 7)
HEADS = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2}
BASE = {"dim": 16, "num_layers": 2, "mixer": HEADS, "ffn": "relu"}


@jit_once
def forward(model):
    return model(TOKENS)


def test_a_dropped_head_equals_zeroed_rows_of_the_output_projection(draw):
    dropped = draw(BASE | {"layers": {1: {"mixer": HEADS | {"drop_heads": [0, 2]}}}})
    whole = draw(BASE)
    parameters = dict(named_parameters(whole))
    wo = np.array(parameters["layers.1.mixer.wo"])
    wo.reshape(4, 4, 16)[[0, 2]] = 0.0
    operated = with_parameters(whole, parameters | {"layers.1.mixer.wo": wo})
    np.testing.assert_allclose(forward(dropped), forward(operated), atol=1e-6)
    assert np.abs(forward(dropped) - forward(whole)).max() > 1e-2


@pytest.mark.parametrize("part", ["mixer", "ffn"])
def test_a_dropped_branch_equals_no_branch(draw, part):
    dropped = draw(BASE | {"layers": {0: {"drop": [part]}}})
    absent = draw(BASE | {"layers": {0: {part: "none"}}})
    np.testing.assert_allclose(forward(dropped), forward(absent), atol=1e-6)


@pytest.mark.slow
def test_a_dropped_layer_is_skipped(draw):
    """With post-norm, a layer whose branches are both off would still normalise."""
    settings = BASE | {"norm": {"kind": "layer", "placement": "post"}, "residual": "none"}
    dropped = draw(settings | {"layers": {1: {"drop": ["layer"]}}})
    shallow = draw(settings | {"num_layers": 1})
    np.testing.assert_allclose(forward(dropped), forward(shallow), atol=1e-6)


@pytest.mark.slow
def test_dropped_parts_have_no_gradient(draw):
    settings = {"layers": {0: {"drop": ["ffn"]}, 1: {"mixer": HEADS | {"drop_heads": [1]}}}}
    grads = named_parameters(jit_once(jax.grad(lambda m: m(TOKENS)[..., 0].sum()))(draw(BASE | settings)))
    assert not grads["layers.0.ffn.up"].any()
    assert not grads["layers.1.mixer.wq"].reshape(16, 4, 4)[:, 1].any()
    assert grads["layers.0.mixer.wo"].all()
    assert grads["layers.1.mixer.wq"].reshape(16, 4, 4)[:, 0].any()


def test_masked_and_unmasked_models_share_a_program(draw):
    plain = load_config(ModelConfig, BASE).resolve()
    masked = load_config(
        ModelConfig, BASE | {"layers": {1: {"drop": ["mixer"], "mixer": HEADS | {"drop_heads": [3]}}}}
    ).resolve()
    live = promoted_fields(plain) | promoted_fields(masked)
    (structure, numbers), (other, others) = split(plain, live), split(masked, live)
    assert structure == other
    whole = draw(BASE)

    @jit_once
    def logits(numbers, parameters):
        return with_parameters(bind(structure, numbers).build(7, 8, key=root_key(0)), parameters)(TOKENS)

    np.testing.assert_allclose(logits(numbers, named_parameters(whole)), forward(whole), atol=1e-5)
    assert np.abs(logits(numbers, named_parameters(whole)) - logits(others, named_parameters(whole))).max() > 1e-2
    assert logits._cache_size() == 1
