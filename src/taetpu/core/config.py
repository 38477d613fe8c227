"""Configs: frozen, typed, loaded from plain data; and the split of a config into a program's structure and its numbers.

A field marked `Traced` holds a number that enters the compiled program as an array, so that runs which differ in it
alone share one compile. `split` takes those numbers out of a config tree, `bind` puts arrays (or tracers) back in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from taetpu.core.errors import UserError, Where, suggest


@dataclass(frozen=True)
class Traced:
    """Marks a config field whose value is an input of the compiled program, not a constant in it.

    Args:
        neutral: the value at which the program is another one (dropout 0 needs no random numbers); such a field stays
            part of the structure. Left out, every value is traced.
        promote: a neutral value may be traced after all when another run of the study needs the field, so that both
            share a program (a mask of ones beside a mask with a hole).
        encode: `(config, value) -> number or numpy array`, for values that are not numbers themselves.
    """

    neutral: Any = ...
    promote: bool = False
    encode: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True)
class SlotMark:
    """Marks a field filled by a component of the named slot."""

    name: str


class Config(BaseModel):
    """Base of every config. Frozen, no unknown fields, no silent conversion (a string is not a number)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )


class Component(Config):
    """What fills a slot. `@register(slot, kind)` names it; `check` refuses what does not fit the model's sizes."""

    slot: ClassVar[str] = ""
    kind: ClassVar[str] = ""

    def check(self, dims: Any) -> None:
        """Raise `UserError` with the field as its path when this component cannot be built at `dims`."""


C = TypeVar("C", bound=Config)


class Hole:
    """Stands in a structure where a traced number was taken out."""

    def __repr__(self) -> str:
        return "<traced>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hole)

    def __hash__(self) -> int:
        return hash(Hole)


def marks(cls: type[Config]) -> dict[str, Traced]:
    """The traced fields of a config class."""
    found = {}
    for name, info in cls.model_fields.items():
        for mark in info.metadata:
            if isinstance(mark, Traced):
                found[name] = mark
    return found


def slot_of(cls: type[Config], field: str) -> str | None:
    """The slot that a field holds, or None."""
    return next((m.name for m in cls.model_fields[field].metadata if isinstance(m, SlotMark)), None)


def config_of(cls: type[Config], field: str) -> type[Config] | None:
    """The config class of a field that holds one (or none, or a tuple of them); None for any other field."""
    kind = cls.model_fields[field].annotation
    return next((k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, Config)), None)


# --- loading ---------------------------------------------------------------------------------------------------------


def load(cls: type[C], data: Any, path: Where = ()) -> C:
    """Build `cls` from plain data (as YAML gives it), component slots and nested configs included.

    `none` means None wherever a field may be None.

    Raises:
        UserError: unknown field or kind, wrong type, value out of range; its path says where, from `path` on.
    """
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        raise UserError(f"{data!r} is not a mapping of settings", path=path, remedy=f"fields: {names(cls)}")
    values = {}
    for key, value in data.items():
        if key not in cls.model_fields:
            raise UserError(f"unknown field {key!r}", path=(*path, key), remedy=suggest(str(key), cls.model_fields))
        values[key] = _field(cls, key, value, (*path, key))
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise _explained(cls, error, path) from None
    except UserError as error:  # a config's own check of its fields against each other
        raise error.at(*path) from None


def names(cls: type[Config]) -> str:
    return ", ".join(cls.model_fields)


def _field(cls: type[Config], name: str, value: Any, path: Where) -> Any:
    from taetpu.core.registry import component

    slot = slot_of(cls, name)
    if slot is not None:
        return component(slot, value, path)
    allowed = get_args(cls.model_fields[name].annotation)
    if value == "none" and NoneType in allowed and str not in allowed:
        return None
    inner = config_of(cls, name)
    if inner is not None and (isinstance(value, Mapping) or cls.model_fields[name].annotation is inner):
        return load(inner, value, path)
    if inner is not None and isinstance(value, list | tuple):
        return tuple(load(inner, item, (*path, i)) for i, item in enumerate(value))
    return _tuples(value) if isinstance(value, list) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _explained(cls: type[Config], error: ValidationError, path: Where) -> UserError:
    first = error.errors()[0]
    where = tuple(part for part in first["loc"] if not str(part).startswith("function-"))
    if first["type"] == "missing":
        given = cls.model_fields[str(where[0])]
        hint = f" ({given.description})" if given.description else ""
        return UserError(f"{where[0]!r} is missing{hint}", path=path, remedy=f"add {where[0]}: ...")
    where = where[:1] if where and where[0] in cls.model_fields else ()
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = message.replace("should be", "must be")
    given = list(first["input"]) if isinstance(first["input"], tuple) else first["input"]  # as YAML has it
    return UserError(f"{given!r} is not allowed: {message}", path=(*path, *where))


# --- plain data ------------------------------------------------------------------------------------------------------


def to_data(value: Any) -> Any:
    """A config tree as plain data: what YAML, JSON and the identity hash see. A component carries its kind."""
    if isinstance(value, Config):
        fields = {name: to_data(getattr(value, name)) for name in type(value).model_fields}
        return {"kind": value.kind, **fields} if isinstance(value, Component) else fields
    if isinstance(value, Mapping):
        return {str(k): to_data(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_data(v) for v in value]
    return str(value) if isinstance(value, Hole) else value


# --- structure and numbers -------------------------------------------------------------------------------------------


def split(config: C, live: frozenset[str] = frozenset()) -> tuple[C, dict[str, Any]]:
    """Take the traced numbers out: `(structure, {path: number})`.

    `live` names the fields (paths with `*` for numbers) that are traced though neutral here; see `Traced.promote`.
    """
    numbers: dict[str, Any] = {}

    def visit(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, tuple):
            return tuple(visit(item, (*path, str(i))) for i, item in enumerate(node))
        if not isinstance(node, Config):
            return node
        traced = marks(type(node))
        update = {}
        for name in type(node).model_fields:
            value, here = getattr(node, name), (*path, name)
            mark = traced.get(name)
            if mark is None:
                new = visit(value, here)
                if new is not value:
                    update[name] = new
            elif not _same(value, mark.neutral) or generic(here) in live:
                # A config that was bound already holds numbers.
                encode = None if hasattr(value, "shape") else mark.encode
                numbers[".".join(here)] = encode(node, value) if encode else value
                update[name] = Hole()
        return node.model_copy(update=update) if update else node

    return visit(config, ()), numbers


def active(config: Config) -> frozenset[str]:
    """The promotable fields that a config really uses, as generic paths: what `live` is collected from."""
    found: set[str] = set()

    def visit(node: Any, path: tuple[str, ...]) -> None:
        if isinstance(node, tuple):
            for i, item in enumerate(node):
                visit(item, (*path, str(i)))
        elif isinstance(node, Config):
            for name, mark in marks(type(node)).items():
                if mark.promote and not _same(getattr(node, name), mark.neutral):
                    found.add(generic((*path, name)))
            for name in type(node).model_fields:
                visit(getattr(node, name), (*path, name))

    visit(config, ())
    return frozenset(found)


def bind(structure: C, numbers: Mapping[str, Any]) -> C:
    """Put numbers (arrays, tracers) into the holes of a structure. The result is for building, never for showing."""

    def visit(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, Hole):
            return numbers[".".join(path)]
        if isinstance(node, tuple):
            return tuple(visit(item, (*path, str(i))) for i, item in enumerate(node))
        if not isinstance(node, Config):
            return node
        fields = {name: getattr(node, name) for name in type(node).model_fields}
        update = {}
        for name, value in fields.items():
            new = visit(value, (*path, name))
            if new is not value:
                update[name] = new
        return node.model_copy(update=update) if update else node

    return visit(structure, ())


def generic(path: tuple[str, ...]) -> str:
    """A path with every number in it replaced by `*`."""
    return ".".join("*" if part.isdigit() else part for part in path)


def _same(value: Any, neutral: Any) -> bool:
    # A traced array is never neutral, and must not be compared: under jit it has no truth value.
    return neutral is not ... and type(value) in (type(neutral), int, float) and value == neutral


def replace(config: C, **fields: Any) -> C:
    """A copy with other fields, validated."""
    return load(type(config), {**{n: getattr(config, n) for n in type(config).model_fields}, **fields})
