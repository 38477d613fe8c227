"""Configs: errors with place and remedy, and the split into structure and numbers."""

import re
from typing import Annotated, Any

import jax.numpy as jnp
import pytest
from pydantic import Field, PositiveInt

from taetpu.core.config import Config, Hole, SlotMark, Traced, to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.plugins import load_plugins
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.nn.lm import ModelConfig


class Inner(Config):
    rate: Annotated[float, Field(ge=0, lt=1), Traced(neutral=0.0)] = 0.0
    drop: Annotated[tuple[int, ...], Traced(neutral=(), promote=True, encode=lambda c, v: [c.size, len(v)])] = ()
    size: PositiveInt = 3


class Outer(Config):
    path: str = Field(description="the file to read")
    inner: Inner = Inner()
    parts: tuple[Inner, ...] = ()
    ffn: Annotated[Any, SlotMark("ffn")] = None
    lr: Annotated[float, Traced()] = 1.0


REFUSED = {
    "unknown field": {"path": "a", "iner": {}},
    "unknown field inside": {"path": "a", "inner": {"rat": 1}},
    "missing": {},
    "wrong type": {"path": "a", "inner": {"size": "3"}},
    "a float for an integer": {"path": "a", "inner": {"size": 3.5}},
    "out of range": {"path": "a", "inner": {"rate": 1.5}},
    "negative": {"path": "a", "inner": {"size": -1}},
    "not a mapping": {"path": "a", "inner": 3},
    "unknown kind": {"path": "a", "ffn": "swigul"},
    "no kind": {"path": "a", "ffn": {"hidden": 3}},
    "unknown field of a kind": {"path": "a", "ffn": {"kind": "relu", "hiden": 3}},
}


@pytest.fixture
def no_plugins():
    """A plug-in's kinds stay known until another study is loaded."""
    load_plugins([])


@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize("case", REFUSED)
def test_errors_have_place_and_remedy(case, wording):
    with pytest.raises(UserError) as caught:
        load_config(Outer, REFUSED[case], ("base",))
    wording(re.sub(r"(?<=Use one of: bilinear, ).*", "...", str(caught.value)))  # other tests register kinds


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "0.1", None])
def test_only_finite_numbers_are_accepted(value):
    with pytest.raises(UserError, match=r"is not allowed: .*\n  where:  rate"):
        load_config(Inner, {"rate": value})
    with pytest.raises(UserError, match=r"is not allowed: .*\n  where:  lr"):
        load_config(Outer, {"path": "a", "lr": value})


def test_integers_become_floats_and_lists_become_tuples():
    config = load_config(Inner, {"rate": 0, "drop": [1, 2]})
    assert config.drop == (1, 2)
    assert isinstance(config.rate, float)


def test_a_config_as_plain_data_loads_to_itself():
    for data in (
        {"dim": 16, "num_layers": 3, "layers": {-1: {"ffn": "none"}, "0:2": {"norm": "layer"}}},
        {"dim": 16, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2, "drop_heads": [1]}},
    ):
        config = load_config(ModelConfig, data)
        plain = to_data(config)
        assert to_data(load_config(ModelConfig, plain)) == plain
        assert load_config(ModelConfig, plain).resolve() == config.resolve()


# --- structure and numbers -------------------------------------------------------------------------------------------


def outer(**inner: Any) -> Outer:
    return load_config(
        Outer, {"path": "a", "inner": inner, "parts": (Inner(), load_config(Inner, inner)), "ffn": "relu"}
    )


def test_neutral_values_stay_in_the_structure_and_others_become_numbers():
    structure, numbers = split(outer(rate=0.5, drop=[2]))
    assert numbers == {"inner.rate": 0.5, "inner.drop": [3, 1], "parts.1.rate": 0.5, "parts.1.drop": [3, 1], "lr": 1.0}
    assert structure.inner.rate == Hole()
    assert structure.parts[0].rate == 0.0


def test_binding_the_numbers_gives_the_config_back():
    config = outer(rate=0.5)
    assert bind(*split(config)) == config


def test_split_returns_the_arrays_that_were_bound():
    structure, numbers = split(outer(rate=0.5))
    arrays = {path: jnp.asarray(number) for path, number in numbers.items()}
    again, found = split(bind(structure, arrays))
    assert again == structure
    assert found == arrays


def test_configs_that_differ_only_in_traced_numbers_have_equal_structures():
    assert split(outer(rate=0.5))[0] == split(outer(rate=0.1))[0]
    assert split(outer(rate=0.5))[0] != split(outer(rate=0.0))[0]
    assert split(outer(size=4))[0] != split(outer())[0]


def test_a_neutral_value_is_traced_when_another_run_needs_the_field():
    plain, masked = outer(), outer(drop=[1])
    live = promoted_fields(plain) | promoted_fields(masked)
    assert live == {"inner.drop", "parts.*.drop"}
    (a, numbers), (b, others) = split(plain, live), split(masked, live)
    assert a == b
    assert numbers.keys() == others.keys()
    assert numbers["parts.0.drop"] == [3, 0]
    assert others["parts.1.drop"] == [3, 1]


def test_a_rate_of_zero_is_never_promoted():
    assert promoted_fields(outer(rate=0.5)) == frozenset()
    assert "inner.rate" not in split(outer(), promoted_fields(outer(rate=0.5)))[1]
