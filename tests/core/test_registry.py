"""Kinds: lookup by slot and name, unique names, and building from a name or settings."""

from collections.abc import Iterator

import pytest

from taetpu.core import registry
from taetpu.core.config import Component
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.registry import kinds, register


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kinds("ffn")
    monkeypatch.setattr(registry, "_KINDS", {slot: dict(known) for slot, known in registry._KINDS.items()})
    return


def test_a_registered_kind_is_built_by_name():
    @register("ffn", "mine")
    class Mine(Component):
        width: int = 3

    assert kinds("ffn")["mine"] is Mine
    assert (Mine.slot, Mine.kind) == ("ffn", "mine")
    assert build_component("ffn", "mine") == Mine()
    assert build_component("ffn", {"kind": "mine", "width": 4}) == Mine(width=4)
    assert build_component("ffn", Mine(width=5)).width == 5


def test_none_builds_the_kind_none():
    assert build_component("ffn", None).kind == build_component("ffn", "none").kind == "none"


def test_a_taken_name_is_refused():
    with pytest.raises(UserError, match=r"ffn 'relu' .* registered by taetpu.nn.ffn.dense.ReLU\n  remedy: Rename one"):

        @register("ffn", "relu")
        class Mine(Component):
            pass


@pytest.mark.parametrize("made", [type("Mine", (), {}), lambda: None], ids=["another class", "no class"])
def test_only_component_classes_can_be_registered(made):
    with pytest.raises(UserError, match=r"not a Component\n  remedy: Define class .*\(Component\)") as error:
        register("ffn", "mine")(made)
    assert "registered as ffn 'mine'" in error.value.problem
    assert "mine" not in kinds("ffn")


def test_a_reloaded_class_replaces_itself():
    for _ in range(2):

        @register("ffn", "mine")
        class Mine(Component):
            pass

    assert kinds("ffn")["mine"] is Mine


def test_a_component_of_another_slot_is_refused():
    with pytest.raises(UserError, match=r"ffn needs .*kind.*\n  where:  model.ffn"):
        build_component("ffn", build_component("norm", "rms"), ("model", "ffn"))


@pytest.mark.parametrize(
    "ask", [kinds, lambda slot: register(slot, "mine"), lambda slot: build_component(slot, "none")]
)
def test_an_unknown_slot_is_rejected(ask):
    with pytest.raises(UserError, match=r"unknown slot 'fnn'\n  remedy: Did you mean 'ffn'\?"):
        ask("fnn")
