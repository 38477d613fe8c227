"""Faults that are visible without a model."""

import re
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.testing.failing import failing, line_of

from taetpu.plugin import Component, Fixed, Identity, Number, named, project


class Wide(Component):
    slot: ClassVar[str] = "ffn"
    kind: ClassVar[str] = "wide"

    def init(self, dims, *, key):
        return WideFFN(dims.weight(named(key, "w"), dims.dim, 2 * dims.dim))


class WideFFN(eqx.Module):
    w: Any

    def __call__(self, x, ctx):
        return project(x, self.w)


def test_a_wrong_shape_is_reported(wording):
    (found,) = failing(Wide()).values()
    assert found.check == "shapes"
    wording(found.message)
    assert f"{line_of(WideFFN.__call__, 'def __call__')} in __call__" in found.where


class Precise(Component):
    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "precise"

    def init(self, dims, *, key):
        return PreciseAfter(Fixed(2.0))


class PreciseAfter(eqx.Module):
    factor: Fixed

    def __call__(self, x, ctx):
        return x * self.factor.value


def test_a_wrong_dtype_is_reported():
    found = failing(Precise())["shapes"]
    assert found.message.startswith("for x (2, 8, 16) bfloat16 ")
    assert "is (2, 8, 16) float32" in found.message
    assert found.remedy == "End with .astype(x.dtype)"


class Noisy(Component):
    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "noisy"

    def init(self, dims, *, key):
        return NoisyAfter()


class NoisyAfter(eqx.Module):
    def __call__(self, x, ctx):
        return x + jnp.asarray(np.random.standard_normal(x.shape), x.dtype)


def test_numpy_randomness_is_reported():
    found = failing(Noisy())
    assert set(found) == {"jit"}
    assert re.match(r"compiled and eager .* \d", found["jit"].message)
    assert "ctx.key" in found["jit"].remedy


class Counting(Component):
    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "counting"

    def init(self, dims, *, key):
        return CountingAfter()


class CountingAfter(eqx.Module):
    calls: ClassVar[list[int]] = []

    def __call__(self, x, ctx):
        self.calls.append(1)
        return x * len(self.calls)


def test_python_state_is_reported():
    found = failing(Counting())
    assert set(found) == {"jit"}
    assert "keep no state" in found["jit"].remedy


class Branching(Component):
    slot: ClassVar[str] = "scores"
    kind: ClassVar[str] = "branching"
    factor: Number = 2.0
    early: bool = True

    def init(self, dims, *, key):
        if self.early and self.factor == 0:
            return Identity()
        return BranchingScores(Fixed(self.factor))


class BranchingScores(eqx.Module):
    factor: Fixed

    def __call__(self, scores, ctx):
        return scores * self.factor.value if self.factor.value > 1 else scores


@pytest.mark.parametrize(
    ("component", "check", "owner", "line"),
    [
        (Branching(early=False), "shapes", BranchingScores, "if self.factor.value > 1"),
        (Branching(factor=0.0), "model", Branching, "self.factor == 0"),
    ],
)
def test_a_python_branch_on_a_traced_number_is_reported(component, check, owner, line):
    found = failing(component)
    assert set(found) == {check}
    assert "TracerBoolConversionError" in found[check].message
    assert line_of(owner, line) in found[check].where
    assert line in found[check].remedy


class FaultyInit(Component):
    slot: ClassVar[str] = "init"
    kind: ClassVar[str] = "faulty-init"
    fault: str

    def draw(self, dims, role, shape, *, key):
        if self.fault == "fixed key":
            key = jax.random.key(0)
        drawn = 0.02 * jax.random.normal(key, shape)
        if self.fault == "numpy":
            drawn = drawn + np.random.standard_normal(shape)
        return {"half": drawn.astype(jnp.bfloat16), "log": jnp.log(drawn)}.get(self.fault, drawn)


@pytest.mark.parametrize("fault", ["fixed key", "numpy", "half", "log"])
def test_faults_of_an_init_are_reported(fault, wording):
    (found,) = failing(FaultyInit(fault=fault)).values()
    assert found.check == "draw"
    wording(found.message)
    assert line_of(FaultyInit, "def draw") in found.where


class Loose(Component):
    slot: ClassVar[str] = "hook"
    kind: ClassVar[str] = "loose"


def test_a_wrong_base_class_is_reported(wording):
    found = failing(Loose())["form"]
    wording(f"{found.message}\n{found.remedy}")


class Placeless(Component):
    slot: ClassVar[str] = "norm"
    kind: ClassVar[str] = "placeless"

    def init(self, dims, *, key):
        return Identity()


class Mute(Component):
    slot: ClassVar[str] = "ffn"
    kind: ClassVar[str] = "mute"


@pytest.mark.parametrize("component", [Placeless(), Mute()])
def test_missing_members_are_reported(component, wording):
    (found,) = failing(component).values()
    assert found.check == "form"
    wording(found.message)


class Started(Component):
    """A parameter with one fault at its start; its shape is wrong as well, so that no model is tried."""

    slot: ClassVar[str] = "after"
    kind: ClassVar[str] = "started"
    fault: str

    def init(self, dims, *, key):
        drawn = jax.random.normal(key, (dims.dim,))
        if self.fault == "numpy":
            drawn = drawn + np.random.standard_normal(dims.dim)
        return StartedAfter({"half": drawn.astype(jnp.bfloat16), "log": jnp.log(drawn)}.get(self.fault, drawn))


class StartedAfter(eqx.Module):
    scale: Any

    def __call__(self, x, ctx):
        return x[:, :1] * self.scale.astype(x.dtype)


@pytest.mark.parametrize("fault", ["numpy", "half", "log"])
def test_faults_of_initial_parameters_are_reported(fault, wording):
    found = failing(Started(fault=fault))
    assert set(found) == {"start", "shapes"}
    wording(found["start"].message)
    assert line_of(Started, "def init") in found["start"].where
