"""What an arm changes, in words."""

from collections.abc import Mapping
from typing import Any


def in_words(diff: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """What an arm changes: `model.position: rope -> none`, or without the old value where the baseline has none, or has
    the same.
    """
    return "; ".join(_change(path, value, base) for path, value in diff.items())


def _change(path: str, value: Any, base: Mapping[str, Any]) -> str:
    old: Any = base
    for part in path.split("."):
        old = old.get(part) if isinstance(old, Mapping) else None
    new = _short(value)
    return f"{path}: {new}" if old is None or old == value else f"{path}: {_kind(old)} -> {new}"


def _kind(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, Mapping) and "kind" in value else _short(value)


def _short(value: Any) -> str:
    """A component as its kind with the fields that are given, anything else as YAML would have it."""
    if isinstance(value, Mapping):
        fields = [f"{key}={_short(part)}" for key, part in value.items() if key != "kind"]
        return str(value.get("kind", "")) + (f"({', '.join(fields)})" if fields else "")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_short, value))}]"
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
