"""The place of each slot in a study file, and examples of its kinds."""

from functools import cache
from typing import Any

from taetpu.core.config import Component, Config, SlotMark, config_class_of, slot_of
from taetpu.core.registry import kinds
from taetpu.optim.objectives import Objective
from taetpu.spec.study_config import RunConfig

NOT_IN_ARMS = ("metric", "eval_metric")
"""Slots of kinds that observe training, so arms do not compare them."""

USUALLY_SET = "num_heads"
"""A field that most baselines set. A kind without this field can only replace a slot whose default kind has it."""


@cache
def slot_path(slot: str) -> str:
    """Return the path of a slot in the baseline, e.g. `model.mixer.mask`; empty if no built-in kind has the slot."""
    waiting: list[tuple[type[Config], str]] = [(RunConfig, "")]  # sections of the study before kinds of slots
    seen = set[str]()
    while waiting:
        cls, before = waiting.pop(0)
        for name in cls.model_fields:
            path, mark, inner = f"{before}{name}", slot_of(cls, name), config_class_of(cls, name)
            if mark is not None and mark.name == slot:
                return path
            if mark is not None and mark.name not in seen:
                seen.add(mark.name)
                waiting += [(kind, f"{path}.") for kind in kinds(mark.name).values()]
            elif mark is None and inner is not None:
                waiting.insert(0, (inner, f"{path}."))
    return ""


def example_settings(cls: type[Component]) -> Any:
    """Return a value of the kind's slot: the kind, or a mapping with the kind and the fields of its example."""
    fields = {name: value for name, value in cls.example.items() if "." not in name}
    return {"kind": cls.kind, **fields} if fields else cls.kind


def example_arm(cls: type[Component]) -> dict[str, Any] | None:
    """Return the overrides of an arm that uses a kind; None if arms cannot choose it or it is the default.

    If the kind shares fields with other kinds of its slot, the overrides set the kind and its fields one by one,
    because a replaced slot would lose the shared fields that the baseline sets.
    """
    path = slot_path(cls.slot)
    if not path.startswith(("model.", "train.")) or cls.slot in NOT_IN_ARMS or is_default(cls):
        return None
    if issubclass(cls, Objective) and cls.of_task:
        return None
    others = {name: value for name, value in cls.example.items() if "." in name}
    fields = {name: value for name, value in cls.example.items() if "." not in name}
    if _is_many(path):
        return {**others, path: {cls.kind: fields}}
    shared = {name for kind in kinds(cls.slot).values() if kind is not cls for name in kind.model_fields}
    replaced = next((kind for kind in kinds(cls.slot).values() if is_default(kind)), cls)
    lacks = USUALLY_SET in replaced.model_fields.keys() - cls.model_fields.keys()
    if shared & cls.model_fields.keys() - fields.keys() and not lacks:
        return {**others, f"{path}.kind": cls.kind, **{f"{path}.{name}": value for name, value in fields.items()}}
    return {**others, path: example_settings(cls)}


def example_baseline(cls: type[Component]) -> dict[str, Any] | None:
    """Return the settings of a baseline for a kind that observes training, or that a task of texts names, by path.

    None for other kinds.
    """
    if issubclass(cls, Objective) and cls.of_text and cls.of_task:
        return {"task.objective": cls.kind, **cls.example}
    if cls.slot not in NOT_IN_ARMS:
        return None
    fields = {name: value for name, value in cls.example.items() if "." not in name}
    return {slot_path(cls.slot): {cls.kind: fields} if fields else [cls.kind]}


def is_default(cls: type[Component]) -> bool:
    """Return whether a kind is the default of its slot."""
    path = slot_path(cls.slot)
    name = path.rpartition(".")[2]
    defaults = [owner.model_fields[name].get_default(call_default_factory=True) for owner in _owners(path)]
    return any(isinstance(default, Component) and default.kind == cls.kind for default in defaults)


def _owners(path: str) -> list[type[Config]]:
    """Return the config classes that have the last field of a path: one class, or some kinds of a slot."""
    *above, name = path.split(".")
    owners: list[type[Config]] = [RunConfig]
    for part in above:
        below: list[type[Config]] = []
        for cls in owners:
            if part in cls.model_fields:
                mark, inner = slot_of(cls, part), config_class_of(cls, part)
                below += kinds(mark.name).values() if mark else [inner] if inner else []
        owners = below
    return [cls for cls in owners if name in cls.model_fields]


def _is_many(path: str) -> bool:
    marks: list[SlotMark | None] = [slot_of(cls, path.rpartition(".")[2]) for cls in _owners(path)]
    return any(mark is not None and mark.many for mark in marks)
