"""From plain data (as YAML gives it) to configs and components, with errors that say where and what would be right."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from taetpu.core.config import Component, Config, config_class_of, slot_of
from taetpu.core.errors import ErrorList, KeyPath, UserError, suggest
from taetpu.core.registry import kinds

C = TypeVar("C", bound=Config)

# What to write instead of a value of another type, by how pydantic calls the type.
RIGHT_TYPES = {
    "int": "a whole number, e.g. 4",
    "float": "a number, e.g. 0.1",
    "finite": "a finite number, e.g. 0.1",
    "bool": "true or false",
    "string": "text; in quotes, where it looks like a number",
    "tuple": "a list, e.g. [first, second]",
    "dict": "a mapping, e.g. {name: value}",
}

MAX_INT = 2**63 - 1

# How a remedy states a limit, by how pydantic calls it.
BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def load_config(cls: type[C], data: Any, path: KeyPath = ()) -> C:
    """Build `cls` from plain data (as YAML gives it), component slots and nested configs included.

    `none` means None wherever a field may be None, and a whole number may be written as a float (`1e3`).

    Raises:
        UserError: unknown or missing fields, unknown kinds, wrong types, values out of range, all of them together;
            paths say where, from `path` on. What may only follow from another mistake is left out: a missing field
            that an unknown one resembles, and checks of fields against each other where a field could not be read.
    """
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        raise UserError(f"{data!r} is not a mapping of settings", path=path, remedy=f"fields: {field_names(cls)}")
    values, mistakes = {}, ErrorList()
    unread = set[str]()  # fields that are written, or may be under another name
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
        wrong = {details["loc"][:1]: details for details in reversed(error.errors())}  # of a union's, the first
        there = [wrong[place] for place in reversed(wrong) if not unread.intersection(map(str, place))]
        mistakes += [_explained(cls, details, path) for details in there]
    except UserError as error:  # a config's own check of its fields against each other
        mistakes += [] if unread else error.within(*path).all_errors
    mistakes.raise_all()
    assert made is not None
    for name, value in made:
        if type(value) is int and abs(value) > MAX_INT:
            problem = f"{value} is not allowed: must fit 64 bits"
            raise UserError(problem, path=(*path, name), remedy=f"at most {MAX_INT}")
    return made


def build_component(slot: str, value: Any, path: KeyPath = ()) -> Component:
    """Build what fills a slot from `kind` or `{kind: ..., field: ...}`.

    Raises:
        UserError: no kind, an unknown kind, or fields that the kind refuses.
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
    if kind not in known:
        raise UserError(f"unknown {slot} kind {kind!r}", path=(*path, "kind"), remedy=suggest(kind, known))
    return load_config(known[kind], {k: v for k, v in value.items() if k != "kind"}, path)


def build_components(slot: str, value: Any, path: KeyPath = ()) -> dict[str, Component]:
    """Build what fills a slot that takes many.

    Raises:
        UserError: as `entries` and `component`.
    """
    found = parse_entries(slot, value, path)
    return {name: build_component(slot, own, (*path, name)) for name, own in found.items() if own is not None}


def parse_entries(slot: str, value: Any, path: KeyPath = ()) -> dict[str, Any]:
    """What a slot that takes many holds, `{name: settings}` or a list of kinds, as settings with their kind by name.

    A name is the kind where the settings give no other. None, or `none`, in place of settings leaves an entry out.

    Raises:
        UserError: it is neither; two entries of a list have one kind; a name has a dot.
    """
    if value is None or value == "none":
        return {}
    if isinstance(value, Mapping):
        found = dict(value)
    elif isinstance(value, str | list | tuple):
        found = {}
        for i, item in enumerate([value] if isinstance(value, str) else value):
            kind = str(item.get("kind")) if isinstance(item, Mapping) else str(item)
            if kind in found:
                remedy = f"give them names: {{first: {{kind: {kind}, ...}}, second: ...}}"
                raise UserError(f"{slot} {kind!r} is listed twice", path=(*path, i), remedy=remedy)
            found[kind] = item if isinstance(item, Mapping) else {}
    else:
        problem = f"{value!r} is neither a list of kinds nor a mapping of them"
        raise UserError(
            problem, path=path, remedy=f"Write [kind] or {{name: {{kind: ...}}}}. {suggest('', kinds(slot))}"
        )
    for name in found:
        if "." in str(name):
            raise UserError(f"{name!r} cannot be a name", path=(*path, name), remedy="leave out the dot")
    return {str(name): _with_kind(str(name), settings) for name, settings in found.items()}


def _with_kind(name: str, settings: Any) -> Any:
    if isinstance(settings, Mapping):
        return {"kind": name, **settings}
    return None if settings == "none" else settings


def replace_fields(config: C, **fields: Any) -> C:
    """A copy with other fields, validated."""
    return load_config(type(config), {**{n: getattr(config, n) for n in type(config).model_fields}, **fields})


def field_names(cls: type[Config]) -> str:
    return ", ".join(cls.model_fields)


def _field(cls: type[Config], name: str, value: Any, path: KeyPath) -> Any:
    slot = slot_of(cls, name)
    if slot is not None:
        return build_components(slot.name, value, path) if slot.many else build_component(slot.name, value, path)
    allowed = get_args(cls.model_fields[name].annotation)
    if value == "none" and NoneType in allowed and str not in allowed:
        return None
    inner = config_class_of(cls, name)
    if inner is not None and (isinstance(value, Mapping) or cls.model_fields[name].annotation is inner):
        return load_config(inner, value, path)
    if inner is not None and isinstance(value, list | tuple):
        return tuple(load_config(inner, item, (*path, i)) for i, item in enumerate(value))
    types = _leaves(cls.model_fields[name].annotation)
    return normalize_value(value, integers=int in types and float not in types)


def normalize_value(value: Any, integers: bool = False) -> Any:
    """A value with tuples for lists and, where `integers` are asked for, its whole floats as integers."""
    if isinstance(value, list | tuple):
        return tuple(normalize_value(item, integers) for item in value)
    return int(value) if integers and isinstance(value, float) and value.is_integer() else value


def _leaves(annotation: Any) -> set[Any]:
    """The types that an annotation is made of."""
    inner = get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None]
    return set[Any]().union(*map(_leaves, inner)) if inner else {annotation}


def _explained(cls: type[Config], first: ErrorDetails, path: KeyPath) -> UserError:
    where = tuple(part for part in first["loc"] if not str(part).startswith("function-"))
    if first["type"] == "missing":
        given = cls.model_fields[str(where[0])]
        hint = f" ({given.description.rstrip('.')})" if given.description else ""
        return UserError(f"{where[0]!r} is missing{hint}", path=path, remedy=f"add {where[0]}: ...")
    where = where[:1] if where and where[0] in cls.model_fields else ()
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = message.replace("should be", "must be").replace("a valid tuple", "a list")
    remedy = first.get("ctx", {}).get("remedy") or RIGHT_TYPES.get(first["type"].split("_")[0])
    if first["type"] == "too_short" and where:  # of a list; what to put in it, its description says
        message, remedy = "must have at least one entry", cls.model_fields[str(where[0])].description
    bounds = {name: bound for name, bound in first.get("ctx", {}).items() if name in BOUNDS}
    if remedy is None and where and bounds:
        remedy = _instead(cls.model_fields[str(where[0])], bounds)
    given = list(first["input"]) if isinstance(first["input"], tuple) else first["input"]  # as YAML has it
    return UserError(f"{given!r} is not allowed: {message}", path=(*path, *where), remedy=remedy)


def _instead(field: FieldInfo, bounds: Mapping[str, Any]) -> str:
    """What may be written instead of what is out of bounds: the limit, and the default if there is one."""
    shown = {name: f"{bound:g}" if isinstance(bound, float) else str(bound) for name, bound in bounds.items()}
    limit = ", ".join(f"{BOUNDS[name]} {bound}" for name, bound in shown.items())
    if field.default is not None and field.default is not PydanticUndefined:
        return f"{limit}, e.g. {field.default}, the default"
    if "gt" in bounds:
        return f"{limit}, e.g. {bounds['gt'] + (1 if isinstance(bounds['gt'], int) else 0.01):g}"
    return limit
