"""A snapshot of the state that all runs share and that plug-ins must not change.

The state consists of jax's settings; the environment variables for devices, jax and taetpu; taetpu's names, classes
and tables; and the functions of libraries.
"""

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, NamedTuple

LIBRARIES = ("math", "numpy", "jax", "equinox", "optax")
VARIABLES = ("CUDA_", "JAX_", "LIBTPU_", "NVIDIA_", "TAETPU_", "TF_", "TPU_", "XLA_")
"""Prefixes of the environment variables that are covered."""
LAZY_ATTRIBUTES = ("_abc_", "__annotations", "__signature__", "__pydantic_")
"""Prefixes of the attributes that Python and pydantic may set when a class is first used."""
ABSENT = object()


class Change(NamedTuple):
    """A change to the value of `key` in `owner`. `before` or `after` is `ABSENT` if the key was added or removed."""

    name: str
    owner: Any
    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.name.startswith(("os.environ", "jax.config")):
            old, new = ("unset" if value is ABSENT else repr(value) for value in (self.before, self.after))
            return f"changes {self.name} from {old} to {new}"
        verb = "adds" if self.before is ABSENT else "removes" if self.after is ABSENT else "replaces"
        return f"{verb} {self.name}"

    def undo(self) -> None:
        """Restore the value."""
        if self.name.startswith("jax.config"):
            self.owner.update(self.key, self.before)
        elif isinstance(self.owner, MutableMapping):
            self.owner.pop(self.key, None)
            if self.before is not ABSENT:
                self.owner[self.key] = self.before
        elif self.before is ABSENT:
            delattr(self.owner, self.key)
        else:
            setattr(self.owner, self.key, self.before)


class Snapshot:
    """The shared state at the time of construction."""

    def __init__(self) -> None:
        self._held = [(form, owner, _content(owner)) for form, owner in _owners()]

    def changes(self) -> list[Change]:
        """Return the changes since construction, sorted by name. Modules imported since then are ignored."""
        changed = []
        for form, owner, old in self._held:
            new = _content(owner)
            for key in old.keys() | new.keys():
                before, after = old.get(key, ABSENT), new.get(key, ABSENT)
                if after is not before and _affects_runs(form, owner, before, after):
                    changed.append(Change(form.format(key), owner, key, before, after))
        return sorted(changed, key=lambda change: change.name)


def _owners() -> Iterator[tuple[str, Any]]:
    """Yield each object that holds shared state, and a format string for its values' names, such as `jax.config.{}`."""
    yield "os.environ[{!r}]", os.environ
    if "jax" in sys.modules:
        yield "jax.config.{}", sys.modules["jax"].config
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if package in LIBRARIES:
            yield f"{name}.{{}}", module
        elif package == "taetpu":
            yield f"{name}.{{}}", module
            for attribute, value in _content(module).items():
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{attribute}.{{}}", value
                elif isinstance(value, dict):
                    yield f"{name}.{attribute}[{{!r}}]", value


def _content(owner: Any) -> dict[str, Any]:
    """Return the values that an owner holds. A module's private names are omitted, because they may be caches."""
    if owner is os.environ:
        return {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}
    if isinstance(owner, ModuleType):
        return {name: value for name, value in vars(owner).items() if not name.startswith("_")}
    if isinstance(owner, type):
        return {name: value for name, value in vars(owner).items() if not name.startswith(LAZY_ATTRIBUTES)}
    return dict(owner) if isinstance(owner, Mapping) else {name: getattr(owner, name, None) for name in owner.values}


def _affects_runs(form: str, owner: Any, before: Any, after: Any) -> bool:
    """Return whether a change can affect other runs. Imports of submodules and names added to libraries cannot."""
    if form.startswith(("os.environ", "jax.config")):
        return before != after
    if not isinstance(owner, ModuleType):
        return True
    if before is ABSENT and isinstance(after, ModuleType):
        return False
    return form.startswith("taetpu") or callable(before)
