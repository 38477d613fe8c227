"""One step: accumulation, dropout, precision, learning rate, and batches that depend only on seed and step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.nn.named_arrays import named_parameters
from taetpu.optim.hooks import Moment
from taetpu.train.step import StepContext, gradients, new_model


def test_accumulation_gives_the_same_gradients(make):
    """Microbatches of a copy batch have different numbers of answers, which must all have the same weight."""
    config = make()
    source = config.task.prepare(None)

    def both(seed, arrays, rows):
        key = root_key(seed)
        model, batch = new_model(config, source, seed), source.batch(arrays, rows, key)
        contexts = [StepContext(make(accumulate=parts), source, arrays, seed, 12, jnp.float32) for parts in (1, 4)]
        return [gradients(model, batch, key, Moment(seed, 12, key), context) for context in contexts]

    whole, parts = jit_once(both)(jnp.int32(0), dict(source.arrays), source.rows(0, 0, 1, 4)[0])
    assert any(np.abs(a).max() > 1e-3 for a in jax.tree.leaves(whole[0]))
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_arms_share_initial_parameters_that_their_change_leaves_alone(trainer, make, text):
    task, source = text
    one = trainer([make(task)], source, seeds=[3])
    other = trainer([make(task, {"ffn": "relu"})], source, seeds=[3])
    a, b = (named_parameters(jax.tree.map(lambda x: x[0], t.state.model)) for t in (one, other))
    shared = [name for name in a if "ffn." not in name]
    assert len(shared) > 6
    for name in shared:
        np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.slow
def test_dropout_rate_is_traced_and_evaluation_has_no_dropout(trainer, make, text):
    task, source = text
    run = trainer([make(task, {"dropout": 0.5}), make(task, {"dropout": 0.1})], source, seeds=[1, 1])
    losses = run.advance(4)["train/loss"]
    assert losses[0, 0] != losses[1, 0]
    windows = run.program.evaluation_set("val")
    again = [run.program.evaluate(run.state.model, windows)["nll"] for _ in range(2)]
    np.testing.assert_array_equal(*again)


@pytest.mark.slow
def test_bfloat16_training_learns_with_float32_weights_and_the_scheduled_rate(trainer, make, text):
    task, source = text
    optimizer = {"kind": "adamw", "lr": 0.01}
    run = trainer([make(task, steps=80, optimizer=optimizer, precision="bfloat16", clip=0.05)], source)
    metrics = run.advance(*[8] * 10)
    losses, rates = metrics["train/loss"][0], metrics["lr"][0]
    assert losses[-8:].mean() < losses[:8].mean() - 0.5
    assert {a.dtype for a in jax.tree.leaves(run.state.model)} == {np.dtype("float32")}
    assert rates[2] == pytest.approx(0.01)  # clipping does not change the rate; the last warm-up step reaches the peak
    assert rates[-1] == pytest.approx(0.0, abs=1e-9)
