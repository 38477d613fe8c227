"""Frozen, typed configs, with metadata on fields. See `loading` for parsing and `static_dynamic` for traced numbers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

from taetpu.core.identity import canonical_json

MAX_SIZE = 2**20
Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]
"""The length of an axis. The limit exceeds the sizes of all trained models; larger values are rejected early."""


@dataclass(frozen=True)
class Traced:
    """Field metadata: the value of the config field is an input to the compiled program, not a constant in it.

    Args:
        neutral: A value that needs a different program and therefore stays part of the structure. For example, a
            program with dropout 0 draws no random numbers. By default, every value is traced.
        promote: Whether a neutral value is traced too if another run in the study has a different value, so that both
            runs share a program. For example, a mask of ones is then traced like a mask with a zero.
        encode: A function `(config, value) -> number or numpy array` for values that are not numbers.
    """

    neutral: Any = ...
    promote: bool = False
    encode: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True)
class SlotMark:
    """Field metadata: the field holds a component of a slot or, with `many`, a mapping from names to components."""

    name: str
    many: bool = False


class Config(BaseModel):
    """Base class of all configs: frozen, without unknown fields or implicit conversion (a string is not a number)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
    )

    def __repr__(self) -> str:
        """Return the name of the class with the fields that differ from their default."""
        infos = type(self).model_fields.items()
        fields = ((name, getattr(self, name), info) for name, info in infos)
        shown = [
            f"{name}={_represent(value)}"
            for name, value, info in fields
            if info.is_required() or not _same(value, info.get_default(call_default_factory=True))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __hash__(self) -> int:
        """Return a hash of the fields. A mapping counts as its sorted items."""
        fields = (tuple(sorted(v.items())) if isinstance(v, Mapping) else v for v in self.__dict__.values())
        return hash((type(self), *fields))


class Component(Config):
    """Base class of the configs that fill a slot. `@register(slot, kind)` gives a component its name.

    Attributes:
        own_init: Whether this component initializes a parameter differently from the parameter of the same name and
            shape in the replaced component. If False, the arm contract checks that both parameters start from the same
            values.
        static_layer: Whether `init` needs the number of its layer (`dims.layer`) as an integer instead of a tracer.
            Each layer then forms a separate stack.
        one_stream: Whether the component requires a single residual stream (see `nn.residual.num_streams`).
        draws_in_training: Whether the module draws random numbers in training steps.
        has_state: Whether the module has state that changes in training without gradients (see `nn.state`).
        example: Settings of an arm that uses this kind: required fields by name, and settings that the kind needs
            elsewhere by dotted path.
    """

    slot: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    own_init: ClassVar[bool] = False
    static_layer: ClassVar[bool] = False
    one_stream: ClassVar[bool] = False
    draws_in_training: ClassVar[bool] = False
    has_state: ClassVar[bool] = False
    example: ClassVar[Mapping[str, Any]] = {}
    plugin: ClassVar[str] = ""  # sha256 of the plug-in that defines the component; empty if built in

    @classmethod
    def is_built_in(cls) -> bool:
        """Return whether taetpu defines this kind, rather than a plug-in or the program that imports taetpu."""
        return not cls.plugin and cls.__module__.startswith("taetpu.")

    def check(self, dims: Any) -> None:
        """Raise `UserError`, with the invalid field as its path, if this component cannot be built with `dims`."""

    def carries(self, dims: Any) -> dict[str, tuple[int, ...]]:
        """Return the arrays that layers hand to later layers (`nn.common.Carried`), by name.

        Each array is `(batch, seq, *shape)` in the dtype of activations, with the returned shape.
        """
        return {}


@cache
def traced_fields(cls: type[Config]) -> dict[str, Traced]:
    """Return the `Traced` metadata of a config class's traced fields, by field name."""
    marks = {}
    for name, info in cls.model_fields.items():
        for mark in info.metadata:
            if isinstance(mark, Traced):
                marks[name] = mark
    return marks


def _represent(value: Any) -> str:
    """Return the representation of a field. Equal neighbours in a tuple, such as layers, are counted: `4 x Block()`."""
    if isinstance(value, tuple):
        texts = [(text, len(list(same))) for text, same in groupby(map(_represent, value))]
        return f"({', '.join(text if count == 1 else f'{count} x {text}' for text, count in texts)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_represent(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _same(first: Any, second: Any) -> bool:
    """Return whether two fields are equal. An array is equal to itself only, since a tracer has no truth value."""
    if first is second:
        return True
    if type(first) is not type(second) or hasattr(first, "shape"):
        return False
    if isinstance(first, Config):
        return all(_same(getattr(first, name), getattr(second, name)) for name in type(first).model_fields)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    return first == second


def slot_of(cls: type[Config], field: str) -> SlotMark | None:
    """Return the `SlotMark` of a field, or None if the field does not hold components."""
    return next((m for m in cls.model_fields[field].metadata if isinstance(m, SlotMark)), None)


def config_class_of(cls: type[Config], field: str) -> type[Config] | None:
    """Return the config class in a field's annotation (plain, optional, in a tuple or in a mapping), or None."""
    kind = cls.model_fields[field].annotation
    return next((k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, Config)), None)


def has_entries(cls: type[Config], field: str) -> bool:
    """Return whether a field holds a mapping from names to configs of one class."""
    return get_origin(cls.model_fields[field].annotation) is dict and config_class_of(cls, field) is not None


def iter_components(node: Any) -> Iterator[Component]:
    """Yield every component in a config tree."""
    if isinstance(node, Component):
        yield node
    if isinstance(node, Config):
        inner = [getattr(node, name) for name in type(node).model_fields]
    else:
        inner = list(node.values()) if isinstance(node, Mapping) else node if isinstance(node, tuple) else ()
    for child in inner:
        yield from iter_components(child)


def fields_at_default(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the fields of a config tree that equal their default, as plain data by dotted path.

    A slot that equals its default counts as one field. In any other component, each field is compared with its default
    in the component's class. The component's kind is never included.
    """
    at_default: dict[str, Any] = {}
    if isinstance(value, Config):
        for name, info in type(value).model_fields.items():
            field, path = getattr(value, name), f"{prefix}{name}"
            data, default = to_data(field), info.get_default(call_default_factory=True)
            if not info.is_required() and canonical_json(data) == canonical_json(to_data(default)):
                at_default[path] = data
            else:
                at_default |= fields_at_default(field, f"{path}.")
    elif isinstance(value, Mapping | tuple):
        for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            at_default |= fields_at_default(inner, f"{prefix}{name}.")
    return at_default


@dataclass(frozen=True)
class Hole:
    """Placeholder in a structure for a traced number."""

    def __repr__(self) -> str:
        return "<traced>"


def to_data(value: Any) -> Any:
    """Return a config tree as plain data for YAML, JSON and the identity hash. Components include their kind."""
    if isinstance(value, Config):
        fields = {name: to_data(getattr(value, name)) for name in type(value).model_fields}
        return {"kind": value.kind, **fields} if isinstance(value, Component) else fields
    if isinstance(value, Mapping):
        return {str(k): to_data(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_data(v) for v in value]
    return str(value) if isinstance(value, Hole) else value
