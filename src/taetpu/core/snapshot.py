"""A snapshot of the state that all runs share and that plug-ins must not change.

It covers taetpu's modules, the functions of libraries, jax's settings and environment variables.
"""

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

LIBRARIES = ("builtins", "math", "numpy", "jax", "equinox", "optax")
VARIABLES = ("CUDA_", "JAX_", "LIBTPU_", "NVIDIA_", "TAETPU_", "TF_", "TPU_", "XLA_")
ATTRIBUTES = {
    FunctionType: ("__code__", "__defaults__", "__kwdefaults__"),
    FieldInfo: ("default", "default_factory", "annotation"),
}
CUSTOM_RULES = ("custom_jvp", "custom_vjp")
"""Types of jax functions that hold custom derivative rules as attributes."""
TABLES = {
    "jax._src.interpreters.ad": ("primitive_jvps", "primitive_transposes"),
    "jax._src.interpreters.batching": ("primitive_batchers", "fancy_primitive_batchers"),
    "jax._src.interpreters.mlir": ("_lowerings", "_platform_specific_lowerings"),
}
"""jax's tables of rules for primitives, by module. Plug-ins may add rules for new primitives."""
MAX_DEPTH = 8  # maximum nesting of containers
ABSENT = object()

# Attributes of a class that Python and pydantic may set when it is first used.
LAZY_ATTRIBUTES = ("_abc_", "__annotations", "__signature__", "__pydantic_")
CHECKED_ATTRIBUTES = ("__pydantic_fields__", "__pydantic_validator__", "__pydantic_serializer__")


class Change(NamedTuple):
    """A change to the value that `owner` holds under `key`. `before` or `after` is `ABSENT` if there is no value.

    Attributes:
        cache: Whether the value may be a cache, because its name begins with an underscore.
    """

    name: str
    owner: Any
    key: Any
    before: Any
    after: Any
    cache: bool

    def __str__(self) -> str:
        if self.name.startswith(("os.environ", "jax.config")):
            old, new = ("unset" if value is ABSENT else repr(value) for value in (self.before, self.after))
            return f"changes {self.name} from {old} to {new}"
        if self.before is ABSENT or self.after is ABSENT:
            return f"{'adds' if self.before is ABSENT else 'removes'} {self.name}"
        return f"{'changes' if self.key is None else 'replaces'} {self.name}"

    def undo(self) -> None:
        """Restore the value."""
        owner, key, value = self.owner, self.key, self.before
        if isinstance(owner, list):
            owner[:] = value
        elif isinstance(owner, set):
            owner.clear()
            owner.update(value)
        elif isinstance(owner, MutableMapping):
            owner.pop(key, None) if value is ABSENT else owner.__setitem__(key, value)
        elif self.name.startswith("jax.config"):
            _set(owner, key, value)
        else:
            delattr(owner, key) if value is ABSENT else setattr(owner, key, value)


def _set(config: Any, name: str, value: Any) -> None:
    """Set one of jax's settings, even if a context manager that was not exited overrides it."""
    config.update(name, value)
    jax: Any = sys.modules["jax"]
    if getattr(config, name) != value and hasattr(jax, name.removeprefix("jax_")):
        getattr(jax, name.removeprefix("jax_"))(value).__enter__()


class _Held(NamedTuple):
    """A container and a copy of its content: a tuple for the items of a list or set, a dict for anything else."""

    name: str
    owner: Any
    content: Any
    cache: bool = False


class Snapshot:
    """The shared state at the time of construction."""

    def __init__(self) -> None:
        self._held = [held for name, module in list(sys.modules.items()) for held in _of_module(name, module)]
        self._variables, self._settings = _variables(), _settings()

    def changes(self) -> list[Change]:
        """Return the changes since construction, sorted by name. Modules imported since then are ignored."""
        found = [change for held in self._held for change in _changed(held)]
        found += _differences("os.environ[{!r}]", os.environ, self._variables, _variables())
        found += _differences("jax.config.{}", _config(), self._settings, _settings())
        return sorted(found, key=lambda change: change.name)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)}


def _config() -> Any:
    return getattr(sys.modules.get("jax"), "config", None)


def _settings() -> dict[str, Any]:
    config = _config()
    return {name: getattr(config, name, None) for name in config.values} if config else {}


def _differences(form: str, owner: Any, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    both = ((key, old.get(key, ABSENT), new.get(key, ABSENT)) for key in old.keys() | new.keys())
    return [Change(form.format(key), owner, key, a, b, cache=False) for key, a, b in both if a != b]


def _of_module(name: str, module: ModuleType) -> Iterator[_Held]:
    package = name.partition(".")[0]
    if package != "taetpu" and package not in LIBRARIES:
        return
    content = dict(vars(module))
    yield _Held(name, module, content)
    for table in TABLES.get(name, ()):
        if isinstance(held := content.get(table), dict):
            yield _Held(f"{name}.{table}", held, dict(held))
    for attribute, value in content.items():
        here = f"{name}.{attribute}"
        if isinstance(value, type):
            if value.__module__ == name:
                members = dict(vars(value))
                yield _Held(here, value, members)
                if package == "taetpu":
                    for key, member in members.items():
                        yield from _inside(f"{here}.{key}", member, name)
        elif package == "taetpu" and not attribute.startswith("__"):
            yield from _inside(here, value, name, cache=attribute.startswith("_"))
        elif isinstance(value, FunctionType) and value.__module__ == name:
            yield _Held(here, value, {key: getattr(value, key) for key in ATTRIBUTES[FunctionType]})
        elif type(value).__name__ in CUSTOM_RULES and value.__module__ == name:
            yield _Held(here, value, dict(vars(value)))


def _inside(name: str, value: Any, module: str, *, cache: bool = False, depth: int = MAX_DEPTH) -> Iterator[_Held]:
    """Yield the containers in a value: nested containers, a function's code and defaults, a field's default."""
    value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if (named := ATTRIBUTES.get(type(value))) is not None:
        if type(value) is FieldInfo or value.__module__ == module:
            yield _Held(name, value, {key: getattr(value, key) for key in named})
    elif depth and isinstance(value, dict):
        yield _Held(name, value, dict(value), cache)
        for key, item in list(value.items()):
            yield from _inside(f"{name}[{key!r}]", item, module, cache=cache, depth=depth - 1)
    elif depth and isinstance(value, list | set | tuple):
        if not isinstance(value, tuple):
            yield _Held(name, value, tuple(value), cache)
        for i, item in enumerate(value):
            yield from _inside(f"{name}[{i}]", item, module, cache=cache, depth=depth - 1)


def _changed(held: _Held) -> Iterator[Change]:
    name, owner, old, cache = held
    if isinstance(owner, list | set):
        if len(owner) != len(old) or any(a is not b for a, b in zip(owner, old, strict=True)):
            yield Change(name, owner, None, old, tuple(owner), cache)
        return
    if type(owner) in ATTRIBUTES:
        new: Any = {key: getattr(owner, key) for key in old}
    else:
        new = owner if isinstance(owner, dict) else vars(owner)
    ours = name.startswith("taetpu")
    form = f"{name}[{{!r}}]" if isinstance(owner, dict) else f"{name}.{{}}"
    for key, before in old.items():
        after = new.get(key, ABSENT)
        if after is not before and _counts(owner, key, before, after, ours):
            yield Change(form.format(key), owner, key, before, after, cache or _may_be_cache(owner, key, before))
    if ours and len(new) != len(old) - sum(key not in new for key in old):
        for key in [key for key in new if key not in old]:
            if _counts(owner, key, ABSENT, new[key], ours):
                cached = cache or _may_be_cache(owner, key, ABSENT)
                yield Change(form.format(key), owner, key, ABSENT, new[key], cached)


def _may_be_cache(owner: Any, key: Any, value: Any) -> bool:
    return isinstance(owner, ModuleType) and str(key).startswith("_") and not isinstance(value, type | FunctionType)


def _counts(owner: Any, key: Any, before: Any, after: Any, ours: bool) -> bool:
    """Return whether a change can affect other runs. Imports, first uses and caches of libraries cannot."""
    if isinstance(owner, ModuleType):
        if str(key).startswith("__") or (before is ABSENT and isinstance(after, ModuleType)):
            return False
        return ours or callable(before)
    if isinstance(owner, type):
        if not ours:
            return isinstance(before, FunctionType | property)
        return key in CHECKED_ATTRIBUTES or not str(key).startswith(LAZY_ATTRIBUTES)
    return True
