"""What the backward pass computes a second time, it computes alike."""

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
SMALL = {"dim": 8, "num_layers": 2, "mixer": "none", "ffn": "relu"}
LARGER = {"dim": 8, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}, "dropout": 0.5}


def losses(model, remat, key=None):
    """A loss with what is seen at sites while one of them is edited, and its gradient."""
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


def test_gradients_and_sites_are_the_same(draw):
    assert_the_same(draw(SMALL, seq=16), "full")


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["full", "dots"])
def test_so_is_the_noise_of_layers_that_differ(draw, remat):
    assert_the_same(draw(LARGER | {"layers": {0: {"ffn": "relu"}}}, seq=16), remat, root_key(2))


@pytest.mark.slow
def test_what_is_not_kept_takes_no_memory(draw):
    model = draw({"dim": 32, "num_layers": 6}, seq=16)

    def cost(remat):
        arrays, rest = eqx.partition(ComputeOptions(remat=remat).apply(model), eqx.is_inexact_array)
        loss = jax.grad(lambda a: eqx.combine(a, rest)(TOKENS).sum())
        program = jax.jit(loss).lower(arrays).compile()
        products = str(jax.make_jaxpr(loss)(arrays)).count("dot_general")
        return program.memory_analysis().temp_size_in_bytes, products

    (none, once), (dots, some), (full, all_) = map(cost, ("none", "dots", "full"))
    assert full < dots < none
    assert full < none / 2
    assert once < some < all_
