"""One step: accumulation, dropout, precision, and that a batch depends on seed and step alone."""

import jax
import numpy as np
import pytest

from taetpu.nn.lm import named_parameters


@pytest.mark.slow
def test_accumulation_is_the_same_update(trainer, make, text):
    task, source = text
    whole = trainer([make(task)], source)
    parts = trainer([make(task, accumulate=4)], source)
    np.testing.assert_allclose(whole.advance(6)["train/loss"], parts.advance(6)["train/loss"], atol=1e-5)


@pytest.mark.slow
def test_accumulation_weighs_positions_not_parts(trainer, make):
    """Parts of a copy batch hold different numbers of answers; each answer must count the same."""
    config = make()
    source = config.task.prepare(None)
    whole, parts = trainer([config], source), trainer([make(accumulate=4)], source)
    np.testing.assert_allclose(whole.advance(6)["train/loss"], parts.advance(6)["train/loss"], atol=1e-5)


def test_arms_of_one_seed_see_the_same_batches_and_start(trainer, make, text):
    task, source = text
    one = trainer([make(task)], source, seeds=[3])
    other = trainer([make(task, {"ffn": "relu"})], source, seeds=[3])
    a, b = (named_parameters(jax.tree.map(lambda x: x[0], t.state.model)) for t in (one, other))
    shared = [name for name in a if "ffn." not in name]
    assert len(shared) > 10
    for name in shared:
        np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.slow
def test_dropout_is_drawn_anew_each_step_and_off_in_evaluation(trainer, make, text):
    task, source = text
    run = trainer([make(task, {"dropout": 0.5}), make(task, {"dropout": 0.1})], source, seeds=[1, 1])
    losses = run.advance(4)["train/loss"]
    assert losses[0, 0] != losses[1, 0]  # the rate is a number of the program
    windows = run.program.evaluation_set("val")
    again = [run.program.evaluate(run.state.model, windows)["nll"] for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_training_learns_and_weights_keep_their_type(trainer, make, text):
    task, source = text
    run = trainer([make(task, steps=80, optimizer={"kind": "adamw", "lr": 0.01}, precision="bfloat16")], source)
    losses = run.advance(*[8] * 10)["train/loss"][0]
    assert losses[-8:].mean() < losses[:8].mean() - 0.5
    kinds = {a.dtype for a in jax.tree.leaves(run.state.model)}
    assert kinds == {np.dtype("float32")}  # bfloat16 is how products are computed, not what is kept


@pytest.mark.parametrize("clip", [0.05, None])
def test_clipping_bounds_the_gradient_not_the_rate(trainer, make, text, clip):
    task, source = text
    metrics = trainer([make(task, clip=clip)], source).advance(8, 4)
    assert metrics["lr"][0, 2] == pytest.approx(1e-3)  # the last warm-up step reaches the peak
    assert metrics["lr"][0, -1] == pytest.approx(0.0, abs=1e-9)
