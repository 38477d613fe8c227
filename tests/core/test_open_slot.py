"""Slots that plug-ins open: their kinds are found by name, checked, and removed with the plug-in."""

from typing import Annotated, Any

import pytest

from taetpu.core.config import Component, SlotMark
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.registry import kinds, open_slot, register, slots, unregister
from taetpu.core.slot_requirements import check_declaration


@pytest.fixture
def opened():
    """Open a slot with two kinds, and return a config class that has the slot."""

    @open_slot("test-map")
    class Map(Component):
        def apply(self, x):
            raise NotImplementedError

    @register("test-map", "twice")
    class Twice(Map):
        factor: float = 2.0

        def apply(self, x):
            return self.factor * x

    @register("test-map", "wrong")
    class Wrong(Map):
        def apply(self):
            return None

    class Holder(Component):
        map: Annotated[Any, SlotMark("test-map")] = Twice()

    yield Holder
    unregister(__name__)
    assert "test-map" not in slots()


def test_kinds_of_an_opened_slot_are_built_by_name(opened):
    assert set(kinds("test-map")) == {"twice", "wrong"}
    assert load_config(opened, {"map": {"kind": "twice", "factor": 3.0}}).map.apply(2.0) == 6.0
    with pytest.raises(UserError, match=r"unknown test-map kind 'twise'") as caught:
        load_config(opened, {"map": "twise"})
    assert "Did you mean 'twice'" in caught.value.remedy


def test_kinds_must_accept_the_calls_of_the_base(opened):
    check_declaration(kinds("test-map")["twice"])
    with pytest.raises(UserError, match=r"Wrong\.apply .*not accept .*arguments"):
        check_declaration(kinds("test-map")["wrong"])


def test_existing_and_invalid_names_are_refused(opened):
    for name, problem in (("ffn", "slot 'ffn' exists already"), ("a b", "'a b' is not a name for a slot")):
        with pytest.raises(UserError, match=problem):
            open_slot(name)(Component)
    with pytest.raises(UserError, match="unknown slot 'test-mop'") as caught:
        register("test-mop", "x")
    assert "Did you mean 'test-map'?" in caught.value.remedy
