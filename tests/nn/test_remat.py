"""Rematerialisation changes neither gradients nor dropout nor sites, and saves memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import Edit, capture
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.compute_options import ComputeOptions

TOKENS = jax.random.randint(root_key(1), (4, 16), 0, 7)
SITES = ("ffn.out", "residual")
HALF = (Edit("ffn.hidden", lambda x, value: x * value, layer=1, value="half"),)
SMALL = {"dim": 8, "num_layers": 2, "mixer": "none", "ffn": "relu", "dropout": 0.5}
LARGER = {"dim": 8, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}, "ffn": "relu", "dropout": 0.5}


def losses(model, remat, key=None):
    """Return a loss and the values at sites while one of them is edited, and the loss's gradient."""
    arrays, rest = partition_trainable(ComputeOptions(remat=remat).apply(model))

    def loss(arrays):
        looked_at = capture(lambda m: m(TOKENS, key=key), SITES, HALF)
        logits, reads = looked_at(combine_trainable(arrays, rest), values={"half": jnp.float32(0.5)})
        return jax.nn.log_softmax(logits)[..., 0].sum(), reads

    return jit_once(jax.value_and_grad(loss, has_aux=True))(arrays)


def assert_the_same(model, remat, key=None):
    (expected, seen), wanted = losses(model, "none", key)
    (loss, reads), gradients = losses(model, remat, key)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert reads.keys() == seen.keys() == set(SITES)
    for name, value in reads.items():
        assert value.shape[0] == 2  # layers
        np.testing.assert_allclose(value, seen[name], atol=1e-6)
    for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6 * float(np.abs(theirs).max()))


@pytest.mark.slow
def test_full_remat_gives_the_same_gradients_dropout_and_sites(draw):
    assert_the_same(draw(SMALL, seq=16), "full", root_key(2))


@pytest.mark.slow
def test_remat_of_dots_gives_the_same_gradients_dropout_and_sites(draw):
    assert_the_same(draw(LARGER, seq=16), "dots", root_key(2))


@pytest.mark.slow
def test_remat_recomputes_products_and_saves_memory(draw):
    model = draw({"dim": 16, "num_layers": 9, "mixer": "none"}, seq=16)

    def gradient(remat):
        arrays, rest = eqx.partition(ComputeOptions(remat=remat).apply(model), eqx.is_inexact_array)
        return jax.grad(lambda a: eqx.combine(a, rest)(TOKENS).sum()), arrays

    def products(remat):
        loss, arrays = gradient(remat)
        return str(jax.make_jaxpr(loss)(arrays)).count("dot_general")

    def memory(remat):
        loss, arrays = gradient(remat)
        return jit_once(loss).lower(arrays).compile().memory_analysis().temp_size_in_bytes

    assert products("none") <= products("dots") < products("full")
    assert memory("full") < memory("none") / 2
