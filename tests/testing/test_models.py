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
from taetpu.testing.tiny import context, plain, tokens
from taetpu.testing.tried import rolled

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


def said(mode: str) -> dict[str, str]:
    when = {"evaluation": "in evaluation", "training": r"in training \(ctx\.key is given\)"}[mode]
    return {
        "start": "parameter 'scale' is drawn, but starts the same from every seed and in every layer",
        "causality": rf"the logits at position 0 change by up to [\d.]+ {when} when only tokens after position 0 do",
        "sequences": rf"a sequence's logits change by up to [\d.]+ {when} when another one of its batch does",
        "gradients": "the gradient of layers.0.after.unread, layers.1.after.unread is zero everywhere",
        "layers": rf"layers under a scan differ from layers called one by one by up to [\d.]+ .* {when}, expected",
        "packs": r"two runs in one program differ from the same runs alone by up to [\d.]+ of the largest value",
    }


@pytest.mark.slow
def test_every_fault_is_told_at_once_though_half_of_them_show_in_training_alone():
    found = failing(Faulty(faults=FAULTS, trained=True))
    assert set(found) == set(FAULTS)
    for check, text in said("training").items():
        assert re.match(text, found[check].said), found[check].said
        assert line_of(Faulty, "def init") in found[check].where
        assert found[check].remedy


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_own_check_alone(fault):
    found = failing(Faulty(faults=(fault,)))
    assert set(found) == {fault}
    assert re.match(said("evaluation")[fault], found[fault].said)


@pytest.mark.slow
def test_a_gradient_that_does_not_get_through():
    (found,) = failing(Faulty(faults=("stop",))).values()
    assert found.check == "gradients"
    assert re.match("the gradient of .* is zero everywhere: nothing gets through the component", found.said)


@pytest.mark.slow
def test_a_gradient_that_is_not_a_number():
    (found,) = failing(Faulty(faults=("nan",))).values()
    assert found.check == "model"
    assert re.match(r"the gradient of .*embedding.* is not finite", found.said)
    assert "jnp.where hides it in the value alone" in found.remedy


@pytest.mark.slow
def test_without_a_fault_it_passes_and_the_report_says_so():
    report = check_component("after", Faulty())
    text = str(report)
    assert text.startswith("after 'faulty' (tests/testing/test_models.py)\n")
    assert all(f"  {finding.check}" in text for finding in report.findings)
    assert {finding.outcome for finding in report.findings} == {"passed"}


def test_training_is_tried_in_a_loop_that_stays_one():
    """As many layers as the tiny model has are unrolled otherwise, and a deep model's loop would never be tried."""
    x = plain().embedding.encode(jnp.asarray(tokens()))
    loops = [str(jax.make_jaxpr(lambda x, m=m: m.stacks[0](x, context()))(x)) for m in (rolled(plain()), plain())]
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
    assert found.said.startswith("layers.0.ffn.up starts from other numbers than in a model without it")
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
