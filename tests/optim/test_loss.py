"""The loss is torch's cross entropy, weighted, and survives large logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from taetpu.optim.loss import by_sequence, totals

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
def test_values_are_torchs_whatever_is_added_to_all_logits(shift):
    sums = totals(jnp.asarray(LOGITS + np.float32(shift)), TARGETS, WEIGHTS)
    np.testing.assert_allclose(sums["nll"], theirs(torch.tensor(LOGITS + np.float32(shift))).numpy(), rtol=1e-5)
    assert sums["weight"] == WEIGHTS.sum()
    assert sums["correct"] == ((LOGITS.argmax(-1) == TARGETS) * WEIGHTS).sum()


def test_gradients_are_torchs():
    logits = torch.tensor(LOGITS, requires_grad=True)
    theirs(logits).backward()
    ours = jax.grad(lambda x: totals(x, TARGETS, WEIGHTS)["nll"])(jnp.asarray(LOGITS))
    assert logits.grad is not None
    np.testing.assert_allclose(ours, logits.grad.numpy(), atol=1e-5)
    assert not np.asarray(ours)[WEIGHTS == 0].any()


@pytest.mark.parametrize(
    ("row", "hits"),
    [([2, 2, 2, 2], [1 / 4] * 4), ([1, 3, 3, 0], [0, 1 / 2, 1 / 2, 0]), ([-1, -2, -2, -2], [1, 0, 0, 0])],
)
def test_logits_that_share_the_top_share_the_hit(row, hits):
    """Each target in turn: together they are worth one prediction."""
    logits = jnp.tile(jnp.array(row, jnp.float32), (1, 1, 1))
    correct = [totals(logits, jnp.full((1, 1), t), jnp.ones((1, 1)))["correct"] for t in range(4)]
    np.testing.assert_allclose(correct, hits, rtol=1e-6)


def test_nan_is_never_correct():
    sums = totals(jnp.full((2, 5, 7), jnp.nan), TARGETS, WEIGHTS)
    assert np.isnan(sums["nll"])
    assert sums["correct"] == 0


def test_sums_of_sequences_are_the_batchs_in_parts():
    sums, whole = by_sequence(jnp.asarray(LOGITS), TARGETS, WEIGHTS), totals(jnp.asarray(LOGITS), TARGETS, WEIGHTS)
    for name, values in sums.items():
        assert values.shape == (2,)
        np.testing.assert_allclose(values.sum(), whole[name], rtol=1e-6)
    alone = totals(jnp.asarray(LOGITS[:1]), TARGETS[:1], WEIGHTS[:1])
    np.testing.assert_allclose(sums["nll"][0], alone["nll"], rtol=1e-6)
