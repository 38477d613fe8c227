"""Faults of optimizers, schedules, hooks and metrics."""

import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.testing.failing import failing, leaky, line_of

from taetpu.core.registry import kinds
from taetpu.plugin import Component, Hook, Metric

# --- optimizers ------------------------------------------------------------------------------------------------------


class Rule(kinds("optimizer")["adamw"]):
    """AdamW with one fault."""

    kind: ClassVar[str] = "faulty-adamw"
    fault: str

    def transform(self, lr, decayed):
        inner = super().transform(-lr if self.fault == "uphill" else lr, decayed)

        def init(params):
            return (inner.init(params), jnp.float32(0))

        def update(gradients, state, params):
            updates, new = inner.update(gradients, state[0], params)
            if self.fault == "half":
                updates = jax.tree.map(lambda a: a.astype(jnp.bfloat16), updates)
            if self.fault == "packs":
                updates = jax.tree.map(leaky, updates)
            return updates, (new, state[1][None] if self.fault == "grows" else state[1])

        return optax.GradientTransformation(init, update)


@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        ("half", "updates", r"updates at embedding.weight: \(11, 16\) bfloat16, expected \(11, 16\) float32"),
        ("grows", "updates", r".*state .*at 1: \(1,\) float32, expected \(\) float32"),
        pytest.param("uphill", "descends", r"20 steps .* from [\d.]+ to [\d.]+, "
                     "expected a decrease", marks=pytest.mark.slow),
        pytest.param("packs", "packs", r"two packed runs .* up to [\d.e-]+",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_faults_of_an_optimizer_are_reported(fault, check, said):
    (found,) = failing(Rule(fault=fault)).values()
    assert found.check == check
    assert re.match(said, found.message), found.message
    assert line_of(Rule, "def transform") in found.where


# --- schedules -------------------------------------------------------------------------------------------------------


class Rate(Component):
    slot: ClassVar[str] = "schedule"
    kind: ClassVar[str] = "rate"
    fault: str

    def lr(self, step, steps, peak):
        return {
            "vector": lambda: jnp.full((1,), peak),
            "below zero": lambda: peak * (1 - step / 3),
            "one step": lambda: peak * (step / jnp.float32(steps - 1)),
        }[self.fault]()


@pytest.mark.parametrize("fault", ["vector", "below zero", "one step"])
def test_faults_of_a_schedule_are_reported(fault, wording):
    (found,) = failing(Rate(fault=fault)).values()
    assert found.check == "rates"
    wording(found.message)
    assert line_of(Rate, "def lr") in found.where


# --- hooks -----------------------------------------------------------------------------------------------------------


class Batches(Hook):
    slot: ClassVar[str] = "hook"
    kind: ClassVar[str] = "batches"
    fault: str

    def batch(self, batch, now):
        tokens, weights = batch.tokens, batch.weights
        if self.fault == "shorter":
            tokens = tokens[:, :-1]
        if self.fault == "numpy":
            tokens = jnp.asarray(np.random.permutation(11), jnp.int32)[tokens]
        if self.fault == "beyond":
            tokens = tokens + 3
        if self.fault == "weights":
            weights = weights - 0.5
        if self.fault == "log":
            weights = jnp.log(weights)
        return batch._replace(tokens=leaky(tokens) if self.fault == "packs" else tokens, weights=weights)


@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        ("shorter", "form", r".*batch at tokens: \(2, 7\) int32, expected \(2, 8\) int32"),
        ("numpy", "repeats", "two calls .* same key differ"),
        ("beyond", "repeats", "tokens range from 3 to 13, expected 0 to 10"),
        ("weights", "repeats", "weights are negative"),
        ("log", "repeats", "batch .*non-finite numbers"),
        ("packs", "packs", r"two packed runs .* up to [\d.e-]+"),
    ],
)
def test_faults_of_a_hook_are_reported(fault, check, said):
    (found,) = failing(Batches(fault=fault)).values()
    assert found.check == f"batch {check}"
    assert re.match(said, found.message), found.message
    assert line_of(Batches, "def batch") in found.where


class Losses(Hook):
    slot: ClassVar[str] = "hook"
    kind: ClassVar[str] = "losses"

    def loss(self, loss, logits, batch, model, now):
        return loss + jnp.zeros(batch.tokens.shape[0])

    def updates(self, updates, params, now):
        return jax.tree.leaves(updates)


def test_faults_of_several_methods_are_reported_together():
    found = failing(Losses())
    assert set(found) == {"loss form", "updates form"}
    assert found["loss form"].message.endswith("loss: (2,) float32, expected () float32")
    assert found["updates form"].message.startswith("the result of")


# --- metrics ---------------------------------------------------------------------------------------------------------


class Measuring(Metric):
    slot: ClassVar[str] = "metric"
    kind: ClassVar[str] = "measuring"
    fault: str

    def sites(self):
        return ("residul",) if self.fault == "site" else ()

    def measure(self, seen):
        largest = {"max": jnp.max(jnp.abs(seen.params.embedding.weight))}
        if self.fault == "vector":
            largest["max"] = largest["max"][None]
        if self.fault == "packs":
            largest["max"] = leaky(largest["max"])
        if self.fault == "nan":
            largest["max"] = jnp.log(-largest["max"])
        return {} if self.fault == "nothing" else largest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        ("vector", "values", r"metric 'measuring' .*max of shape \(1,\), not a single"),
        ("site", "values", "no site 'residul' in this model"),
        ("nothing", "values", "measure .*no values"),
        ("nan", "packs", "measuring/max is NaN"),
        ("packs", "packs", r"two packed runs .* up to [\d.e-]+"),
    ],
)
def test_faults_of_a_metric_are_reported(fault, check, said):
    (found,) = failing(Measuring(fault=fault)).values()
    assert found.check == check
    assert re.match(said, found.message), found.message
    assert line_of(Measuring, "def measure") in found.where
    if fault == "site":
        assert "Did you mean 'residual'?" in found.remedy
