"""Short representations of the objects that a user holds: arrays by shape, long values by their type or length."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

LONGEST = 60
"""Maximum number of characters of a value within a representation."""
ITEMS = 4
"""Maximum number of items of a sequence or mapping that are shown."""


def short_repr(self: Any) -> str:
    """Return the name of a dataclass with its fields in short form, for use as `__repr__`."""
    shown = (f"{field.name}={shorten_value(getattr(self, field.name))}" for field in fields(self) if field.repr)
    return f"{type(self).__name__}({', '.join(shown)})"


def shorten_value(value: Any) -> str:
    """Return the representation of a value in at most about `LONGEST` characters, e.g. `float32[2, 16]` of an array."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}" if value.shape else str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= LONGEST else f"{value[:LONGEST]!r}..."
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _shorten_collection(value)
    text = repr(value)
    return text if len(text) <= LONGEST else f"{type(value).__name__}(...)"


def _shorten_collection(value: Any) -> str:
    if len(value) <= ITEMS:
        if isinstance(value, Mapping):
            inner = ", ".join(f"{key!r}: {shorten_value(item)}" for key, item in value.items())
        else:
            inner = ", ".join(map(shorten_value, value))
        if len(inner) <= LONGEST:
            return f"{{{inner}}}" if isinstance(value, Mapping | set | frozenset) else f"[{inner}]"
    return f"<{len(value):,} {'entries' if isinstance(value, Mapping) else 'items'}>"
