"""The estimated curvature has the Gauss-Newton diagonal as its mean, however the batch is divided."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.keys import root_key
from taetpu.data.base import Batch
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.train.curvature import draw_targets, estimate_curvature
from taetpu.train.sharding import WHOLE

MODEL = {"dim": 4, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}, "ffn": "relu"}
VOCAB, SEQ, BATCH, DRAWS = 3, 2, 4, 4000


@pytest.fixture(scope="module")
def parts():
    """The trainable and the other part of a model with clear preferences, and a batch without its last position."""
    model = build_model(load_config(ModelConfig, MODEL).resolve(), VOCAB, SEQ, key=root_key(0))
    params, rest = partition_trainable(model)
    tokens = jnp.asarray(np.random.default_rng(0).integers(VOCAB, size=(BATCH, SEQ)))
    weights = jnp.ones((BATCH, SEQ)).at[-1, -1].set(0.0)
    return jax.tree.map(lambda a: 2 * a, params), rest, Batch(tokens, tokens, weights)


def estimates(parts, keys, accumulate=1):
    def one(key):
        found = estimate_curvature(*parts, key, accumulate=accumulate, dtype=jnp.float32, division=WHOLE)
        return jax.flatten_util.ravel_pytree(found)[0]

    return np.asarray(jax.jit(jax.vmap(one))(keys))


def keys(number):
    return jax.random.split(root_key(1), number)


@pytest.mark.slow
def test_the_mean_of_estimates_is_the_gauss_newton_diagonal(parts):
    """The diagonal is the mean over positions of the expected squared gradient, over all targets of each position."""
    params, rest, batch = parts
    flat, back = jax.flatten_util.ravel_pytree(params)
    logs = lambda flat: jax.nn.log_softmax(combine_trainable(back(flat), rest)(batch.tokens), -1)  # noqa: E731
    gradients = np.asarray(jax.jacrev(logs)(flat))  # (batch, seq, target, parameter)
    chances = np.exp(np.asarray(logs(flat))) * np.asarray(batch.weights)[..., None]
    expected = np.einsum("bst,bstp->p", chances, gradients**2) / float(batch.weights.sum())

    found = estimates(parts, keys(DRAWS))
    error = found.std(0) / np.sqrt(DRAWS)
    assert (expected > 0).sum() > 50
    assert (np.abs(found.mean(0) - expected) <= 5 * error + 1e-7).all()
    # The bound is sharp enough to reject a factor of 1.5 for most parameters.
    assert (np.abs(found.mean(0) - 1.5 * expected)[expected > 1e-4] > 5 * error[expected > 1e-4]).mean() > 0.5


@pytest.mark.slow
def test_microbatches_give_the_same_estimate(parts):
    np.testing.assert_allclose(estimates(parts, keys(3), accumulate=2), estimates(parts, keys(3)), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_targets_are_drawn_from_the_predictions():
    logits = jnp.log(jnp.array([0.5, 0.2, 0.3]))
    uniform = (jnp.arange(1000) + 0.5) / 1000
    found = draw_targets(jnp.broadcast_to(logits, (1, 1000, 3)), uniform[None])
    assert np.bincount(np.asarray(found)[0]).tolist() == [500, 200, 300]
    assert int(draw_targets(logits[None, None] - 9, jnp.ones((1, 1)))[0, 0]) == 2  # rounding yields no further target


@pytest.mark.slow
def test_packs_microbatches_and_devices_agree(trainer, make, text):
    """With `frequency: 1`, each step depends on an estimate, from the second one on."""
    task, source = text
    optimizer = {"kind": "sophia", "lr": 0.01, "frequency": 1}
    configs = [make(task, optimizer={**optimizer, "gamma": gamma}) for gamma in (0.01, 1.0)]
    packed = trainer(configs, source, seeds=[4, 4]).advance(4)
    assert packed["train/loss"][0, 3] != packed["train/loss"][1, 3]
    parts = make(task, optimizer={**optimizer, "gamma": 1.0}, accumulate=2)
    others = [trainer([configs[1]], source, seeds=[4]), trainer([configs[1]], source, seeds=[4], devices=2)]
    for other in (*others, trainer([parts], source, seeds=[4])):
        np.testing.assert_allclose(packed["train/loss"][1], other.advance(4)["train/loss"][0], rtol=2e-4)
