"""Differences between two models, each as changes that lead from one model to the other and back."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.core.config import Component, Config, to_data
from taetpu.core.errors import UserError
from taetpu.core.registry import slots
from taetpu.nn.block import LayerConfig
from taetpu.nn.lm import ModelConfig
from taetpu.spec.document import format_value

Levels = Sequence[tuple[Any, Any]]
"""The old and the new value of the model and, if layers have the setting, of each layer."""
SAME = "the same function, unless norms have weight decay"
Accepts = Callable[[Mapping[str, Any]], bool]
"""Whether a model with these overrides is valid."""


@dataclass(frozen=True)
class Difference:
    """A difference between two models, or several that are not valid one without the other.

    Attributes:
        name: The name of the part: that of the slot or, for a field, those of its component and the field.
        forward: The overrides by which the first model takes the property of the second.
        backward: The overrides by which the second model takes the property of the first.
        about: What differs, one text for each setting.
    """

    name: str
    forward: Mapping[str, Any]
    backward: Mapping[str, Any]
    about: tuple[str, ...]

    def joined(self, other: "Difference", name: str = "") -> "Difference":
        """Return both differences as one, which is called by both names unless `name` is given."""
        return Difference(
            name or f"{self.name}+{other.name}",
            {**self.forward, **other.forward},
            {**self.backward, **other.backward},
            (*self.about, *other.about),
        )


def differences(start: ModelConfig, end: ModelConfig) -> list[Difference]:
    """Return the differences between two models with the same width and number of layers.

    A difference is another kind in a slot, or another value of a field in a slot whose kind is the same, in all layers.
    A setting that does not change the trained function (see `_is_same_function`) is part of another difference of its
    component, or of the first one, so that all differences together lead to exactly the other model.
    """
    changes = {path: (levels, separate) for path, levels, separate in _all_changes(start, end)}
    back = {path: (levels, separate) for path, levels, separate in _all_changes(end, start)}
    names = Counter(map(_part_name, changes))
    parts: dict[str, Difference] = {}
    for path, (levels, separate) in changes.items():
        if not _is_same_function(path, levels):
            name = _part_name(path) if names[_part_name(path)] == 1 else path.replace(".", "-")
            about = f"{path}: {_describe(levels)}"
            parts[path] = Difference(name, _overrides(path, levels, separate), _overrides(path, *back[path]), (about,))
    for path in changes.keys() - parts.keys() if parts else ():
        component = path.rpartition(".")[0]
        host = next((other for other in parts if other.startswith(f"{component}.")), next(iter(parts)))
        same = Difference("", _overrides(path, *changes[path]), _overrides(path, *back[path]), (f"{path}: {SAME}",))
        parts[host] = parts[host].joined(same, parts[host].name)
    return list(parts.values())


def join_dependent(parts: Sequence[Difference], forward: Accepts, backward: Accepts) -> list[Difference]:
    """Return differences of which each can be added to the first model alone, and removed from the second alone.

    A difference that cannot is joined with the one that makes it valid.

    Args:
        parts: The differences.
        forward: Whether the first model with overrides is valid.
        backward: Whether the second model with overrides is valid.

    Raises:
        UserError: If no other difference makes a difference valid.
    """

    def is_valid(part: Difference) -> bool:
        return forward(part.forward) and backward(part.backward)

    joined = list(parts)
    while (part := next((part for part in joined if not is_valid(part)), None)) is not None:
        needed = next((other for other in joined if other is not part and is_valid(part.joined(other))), None)
        if needed is None:
            problem = f"the difference {part.name!r} is not valid alone, nor together with another one"
            raise UserError(problem, remedy="Use another --dim, or write a study with arms of several changes.")
        first, second = sorted((part, needed), key=joined.index)
        joined[joined.index(first)] = first.joined(second)
        joined.remove(second)
    return joined


def _is_same_function(path: str, levels: Levels) -> bool:
    """Return whether a change does not affect what is computed and trained.

    A norm's weight and its offset from 1 start from the same factor and have the same gradient. They differ only if
    norms have weight decay, which they do not have by default.
    """
    choices = {value for pair in levels for value in pair if isinstance(value, str)}
    return path.endswith("norm.weight") and choices == {"plain", "unit-offset"}


def _all_changes(start: ModelConfig, end: ModelConfig) -> Iterator[tuple[str, Levels, Sequence[bool]]]:
    """Yield the path of each change, its values (see `_changes`), and whether each layer has its own component."""
    first, second = start.resolve(), end.resolve()
    for slot in ModelConfig.model_fields:
        if slot in ("dim", "num_layers", "layers"):
            continue
        levels = [(getattr(start, slot), getattr(end, slot))]
        if slot in LayerConfig.model_fields:
            levels += [(getattr(old, slot), getattr(new, slot))
                       for old, new in zip(first.layers, second.layers, strict=True)]  # fmt: skip
        separate = [slot in start.layers.get(i, {}) for i in range(start.num_layers)]
        for path, values in _changes(levels, slot):
            yield path, values, separate


def _part_name(path: str) -> str:
    """Return the name of a part: that of the slot or, for a field, those of its component and the field."""
    *above, last = path.split(".")
    return last if last in slots() or not above else f"{above[-1]}-{last}"


def _changes(levels: Levels, path: str) -> Iterator[tuple[str, Levels]]:
    """Yield the path of each difference, with the old and the new value of the model and of each layer."""
    if all(old == new for old, new in levels):
        return
    kinds = {getattr(value, "kind", None) for pair in levels for value in pair}
    if len(kinds) == 1 and None not in kinds:
        for name in type(levels[0][0]).model_fields:
            yield from _changes([(getattr(old, name), getattr(new, name)) for old, new in levels], f"{path}.{name}")
    else:
        yield path, levels


def _describe(levels: Levels) -> str:
    """Return the old and the new values, with the layers in which they differ from those of other layers."""
    layers = levels[1:] or levels
    by_change: dict[str, list[int]] = {}
    for i, (old, new) in enumerate(layers):
        if old != new:
            by_change.setdefault(f"{format_value(setting(old))} -> {format_value(setting(new))}", []).append(i)
    if len(by_change) == 1 and len(next(iter(by_change.values()))) == len(layers):
        return next(iter(by_change))
    return "; ".join(f"{change} in {_name_layers(which)}" for change, which in by_change.items())


def _name_layers(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    spans = len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1
    return f"layers {layers[0]} to {layers[-1]}" if spans else f"layers {', '.join(map(str, layers))}"


def _overrides(path: str, levels: Levels, separate: Sequence[bool]) -> dict[str, Any]:
    """Return the overrides of the model and, where they are needed, of single layers.

    Args:
        path: The path of the setting, from the model on.
        levels: The old and the new value of the model, and of each layer if layers have the setting.
        separate: Whether each layer of the baseline has its own component in the slot.
    """
    (old, new), *layers = levels
    single = {
        f"model.layers.{i}.{path}": setting(after)
        for i, (before, after) in enumerate(layers)
        if after != (before if separate[i] else new)
    }
    if old == new or (layers and len(single) == len(layers)):  # a setting of all layers has no effect then
        return single
    return {f"model.{path}": setting(new), **single}


def setting(value: Any) -> Any:
    """Return the value of a setting as the data of a study file, without fields that have their default."""
    if isinstance(value, Component):
        fields = changed_fields(value)
        return {"kind": value.kind, **fields} if fields else value.kind
    if isinstance(value, Mapping):
        return {name: setting(item) for name, item in value.items()}
    return changed_fields(value) if isinstance(value, Config) else to_data(value)


def changed_fields(config: Config) -> dict[str, Any]:
    """Return the fields of a config that differ from their default, as the data of a study file."""
    return {
        name: setting(getattr(config, name))
        for name, info in type(config).model_fields.items()
        if info.is_required() or getattr(config, name) != info.get_default(call_default_factory=True)
    }
