"""Parsing of plain data, as read from YAML, into configs and components, with errors that name a path and a remedy."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from taetpu.core.config import Component, Config, config_class_of, has_entries, slot_of, traced_fields
from taetpu.core.errors import ErrorList, KeyPath, UserError, check_known, suggest
from taetpu.core.kind_docs import field_docs
from taetpu.core.registry import kinds

C = TypeVar("C", bound=Config)

# Remedies for a value of a wrong type, by pydantic's name for the right type.
RIGHT_TYPES = {
    "int": "Use a whole number, e.g. 4.",
    "float": "Use a number, e.g. 0.1.",
    "finite": "Use a finite number, e.g. 0.1.",
    "bool": "Use true or false.",
    "string": "Use text, in quotes if it looks like a number.",
    "tuple": "Use a list, e.g. [first, second].",
    "dict": "Use a mapping, e.g. {name: value}.",
}

MAX_INT = 2**63 - 1
MAX_FLOAT, MIN_FLOAT = 2.0**128 - 2.0**104, 2.0**-126
"""The largest and the smallest positive normal number of float32."""

# The wording of a limit in a remedy, by pydantic's name for the limit.
BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def load_config(cls: type[C], data: Any, path: KeyPath = ()) -> C:
    """Build a config from plain data, including its component slots and nested configs.

    The text `none` means None in every field that may be None. An integer may be written as a float (`1e3`).

    Args:
        cls: The config class.
        data: A mapping from fields to values, or an instance of `cls`, which is returned unchanged.
        path: The path of `data` in its document.

    Raises:
        UserError: if fields are unknown or missing, if kinds are unknown, or if values have a wrong type or are out of
            range. All errors are raised together, and their paths start with `path`. Errors that are probably caused by
            other errors are omitted: a missing field with a name similar to an unknown field, and the results of
            cross-field checks if a field is invalid.
    """
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        raise UserError(
            f"{data!r} is not a mapping of settings",
            path=path,
            remedy=f"Use a mapping with the fields: {', '.join(cls.model_fields)}.",
        )
    values, mistakes = {}, ErrorList()
    unread = set[str]()  # fields that are invalid, or resemble an unknown field
    for key, value in data.items():
        with mistakes.collect():
            if key not in cls.model_fields:
                unread |= set(get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.5)) - data.keys()
                raise UserError(f"unknown field {key!r}", path=(*path, key), remedy=suggest(str(key), cls.model_fields))
            unread.add(key)
            values[key] = _field(cls, key, value, (*path, key))
            unread.remove(key)
    made = None
    try:
        made = cls.model_validate(values)
    except ValidationError as error:
        wrong = {details["loc"][:1]: details for details in reversed(error.errors())}  # the first error of a union
        shown = [wrong[place] for place in reversed(wrong) if not unread.intersection(map(str, place))]
        mistakes += [_explain(cls, details, path) for details in shown]
    except UserError as error:  # a cross-field check of the config
        mistakes += [] if unread else error.within(*path).all_errors
    mistakes.raise_all()
    assert made is not None
    for name, value in made:
        _check_range(value, (*path, name), name in traced_fields(cls))
    return made


def _check_range(value: Any, path: KeyPath, traced: bool) -> None:
    """Raise `UserError` if a number does not fit in 64 bits, or if float32, in which programs compute, cannot hold it.

    Args:
        value: A number, or a tuple or mapping with numbers. Other values are not checked.
        path: The path of the value.
        traced: Whether the number enters a program as an array of float32, where a tiny number becomes 0.
    """
    if isinstance(value, Mapping | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check_range(item, (*path, key), traced)
    elif type(value) is int and abs(value) > MAX_INT:
        problem = f"{value} is out of range: integers must fit in 64 bits"
        raise UserError(problem, path=path, remedy=f"Use at most {MAX_INT}.")
    elif type(value) is float and abs(value) > MAX_FLOAT:
        problem = f"{value:g} is out of range: numbers must fit in float32"
        raise UserError(problem, path=path, remedy=f"Use at most {MAX_FLOAT:.3g}.")
    elif traced and type(value) is float and 0 < abs(value) < MIN_FLOAT:
        problem = f"{value:g} is out of range: in float32, numbers below {MIN_FLOAT:.3g} are 0"
        raise UserError(problem, path=path, remedy=f"Use 0, or at least {MIN_FLOAT:.3g}.")


def build_component(slot: str, value: Any, path: KeyPath = ()) -> Component:
    """Build the component of a slot from `kind` or `{kind: ..., field: ...}`.

    Args:
        slot: The name of the slot.
        value: The kind, a mapping with the kind and its fields, or a component, which is returned unchanged.
        path: The path of `value` in its document.

    Raises:
        UserError: if the kind is missing or unknown, or if it rejects a field.
    """
    known = kinds(slot)
    if isinstance(value, Component) and value.slot == slot:
        return value
    if value is None:
        value = "none"
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping) or "kind" not in value:
        raise UserError(
            f"{slot} needs a kind, got {value!r}", path=path, remedy=f"Write {{kind: ...}}. {suggest('', known)}"
        )
    kind = str(value["kind"])
    check_known(kind, known, f"unknown {slot} kind {kind!r}", path=(*path, "kind"))
    return load_config(known[kind], {k: v for k, v in value.items() if k != "kind"}, path)


def build_components(slot: str, value: Any, path: KeyPath = ()) -> dict[str, Component]:
    """Build the named components of a slot that accepts several components.

    Raises:
        UserError: if `parse_entries` or `build_component` rejects the value.
    """
    entries = parse_entries(slot, value, path)
    return {
        name: build_component(slot, settings, (*path, name))
        for name, settings in entries.items()
        if settings is not None
    }


def parse_entries(slot: str, value: Any, path: KeyPath = ()) -> dict[str, Any]:
    """Return the settings of each component, including its kind, by name, for a slot that accepts several components.

    Args:
        slot: The name of the slot.
        value: `{name: settings}` or a list of kinds. An entry's name is its kind unless its settings contain a `kind`.
            An entry whose settings are None or `none` is removed.
        path: The path of `value` in its document.

    Raises:
        UserError: if `value` has another type, if two list entries have the same kind, or if a name contains a dot.
    """
    if value is None or value == "none":
        return {}
    if isinstance(value, Mapping):
        entries = dict(value)
    elif isinstance(value, str | list | tuple):
        entries = {}
        for i, item in enumerate([value] if isinstance(value, str) else value):
            if isinstance(item, Mapping) and "kind" not in item:
                problem = f"an entry of a list of {slot} kinds has no kind: {item!r}"
                remedy = "Write a kind, {kind: ..., field: ...}, or a mapping {name: {kind: ..., field: ...}}."
                raise UserError(problem, path=(*path, i), remedy=remedy)
            kind = str(item.get("kind") if isinstance(item, Mapping) else item)
            if kind in entries:
                remedy = f"Give the entries names: {{first: {{kind: {kind}, ...}}, second: ...}}."
                raise UserError(f"{slot} {kind!r} is listed twice", path=(*path, i), remedy=remedy)
            entries[kind] = item if isinstance(item, Mapping) else {}
    else:
        problem = f"{value!r} is neither a list of kinds nor a mapping from names to kinds"
        raise UserError(
            problem, path=path, remedy=f"Write [kind] or {{name: {{kind: ...}}}}. {suggest('', kinds(slot))}"
        )
    for name in entries:
        refuse_dots(str(name), path)
    return {str(name): _with_kind(str(name), settings) for name, settings in entries.items()}


def refuse_dots(name: str, path: KeyPath, remedy: str = "Remove the dot.") -> None:
    """Raise `UserError` if the name of an entry contains a dot, which separates names in paths."""
    if "." in name:
        raise UserError(f"{name!r} is not a valid name", path=(*path, name), remedy=remedy)


def _with_kind(name: str, settings: Any) -> Any:
    if isinstance(settings, Mapping):
        return {"kind": name, **settings}
    return None if settings == "none" else settings


def _field(cls: type[Config], name: str, value: Any, path: KeyPath) -> Any:
    slot = slot_of(cls, name)
    if slot is not None:
        return build_components(slot.name, value, path) if slot.many else build_component(slot.name, value, path)
    allowed = get_args(cls.model_fields[name].annotation)
    if value == "none" and NoneType in allowed and str not in allowed:
        return None
    inner = config_class_of(cls, name)
    if inner is not None and has_entries(cls, name) and isinstance(value, Mapping):
        for entry in value:
            pattern = f" To match names, write {{NAME: {{match: {entry!r}}}}}." if "match" in inner.model_fields else ""
            refuse_dots(str(entry), path, f"Remove the dot.{pattern}")
        return {
            str(entry): load_config(inner, settings, (*path, entry))
            for entry, settings in value.items()
            if settings != "none"
        }
    if inner is not None and (isinstance(value, Mapping) or cls.model_fields[name].annotation is inner):
        return load_config(inner, value, path)
    if inner is not None and isinstance(value, list | tuple):
        return tuple(load_config(inner, item, (*path, i)) for i, item in enumerate(value))
    types = _leaves(cls.model_fields[name].annotation)
    return normalize_value(value, integers=int in types and float not in types)


def normalize_value(value: Any, integers: bool = False) -> Any:
    """Return a value with lists converted to tuples and, if `integers` is set, whole floats to integers."""
    if isinstance(value, list | tuple):
        return tuple(normalize_value(item, integers) for item in value)
    return int(value) if integers and isinstance(value, float) and value.is_integer() else value


def _leaves(annotation: Any) -> set[Any]:
    """Return the types that an annotation consists of."""
    inner = get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None]
    return set[Any]().union(*map(_leaves, inner)) if inner else {annotation}


def _explain(cls: type[Config], first: ErrorDetails, path: KeyPath) -> UserError:
    """Convert an error from pydantic to a `UserError` with a path and a remedy."""
    where = tuple(part for part in first["loc"] if not str(part).startswith("function-"))
    if first["type"] == "missing":
        about = field_docs(cls)[str(where[0])]
        hint = f" ({about.rstrip('.')})" if about else ""
        return UserError(f"{where[0]!r} is missing{hint}", path=path, remedy=f"Add {where[0]}: ...")
    where = where[:1] if where and where[0] in cls.model_fields else ()
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = message.replace("should be", "must be").replace("a valid tuple", "a list")
    if where and first["type"] in ("literal_error", "model_type", "dataclass_type"):
        nested = config_class_of(cls, str(where[0]))
        if nested is not None:
            word = f"{message.removeprefix('must be ')} or " if first["type"] == "literal_error" else ""
            message = f"must be {word}a mapping of {', '.join(nested.model_fields)}"
    remedy = first.get("ctx", {}).get("remedy") or RIGHT_TYPES.get(first["type"].split("_")[0])
    if first["type"] == "too_short" and where:  # an empty list; the field's description is the remedy
        message, remedy = "must have at least one entry", field_docs(cls)[str(where[0])]
    if remedy is None and first["type"] == "literal_error":
        values = re.findall(r"'([^']*)'", first.get("ctx", {}).get("expected", ""))
        near = [f"Did you mean {value!r}? " for value in get_close_matches(str(first["input"]), values, n=1)]
        message, remedy = "", f"{''.join(near)}Use {message.removeprefix('must be ')}."
    bounds = {name: bound for name, bound in first.get("ctx", {}).items() if name in BOUNDS}
    if remedy is None and where and bounds:
        remedy = _instead(cls.model_fields[str(where[0])], bounds)
    given = list(first["input"]) if isinstance(first["input"], tuple) else first["input"]  # as in YAML
    problem = f"{given!r} is not allowed" + (f": {message}" if message else "")
    return UserError(problem, path=(*path, *where), remedy=remedy)


def _instead(field: FieldInfo, bounds: Mapping[str, Any]) -> str:
    """Return a remedy for an out-of-bounds value. It names the limit and the default, if the field has one."""
    shown = {name: f"{bound:.10g}" if isinstance(bound, float) else str(bound) for name, bound in bounds.items()}
    limit = " and ".join(f"{BOUNDS[name]} {bound}" for name, bound in shown.items())
    if field.default is not None and field.default is not PydanticUndefined:
        return f"Use a value {limit}, e.g. {field.default}, the default."
    if "gt" in bounds:
        return f"Use a value {limit}, e.g. {bounds['gt'] + (1 if isinstance(bounds['gt'], int) else 0.01):g}."
    return f"Use a value {limit}."
