"""The registry of kinds: the named components of each slot. A component is registered when its module is imported."""

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TypeVar

from taetpu.core.config import Component
from taetpu.core.errors import UserError, suggest

C = TypeVar("C", bound=Component)

KIND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*")

# The modules with the built-in kinds. A module is imported when its slot is first used, so that importing taetpu is
# fast.
BUILTIN_MODULES = {
    "mixer": "taetpu.nn.attention",
    "position": "taetpu.nn.position",
    "norm": "taetpu.nn.norm",
    "ffn": "taetpu.nn.ffn",
    "residual": "taetpu.nn.residual",
    "order": "taetpu.nn.order",
    "after": "taetpu.nn.post_block",
    "adapter": "taetpu.nn.adapter",
    "mask": "taetpu.nn.mask",
    "qk_norm": "taetpu.nn.qk_norm",
    "values": "taetpu.nn.values",
    "scores": "taetpu.nn.scores",
    "normalizer": "taetpu.nn.normalizer",
    "gate": "taetpu.nn.gate",
    "embedding": "taetpu.nn.embedding",
    "stem": "taetpu.nn.stem",
    "logits": "taetpu.nn.logits",
    "head": "taetpu.nn.head",
    "init": "taetpu.nn.init",
    "optimizer": "taetpu.optim.optimizers",
    "schedule": "taetpu.optim.schedules",
    "hook": "taetpu.optim.hooks",
    "metric": "taetpu.optim.metrics",
    "eval_metric": "taetpu.optim.eval_metrics",
    "task": "taetpu.data.task_kinds",
    "tokenizer": "taetpu.data.tokenizers",
    "tracker": "taetpu.trackers.kinds",
}

_KINDS: dict[str, dict[str, type[Component]]] = {slot: {} for slot in BUILTIN_MODULES}


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
    if not isinstance(slot, str) or slot not in BUILTIN_MODULES:
        raise UserError(f"unknown slot {slot!r}", remedy=suggest(str(slot), BUILTIN_MODULES))
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
    if slot not in BUILTIN_MODULES:
        raise UserError(f"unknown slot {slot!r}", remedy=suggest(slot, BUILTIN_MODULES))
    import_module(BUILTIN_MODULES[slot])
    return _KINDS[slot]


def unregister(module: str) -> None:
    """Remove the kinds that a module registered."""
    for known in _KINDS.values():
        for kind in [kind for kind, cls in known.items() if cls.__module__ == module]:
            del known[kind]


def registered_by(module: str) -> list[type[Component]]:
    """Return the config classes that a module registered."""
    return [cls for known in _KINDS.values() for cls in known.values() if cls.__module__ == module]
