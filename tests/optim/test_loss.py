"""The loss equals torch's cross entropy with weights, also for large logits and in chunks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tests.suites import first_by_default

from taetpu.core.jit import jit_once
from taetpu.core.sites import capture
from taetpu.data.base import Batch
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.compute_options import ComputeOptions
from taetpu.optim.loss import predict, sum_losses
from taetpu.train.matmul_count import inner_jaxprs

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((2, 5, 7)).astype(np.float32) * 3
TARGETS = jnp.asarray(RNG.integers(0, 7, (2, 5)), jnp.int32)
WEIGHTS = jnp.array([[1, 1, 0, 0.5, 1], [0, 0, 2, 1, 1]], jnp.float32)


def theirs(logits):
    losses = torch.nn.functional.cross_entropy(
        logits.reshape(-1, 7), torch.tensor(np.array(TARGETS), dtype=torch.long).reshape(-1), reduction="none"
    )
    return (losses * torch.tensor(np.array(WEIGHTS)).reshape(-1)).sum()


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_values_equal_torchs_and_do_not_depend_on_a_shift_of_all_logits(shift):
    sums = sum_losses(jnp.asarray(LOGITS + np.float32(shift)), TARGETS, WEIGHTS)
    np.testing.assert_allclose(sums["nll"], theirs(torch.tensor(LOGITS + np.float32(shift))).numpy(), rtol=1e-5)
    assert sums["weight"] == WEIGHTS.sum()
    assert sums["correct"] == ((LOGITS.argmax(-1) == TARGETS) * WEIGHTS).sum()


def test_gradients_equal_torchs():
    logits = torch.tensor(LOGITS, requires_grad=True)
    theirs(logits).backward()
    ours = jax.grad(lambda x: sum_losses(x, TARGETS, WEIGHTS)["nll"])(jnp.asarray(LOGITS))
    assert logits.grad is not None
    np.testing.assert_allclose(ours, logits.grad.numpy(), atol=1e-5)
    assert not np.asarray(ours)[WEIGHTS == 0].any()


def test_gradient_of_the_loss_scatters_nothing():
    """A scatter into an array of the logits' size would be stored beside the logits."""

    def loss(x):
        return sum_losses(x, TARGETS, WEIGHTS)["nll"]

    assert "scatter" not in str(jax.make_jaxpr(jax.grad(loss))(jnp.asarray(LOGITS)))


@pytest.mark.parametrize(
    ("row", "hits"),
    [([2, 2, 2, 2], [1 / 4] * 4), ([1, 3, 3, 0], [0, 1 / 2, 1 / 2, 0]), ([-1, -2, -2, -2], [1, 0, 0, 0])],
)
def test_tied_logits_share_a_correct_prediction(row, hits):
    """The hits of all possible targets sum to one prediction."""
    logits = jnp.tile(jnp.array(row, jnp.float32), (1, 1, 1))
    correct = [sum_losses(logits, jnp.full((1, 1), t), jnp.ones((1, 1)))["correct"] for t in range(4)]
    np.testing.assert_allclose(correct, hits, rtol=1e-6)


def test_nan_is_never_correct():
    sums = sum_losses(jnp.full((2, 5, 7), jnp.nan), TARGETS, WEIGHTS)
    assert np.isnan(sums["nll"])
    assert sums["correct"] == 0


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(1)
    tokens, targets = (jnp.asarray(rng.integers(0, VOCAB, (3, SEQ)), jnp.int32) for _ in range(2))
    return Batch(tokens, targets, jnp.asarray(rng.integers(0, 3, (3, SEQ)), jnp.float32))


VOCAB, SEQ = 50, 10  # no other axis has the size of the vocabulary
SETTINGS = {"dim": 8, "num_layers": 1, "mixer": "none", "ffn": "relu"}


def summed(model, batch, **how):
    params, rest = partition_trainable(model)

    def loss(params):
        sums = {name: v.sum(-1) for name, v in predict(combine_trainable(params, rest), batch, **how)[1].items()}
        return sums["nll"].sum() / sums["weight"].sum(), sums

    return jax.value_and_grad(loss, has_aux=True), params


def shapes(jaxpr):
    """Yield the shapes of all values in a jaxpr and in its inner jaxprs."""
    for eqn in jaxpr.eqns:
        yield from (v.aval.shape for v in eqn.outvars)
        for part in inner_jaxprs(eqn.params):
            yield from shapes(part)


@pytest.mark.parametrize(
    ("embedding", "tokens"),
    first_by_default([("tied", 12), ("untied", 3)]),  # chunks of 4, 4 and 2 positions, and of 1 position
)
def test_chunked_losses_equal_whole_losses(draw, batch, embedding, tokens):
    """This includes gradients and hits. No array contains the logits of all positions."""
    model = draw({**SETTINGS, "embedding": embedding}, vocab=VOCAB, seq=SEQ)
    chunked = ComputeOptions(loss_chunk=tokens).apply(model)
    ways = [summed(model, batch), summed(chunked, batch)]
    for (fn, params), whole in zip(ways, (True, False), strict=True):
        logits = [math.prod(s) for s in shapes(jax.make_jaxpr(fn)(params).jaxpr) if VOCAB in s and 8 not in s]
        assert (max(logits) >= 3 * SEQ * VOCAB) == whole
        assert whole or max(logits) <= max(tokens, 3) * VOCAB
    expected, found = (jax.tree.leaves(jit_once(fn)(params)) for fn, params in ways)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_requested_logits_disable_chunking(draw, batch):
    model = draw(SETTINGS, vocab=VOCAB, seq=SEQ)
    chunked = ComputeOptions(loss_chunk=4).apply(model)

    def logits(model, **how):
        return jax.eval_shape(lambda: predict(model, batch, **how)[0])

    assert logits(chunked) is None
    assert logits(chunked, whole=True).shape == (3, SEQ, VOCAB)
    assert logits(ComputeOptions(loss_chunk=30).apply(model)).shape == (3, SEQ, VOCAB)  # all in one chunk
    (given, _), reads = jax.eval_shape(capture(lambda: predict(chunked, batch), ["logits"]))
    assert given.shape == reads["logits"].shape == (3, SEQ, VOCAB)
