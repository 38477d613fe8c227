"""The registry of kinds: the named components of each slot. A component is registered when its module is imported."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import TypeVar

from taetpu.core.config import Component
from taetpu.core.errors import UserError, check_known, suggest

C = TypeVar("C", bound=Component)

KIND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")

# The modules and packages with the built-in kinds. They are imported when their slot is first used, so that importing
# taetpu is fast.
IN_MODEL = (
    "mixer", "position", "rope_scaling", "norm", "ffn", "residual", "short_conv", "order", "layer_dropout", "after",
    "adapter", "mask", "qk_norm", "values", "scores", "normalizer", "gate", "embedding", "stem", "readout", "logits",
    "head", "init",
)  # fmt: skip
BUILTIN_MODULES = {
    **{slot: f"taetpu.nn.{slot}" for slot in IN_MODEL},
    "after": "taetpu.nn.post_block",
    "optimizer": "taetpu.optim.optimizers",
    "schedule": "taetpu.optim.schedules",
    "stop": "taetpu.optim.stopping",
    "evaluate": "taetpu.optim.evaluated",
    "objective": "taetpu.optim.objectives",
    "hook": "taetpu.optim.hooks",
    "metric": "taetpu.optim.metrics",
    "eval_metric": "taetpu.optim.eval_metrics",
    "task": "taetpu.data",
    "tokenizer": "taetpu.data.tokenizers",
    "tracker": "taetpu.trackers.kinds",
}

_KINDS: dict[str, dict[str, type[Component]]] = {slot: {} for slot in BUILTIN_MODULES}
_OPENED: dict[str, type[Component]] = {}  # the slots that plug-ins have opened, with the base of their kinds


def slots() -> tuple[str, ...]:
    """Return the names of all slots, including those that plug-ins have opened."""
    return (*BUILTIN_MODULES, *_OPENED)


def slot_base(slot: str) -> type[Component] | None:
    """Return the base of the kinds of a slot that a plug-in has opened; None for other slots."""
    return _OPENED.get(slot)


def open_slot(slot: str) -> Callable[[type[C]], type[C]]:
    """Open a new slot for the kinds that extend the decorated class: `@open_slot("feature-map")`.

    A component of a plug-in can then have a field `Annotated[Any, SlotMark("feature-map")]`. The methods of the class
    define the arguments of the calls that every kind must accept.

    Args:
        slot: The name of the slot. It may contain letters, digits, `_`, `+` and `-`.

    Returns:
        A class decorator.

    Raises:
        UserError: if the name is not valid or belongs to another slot, or if the class is not a `Component`.
    """
    if not isinstance(slot, str) or not KIND_NAME.fullmatch(slot):
        raise UserError(f"{slot!r} is not a name for a slot", remedy="Use letters, digits and hyphens, e.g. 'mine'.")

    def opened(cls: type[C]) -> type[C]:
        if not isinstance(cls, type) or not issubclass(cls, Component):
            made = getattr(cls, "__name__", repr(cls))
            problem = f"{made}, the base of slot {slot!r}, is not a Component"
            raise UserError(problem, remedy=f"Define class {made}(Component).")
        known = _OPENED.get(slot)
        same = known is not None and (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)
        if slot in slots() and not same:
            raise UserError(f"slot {slot!r} exists already", remedy="Use another name.")
        _OPENED[slot] = cls
        _KINDS.setdefault(slot, {})
        return cls

    return opened


def register(slot: str, kind: str) -> Callable[[type[C]], type[C]]:
    """Register a config class as a kind of a slot: `@register("ffn", "mine")`.

    Args:
        slot: The name of the slot.
        kind: The name of the kind. It may contain letters, digits, `_`, `+` and `-`.

    Returns:
        A class decorator.

    Raises:
        UserError: if the slot is unknown, if the kind is not a valid name or is registered by another class, or if the
            class is not a `Component`.
    """
    if not isinstance(slot, str) or slot not in slots():
        raise UserError(f"unknown slot {slot!r}", remedy=f"{suggest(str(slot), slots())} Or open it with open_slot.")
    if not isinstance(kind, str) or not KIND_NAME.fullmatch(kind):
        raise UserError(
            f"{kind!r} is not a name for a kind of {slot}", remedy="Use letters, digits and hyphens, e.g. 'mine'."
        )

    def name(cls: type[C]) -> type[C]:
        if not isinstance(cls, type) or not issubclass(cls, Component):
            made = getattr(cls, "__name__", repr(cls))
            remedy = f"Define class {made}(Component), with an init that builds the module."
            raise UserError(f"{made}, registered as {slot} {kind!r}, is not a Component", remedy=remedy)
        taken = _KINDS[slot].get(kind)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            problem = f"{slot} {kind!r} is already registered by {taken.__module__}.{taken.__qualname__}"
            raise UserError(problem, remedy="Rename one of the two kinds.")
        cls.slot, cls.kind = slot, kind
        _KINDS[slot][kind] = cls
        return cls

    return name


def kinds(slot: str) -> Mapping[str, type[Component]]:
    """Return the config classes for a slot, by kind."""
    check_known(slot, slots(), f"unknown slot {slot!r}")
    if slot in BUILTIN_MODULES:
        import_builtin_kinds(slot)
    return _KINDS[slot]


@cache
def import_builtin_kinds(slot: str) -> None:
    """Import the module of a slot, or its package with all modules, in whose order the kinds are then listed."""
    module = import_module(BUILTIN_MODULES[slot])
    for inner in walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
        import_module(inner.name)
    ordered = sorted(_KINDS[slot].items(), key=lambda item: item[1].__module__)
    _KINDS[slot].clear()
    _KINDS[slot].update(ordered)


def unregister(module: str) -> None:
    """Remove the kinds that a module registered, and the slots that it opened."""
    for slot in [slot for slot, base in _OPENED.items() if base.__module__ == module]:
        del _OPENED[slot], _KINDS[slot]
    for known in _KINDS.values():
        for kind in [kind for kind, cls in known.items() if cls.__module__ == module]:
            del known[kind]


def registrations() -> tuple[dict[str, dict[str, type[Component]]], dict[str, type[Component]]]:
    """Return copies of the registered kinds and of the opened slots, for `restore`."""
    return {slot: dict(known) for slot, known in _KINDS.items()}, dict(_OPENED)


def restore(kept: tuple[dict[str, dict[str, type[Component]]], dict[str, type[Component]]]) -> None:
    """Make the kinds and slots those of an earlier call of `registrations`."""
    kinds_before, opened_before = kept
    _KINDS.clear()
    _KINDS.update(kinds_before)
    _OPENED.clear()
    _OPENED.update(opened_before)


def registered_by(module: str) -> list[type[Component]]:
    """Return the config classes that a module registered."""
    return [cls for known in _KINDS.values() for cls in known.values() if cls.__module__ == module]
