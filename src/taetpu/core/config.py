"""Configs: frozen and typed, with marks that say what a field is. Loading stands in `loading`, numbers in `traced`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from taetpu.core.identity import canonical_json

MAX_SIZE = 2**20
Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]
"""The length of an axis. The bound lies beyond what is trained; a larger number is refused, not allocated."""


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
    """Marks a field filled by a component of the named slot, or, with `many`, by any number of them under names."""

    name: str
    many: bool = False


class Config(BaseModel):
    """Base of every config. Frozen, no unknown fields, no silent conversion (a string is not a number)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        strict=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
    )


class Component(Config):
    """What fills a slot. `@register(slot, kind)` names it; `check` refuses what does not fit the model's sizes.

    Attributes:
        own_init: its parameters start from values of their own, also where the component that it replaces has some of
            that name and shape. Where it is not set, the arm contract proves that those start from the same values.
    """

    slot: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    own_init: ClassVar[bool] = False
    plugin: ClassVar[str] = ""  # sha256 of the plug-in that it stands in; empty for what comes with the package

    def check(self, dims: Any) -> None:
        """Raise `UserError` with the field as its path when this component cannot be built at `dims`."""


def traced_fields(cls: type[Config]) -> dict[str, Traced]:
    """The traced fields of a config class."""
    found = {}
    for name, info in cls.model_fields.items():
        for mark in info.metadata:
            if isinstance(mark, Traced):
                found[name] = mark
    return found


def slot_of(cls: type[Config], field: str) -> SlotMark | None:
    """The slot that a field holds, or None."""
    return next((m for m in cls.model_fields[field].metadata if isinstance(m, SlotMark)), None)


def config_class_of(cls: type[Config], field: str) -> type[Config] | None:
    """The config class of a field that holds one (or none, or a tuple of them); None for any other field."""
    kind = cls.model_fields[field].annotation
    return next((k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, Config)), None)


def iter_components(node: Any) -> Iterator[Component]:
    """Every component in a config tree."""
    if isinstance(node, Component):
        yield node
    if isinstance(node, Config):
        inner = [getattr(node, name) for name in type(node).model_fields]
    else:
        inner = list(node.values()) if isinstance(node, Mapping) else node if isinstance(node, tuple) else ()
    for child in inner:
        yield from iter_components(child)


def fields_at_default(value: Any, prefix: str = "") -> dict[str, Any]:
    """The fields of a config tree that have their default: their values as plain data, by dotted path.

    A slot at its default counts as one field. The fields of any other component are compared with the defaults of its
    own class, so that its kind is never among them.
    """
    found: dict[str, Any] = {}
    if isinstance(value, Config):
        for name, info in type(value).model_fields.items():
            own, path = getattr(value, name), f"{prefix}{name}"
            data, default = to_data(own), info.get_default(call_default_factory=True)
            if not info.is_required() and canonical_json(data) == canonical_json(to_data(default)):
                found[path] = data
            else:
                found |= fields_at_default(own, f"{path}.")
    elif isinstance(value, Mapping | tuple):
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            found |= fields_at_default(inner, f"{prefix}{name}.")
    return found


class Hole:
    """Stands in a structure where a traced number was taken out."""

    def __repr__(self) -> str:
        return "<traced>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hole)

    def __hash__(self) -> int:
        return hash(Hole)


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
