"""The settings of a program: values by dotted path. A nested mapping and a dotted key are the same setting."""

import math
from collections.abc import Mapping
from typing import Any

from taetpu.core.errors import KeyPath, UserError, suggest

Settings = dict[str, Any]
"""Values by dotted path: text, numbers, booleans, None, or lists."""


def flatten_settings(data: Mapping[Any, Any], place: KeyPath = ()) -> Settings:
    """Return nested settings by dotted path.

    Args:
        data: the settings as written.
        place: the place of `data` in the study file.

    Raises:
        UserError: If a key is not text, a number is not finite, or two keys are the same setting.
    """
    flat: Settings = {}
    _flatten(data, "", place, flat)
    for path in flat:
        parts = path.split(".")
        above = next((".".join(parts[:n]) for n in range(1, len(parts)) if ".".join(parts[:n]) in flat), None)
        if above is not None:
            problem = f"{above} is both a value and a mapping with {path}"
            raise UserError(problem, path=(*place, above), remedy="Remove or rename one of the settings.")
    return flat


def _flatten(data: Mapping[Any, Any], prefix: str, place: KeyPath, flat: Settings) -> None:
    for key, value in data.items():
        path = f"{prefix}{key}"
        if not isinstance(key, str | int) or not all(str(key).split(".")):
            remedy = "Write the name in quotes, with parts that are not empty."
            raise UserError(f"{key!r} is not the name of a setting", path=(*place, str(key)), remedy=remedy)
        if isinstance(value, Mapping) and value:
            _flatten(value, f"{path}.", (*place, key), flat)
        elif path in flat:
            raise UserError(f"the setting {path} is given twice", path=(*place, key), remedy="Remove one of them.")
        else:
            _check_value(value, (*place, key))
            flat[path] = value


def _check_value(value: Any, place: KeyPath) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        remedy = "Write it in quotes, if the program reads such a text."
        raise UserError(f"{value} is not a finite number", path=place, remedy=remedy)
    if isinstance(value, list | tuple | Mapping):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check_value(item, (*place, key))


def nest_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as nested mappings, one level for each part of a dotted path."""
    nested: dict[str, Any] = {}
    for path, value in settings.items():
        *above, name = path.split(".")
        inner = nested
        for part in above:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return nested


def apply_settings(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> Settings:
    """Return the baseline's settings with overrides applied.

    Args:
        base: the baseline's settings.
        overrides: values by dotted path, which may be nested.

    Raises:
        UserError: If the baseline has no such setting. The error's path starts with the override.
    """
    changed: Settings = {}
    for path, value in overrides.items():
        for name, leaf in flatten_settings({path: value}).items():
            check_setting(base, name, (path,))
            changed[name] = leaf
    return {**base, **changed}


def check_setting(base: Mapping[str, Any], path: str, place: KeyPath) -> None:
    """Raise `UserError` if the baseline has no setting of this name."""
    if path in base:
        return
    below = [name for name in base if name.startswith(f"{path}.")]
    if below:
        problem = f"{path} has settings below it, such as {below[0]}"
        remedy = f"Write {path}: {{...}} with these names."
    else:
        problem = f"{path!r} matches nothing: base has no such setting"
        near = suggest(path, base) if base else ""
        remedy = f"{near} If the program has it, add it to base with the baseline's value.".strip()
    raise UserError(problem, path=place, remedy=remedy)
