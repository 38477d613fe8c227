"""Faults that are visible in a tiny model, in evaluation and in training."""

import re
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from tests.testing.failing import failing, leaky, line_of

from taetpu.core.sites import is_requested
from taetpu.plugin import Component, auxiliary_loss
from taetpu.testing import check_component

FAULTS = ("start", "causality", "sequences", "gradients", "packs")
EQUAL = ("bfloat16", "sites", "cache")


class Faulty(Component):
    """An after component with the faults that are named; those of `trained` show only with a key."""

    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "faulty"
    faults: tuple[str, ...] = ()
    trained: bool = False

    def init(self, dims, *, key):
        own = jax.random.key(0) if "start" in self.faults else key
        return FaultyAfter(jax.random.normal(own, (dims.dim,)), jnp.zeros(dims.dim), self.faults, self.trained)


class FaultyAfter(eqx.Module):
    scale: Any
    unread: Any
    faults: tuple[str, ...] = eqx.field(static=True)
    trained: bool = eqx.field(static=True)

    def __call__(self, x, ctx):
        scale = leaky(self.scale) if "packs" in self.faults else self.scale
        y = x * scale.astype(x.dtype)
        if "gradients" not in self.faults:
            y = y + self.unread.astype(x.dtype)
        if "stop" in self.faults:
            y = self.unread.astype(x.dtype) * scale.astype(x.dtype) + jax.lax.stop_gradient(x)
        if "nan" in self.faults:
            y = y + jnp.where(x > 0, jnp.sqrt(x), 0.0)
        if self.trained and ctx.key is None:
            return y
        if "causality" in self.faults:
            y = y + x.mean(1, keepdims=True)
        if "sequences" in self.faults:
            y = y + x[::-1]
        if "bfloat16" in self.faults:
            y = y / (1 - jnp.full((), 0.999, x.dtype))  # rounds to 1 in bfloat16
        if "sites" in self.faults and is_requested("mine"):
            y = 2 * y
        if "cache" in self.faults:
            y = y + jnp.cumsum(x, 1)
        return y


def expected_messages(mode: str) -> dict[str, str]:
    when = {"evaluation": "in evaluation", "training": r"in training \(ctx\.key is given\)"}[mode]
    return {
        "start": "parameter 'scale' is random, but is identical for every seed",
        "causality": rf"the logits at position 0 change by up to [\d.]+ {when} when only tokens after",
        "sequences": rf"a sequence's logits change by up to [\d.]+ {when} when another sequence of the batch changes",
        "gradients": "the gradient of layers.0.after.unread, layers.1.after.unread is zero everywhere",
        "packs": r"two packed runs differ from the same runs alone by up to [\d.]+ of the largest value",
    }


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_all_faults_are_reported_together_with_message_place_and_remedy(mode):
    found = failing(Faulty(faults=FAULTS, trained=mode == "training"))
    assert set(found) == set(FAULTS)
    for check, text in expected_messages(mode).items():
        assert re.match(text, found[check].message), found[check].message
        assert line_of(Faulty, "def init") in found[check].where
        assert found[check].remedy


@pytest.mark.slow
def test_faults_in_bfloat16_sites_caches_and_padding_are_reported():
    found = failing(Faulty(faults=EQUAL))
    assert set(found) == set(EQUAL)
    for check, text in {
        "bfloat16": "in bfloat16, a newly initialised tiny model returns non-finite numbers in training",
        "sites": r"the logits change by up to [\d.]+ of the largest value, .* when every site is replaced by itself: ",
        "cache": r"the logits of a sequence that is extended with a cache differ .* by up to [\d.]+",
    }.items():
        assert re.match(text, found[check].message), found[check].message


@pytest.mark.slow
def test_a_blocked_gradient_is_reported():
    (found,) = failing(Faulty(faults=("stop",))).values()
    assert found.check == "gradients"
    assert re.match("the gradient of .* zero everywhere", found.message)


@pytest.mark.slow
def test_a_nan_gradient_is_reported():
    (found,) = failing(Faulty(faults=("nan",))).values()
    assert found.check == "model"
    assert re.match(r"the gradient of .*embedding.* is not finite", found.message)
    assert "jnp.where" in found.remedy


class Decay(Component):
    """A mixer with a recurrent state, which it stores in the cache if `stored`."""

    slot: ClassVar[str] = "mixer"
    kind: ClassVar[str] = "decay"
    stored: bool = True

    def init(self, dims, position, *, key):
        return DecayMixer(jax.random.normal(key, (dims.dim,)), self.stored)


class DecayMixer(eqx.Module):
    scale: Any
    stored: bool = eqx.field(static=True)

    def cache_shapes(self, length):
        return {"state": self.scale.shape}

    def __call__(self, x, ctx):
        before = jnp.zeros_like(x[:, 0]) if ctx.cache is None else ctx.cache.values["state"]
        state, states = jax.lax.scan(lambda state, now: (state / 2 + now,) * 2, before, x.swapaxes(0, 1))
        if self.stored and ctx.cache is not None:
            ctx.cache.values["state"] = state
        return states.swapaxes(0, 1) * self.scale.astype(x.dtype)


@pytest.mark.slow
def test_a_state_that_is_not_stored_in_the_cache_is_reported():
    assert "cache" in {finding.check for finding in check_component("mixer", Decay()).findings}
    (found,) = failing(Decay(stored=False)).values()
    assert found.check == "cache"
    assert re.match("the logits .* with a cache", found.message)
    assert "ctx.cache" in found.remedy


@pytest.mark.slow
def test_a_correct_component_passes_every_check():
    report = check_component("after", Faulty())
    text = str(report)
    assert text.startswith("after 'faulty' (tests/testing/test_in_model.py)\n")
    assert all(f"  {finding.check}" in text for finding in report.findings)
    assert {finding.outcome for finding in report.findings} == {"passed"}


class Unbalanced(Component):
    """An after component whose auxiliary loss has a statistic of several numbers."""

    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "unbalanced"

    def init(self, dims, *, key):
        return UnbalancedAfter(jnp.ones(dims.dim))


class UnbalancedAfter(eqx.Module):
    scale: Any

    def __call__(self, x, ctx):
        auxiliary_loss("load", 1.0, x, statistic=lambda mean: mean)
        return x * self.scale.astype(x.dtype)


@pytest.mark.slow
def test_auxiliary_losses_are_computed():
    (found,) = failing(Unbalanced()).values()
    assert "the statistic of auxiliary_loss('load') returns shape (16,), expected one number" in found.message
