"""What an arm changes, in words."""

from collections.abc import Collection, Mapping
from typing import Any


def effective_overrides(overrides: Mapping[str, Any], idle: Collection[str]) -> dict[str, Any]:
    """The overrides of an arm that change something; `idle` ones have the baseline's value, as cells of a grid may."""
    return {path: value for path, value in overrides.items() if path not in idle}


def changes_of(study: Mapping[str, Any], arm: str) -> dict[str, Any]:
    """The overrides of a frozen study's arm that change something.

    Studies frozen by earlier versions do not say which are idle; numbers and text that equal the baseline's are.
    """
    overrides: Mapping[str, Any] = study["arms"][arm]
    if "idle" in study:
        return effective_overrides(overrides, study["idle"].get(arm, ()))
    return {
        path: value
        for path, value in overrides.items()
        if len(overrides) < 2 or value != _value_at(study["base"], path)
    }


def _value_at(base: Mapping[str, Any], path: str) -> Any:
    value: Any = base
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def format_changes(diff: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """What an arm changes: `model.position: rope -> none`, or without the old value where the baseline has none, or has
    the same.
    """
    return "; ".join(_format_change(path, value, base) for path, value in diff.items())


def _format_change(path: str, value: Any, base: Mapping[str, Any]) -> str:
    old = _value_at(base, path)
    new = _format_value(value)
    return f"{path}: {new}" if old is None or old == value else f"{path}: {_format_old(old)} -> {new}"


def _format_old(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, Mapping) and "kind" in value else _format_value(value)


def _format_value(value: Any) -> str:
    """A component as its kind with the fields that are given, anything else as YAML would have it."""
    if isinstance(value, Mapping):
        fields = [f"{key}={_format_value(part)}" for key, part in value.items() if key != "kind"]
        return str(value.get("kind", "")) + (f"({', '.join(fields)})" if fields else "")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
