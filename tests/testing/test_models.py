"""Faults that show in a model: each fails its own check, in evaluation and in training, and is named with its line."""

import re
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from tests.testing.failing import failing, leaky, line_of

from taetpu.core.registry import kinds
from taetpu.plugin import Component, Identity, Number
from taetpu.testing import check_component
from taetpu.testing.host_program import with_rolled_layers
from taetpu.testing.tiny import context, plain_model, tokens

FAULTS = ("start", "causality", "sequences", "gradients", "layers", "packs")


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
        if "layers" in self.faults:
            y = y * (1 + (ctx.layer if isinstance(ctx.layer, int) else 0))
        return y


def expected_messages(mode: str) -> dict[str, str]:
    when = {"evaluation": "in evaluation", "training": r"in training \(ctx\.key is given\)"}[mode]
    return {
        "start": "parameter 'scale' is random, but is identical for every seed",
        "causality": rf"the logits at position 0 change by up to [\d.]+ {when} when only tokens after",
        "sequences": rf"a sequence's logits change by up to [\d.]+ {when} when another sequence of the batch changes",
        "gradients": "the gradient of layers.0.after.unread, layers.1.after.unread is zero everywhere",
        "layers": rf"scanned layers differ from layers called one by one by up to [\d.]+ .* {when}, expected",
        "packs": r"two packed runs differ from the same runs alone by up to [\d.]+ of the largest value",
    }


@pytest.mark.slow
def test_all_faults_are_reported_together_including_those_of_training_only():
    found = failing(Faulty(faults=FAULTS, trained=True))
    assert set(found) == set(FAULTS)
    for check, text in expected_messages("training").items():
        assert re.match(text, found[check].message), found[check].message
        assert line_of(Faulty, "def init") in found[check].where
        assert found[check].remedy


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_own_check_alone(fault):
    found = failing(Faulty(faults=(fault,)))
    assert set(found) == {fault}
    assert re.match(expected_messages("evaluation")[fault], found[fault].message)


@pytest.mark.slow
def test_a_gradient_that_does_not_get_through():
    (found,) = failing(Faulty(faults=("stop",))).values()
    assert found.check == "gradients"
    assert re.match("the gradient of .* is zero everywhere: the component blocks it", found.message)


@pytest.mark.slow
def test_a_gradient_that_is_not_a_number():
    (found,) = failing(Faulty(faults=("nan",))).values()
    assert found.check == "model"
    assert re.match(r"the gradient of .*embedding.* is not finite", found.message)
    assert "jnp.where" in found.remedy


@pytest.mark.slow
def test_without_a_fault_it_passes_and_the_report_says_so():
    report = check_component("after", Faulty())
    text = str(report)
    assert text.startswith("after 'faulty' (tests/testing/test_models.py)\n")
    assert all(f"  {finding.check}" in text for finding in report.findings)
    assert {finding.outcome for finding in report.findings} == {"passed"}


def test_training_is_checked_with_a_rolled_loop():
    """A stack as small as the tiny model's is unrolled by default, which would leave rolled loops untested."""
    x = plain_model().embedding.encode(jnp.asarray(tokens()))
    loops = [
        str(jax.make_jaxpr(lambda x, m=m: m.stacks[0](x, context()))(x))
        for m in (with_rolled_layers(plain_model()), plain_model())
    ]
    assert ["unroll=1" in text for text in loops] == [True, False]


class Greedy(kinds("mixer")["attention"]):
    """Draws everything built after it more narrowly."""

    kind: ClassVar[str] = "greedy"
    num_heads: int = 2

    def init(self, dims, position, *, key):
        object.__setattr__(dims, "init", kinds("init")["gpt2-scaled"](std=0.001))
        return super().init(dims, position, key=key)


@pytest.mark.slow
def test_a_component_that_changes_how_the_others_start():
    (found,) = failing(Greedy()).values()
    assert found.check == "same start"
    assert found.message.startswith("layers.0.ffn.up starts from different values")
    assert line_of(Greedy, "def init") in found.where


class Inert(Component):
    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "inert"
    factor: Number = 2.0

    def init(self, dims, *, key):
        return Identity()


@pytest.mark.slow
def test_a_number_that_nothing_reads_is_named():
    report = check_component("after", Inert())
    assert report.outcome("idle numbers") == "note"
    assert "nothing reads factor" in str(report)
