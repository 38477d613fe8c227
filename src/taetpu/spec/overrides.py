"""Overrides of a baseline's plain data, `{dotted path: value}`, checked against the config classes.

A path names a field (`model.dim`), a slot (`model.position`), the kind of a slot (`model.norm.kind`), or a field of a
component (`model.norm.eps`). It may also name any of these in a selection of layers (`model.layers.-1.ffn`,
`model.layers.0:2.mixer.num_heads`). An override of a slot's kind keeps the fields that are set. The new kind
must have all of them.

The order of overrides has no effect. Overlapping overrides are rejected, kinds are set before fields, and single layers
are set last.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from taetpu.core.config import Component, Config, config_class_of, has_entries, slot_of
from taetpu.core.config_parsing import build_component, load_config, parse_entries
from taetpu.core.errors import ErrorList, KeyPath, UserError, dotted_path, errors_at, locate_errors, suggest
from taetpu.core.registry import kinds
from taetpu.nn.block import LayerConfig
from taetpu.nn.layer_overrides import select_layers
from taetpu.nn.lm import ModelConfig
from taetpu.spec.document import format_value
from taetpu.spec.study_config import ResolvedConfig, RunConfig

Parts = tuple[str | int, ...]


class Spot(NamedTuple):
    """A place to write to: `data[name]`.

    `cls` is the config class whose fields `data` contains. It is None if `name` is the number of a layer or the name of
    an entry.
    """

    cls: type[Config] | None
    data: dict[Any, Any]
    name: Any


def apply_overrides(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a baseline's data with overrides applied.

    Raises:
        UserError: If an override matches nothing, if overrides overlap, or if a new kind lacks a field that the
            baseline sets. All errors are raised together. The path of an error in an override starts with the override.
            The path of an error in the baseline is a path in the config.
    """
    new, mistakes = deepcopy(dict(data)), ErrorList()
    twice = _overlapping([(tuple(path.split(".")), path) for path in overrides], mistakes)
    for path in sorted(overrides.keys() - twice, key=_kinds_first):
        if not _layered(path):
            with mistakes.collect():
                _write(new, path, overrides[path])
    if layered := {path: overrides[path] for path in overrides.keys() - twice if _layered(path)}:
        with mistakes.collect():
            _write_layers(new, layered, mistakes)
    mistakes.raise_all()
    return new


def resolve_overrides(data: Mapping[str, Any], overrides: Mapping[str, Any]) -> ResolvedConfig:
    """Return the resolved config of a baseline's data with overrides applied. Raises `UserError` if it is invalid."""
    return load_config(RunConfig, apply_overrides(data, overrides)).resolve()


def _write_layers(data: dict[str, Any], overrides: Mapping[str, Any], mistakes: ErrorList) -> None:
    """Write overrides of single layers to `data`. Raise `UserError` if the number of layers is invalid."""
    num_layers = _num_layers(data)
    targets: list[tuple[Parts, str]] = []
    for path in overrides:
        with mistakes.collect():
            targets += [(parts, path) for parts in _concrete(path, num_layers)]
    twice = _overlapping(targets, mistakes)
    _spread_layers(data["model"], num_layers)
    for path in sorted({path for _, path in targets} - twice, key=_kinds_first):
        with mistakes.collect():
            _write(data, path, overrides[path], num_layers)


def merge_overrides(overrides: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides with additional values by path.

    An additional value replaces an override of the same path. If an override sets a whole slot that contains the path,
    the value is set in the override of the slot.
    """
    merged = dict(overrides)
    for path, value in values.items():
        around = next((other for other in merged if path.startswith(f"{other}.")), None)
        if around is None:
            merged[path] = value
        else:
            merged[around] = _inside(merged[around], path.removeprefix(f"{around}.").split("."), value)
    return merged


def _inside(filled: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return value
    fields = dict(filled) if isinstance(filled, Mapping) else {"kind": filled}
    return {**fields, parts[0]: _inside(fields.get(parts[0], {}), parts[1:], value)}


def takes_list(data: Mapping[str, Any], path: str) -> bool:
    """Return whether the field at `path` takes a list. Raise `UserError` if the path matches nothing."""
    copy, num_layers = deepcopy(dict(data)), 0
    if _layered(path):
        num_layers = _num_layers(copy)
        _spread_layers(copy["model"], num_layers)
    spot = _spots(copy, path, num_layers)[0]
    if spot.cls is None or spot.name not in spot.cls.model_fields:
        return False
    mark = slot_of(spot.cls, spot.name)
    if mark is not None and mark.many:
        return True
    kind = spot.cls.model_fields[spot.name].annotation
    parts = [get_args(part)[0] if get_origin(part) is Annotated else part for part in (kind, *get_args(kind))]
    return any(get_origin(part) in (tuple, list) for part in parts)


def _write(data: dict[str, Any], path: str, value: Any, num_layers: int = 0) -> None:
    for spot in _spots(data, path, num_layers):
        if spot.name == "kind" and spot.cls is not None and issubclass(spot.cls, Component):
            _change_kind(spot.cls, spot.data, value, path)
        else:
            spot.data[spot.name] = deepcopy(value)


def _change_kind(old: type[Component], data: dict[str, Any], kind: Any, path: str) -> None:
    """Change the kind of a slot's component, and keep the fields that are set.

    Raises:
        UserError: If the kind is unknown, or lacks a field that is set.
    """
    known = kinds(old.slot)
    if not isinstance(kind, str) or kind not in known:
        raise UserError(f"unknown {old.slot} kind {kind!r}", path=(path,), remedy=suggest(str(kind), known))
    set_before = {name: value for name, value in data.items() if name != "kind"}
    kept = {name: value for name, value in set_before.items() if name in known[kind].model_fields}
    if lost := sorted(set(set_before) - set(kept)):
        problem = f"{old.slot} {kind!r} has no {', '.join(lost)}, which the baseline sets for {old.kind!r}"
        slot = f"{path.removesuffix('.kind')}: {format_value({'kind': kind, **kept})}"
        raise UserError(problem, path=(path,), remedy=f"Write the whole slot: {slot}")
    data.clear()
    data.update(kind=kind, **kept)


# --- finding places --------------------------------------------------------------------------------------------------


def _layered(path: str) -> bool:
    return path.startswith("model.layers.")


def _kinds_first(path: str) -> tuple[bool, str]:
    return not path.endswith(".kind"), path


def _spots(data: dict[str, Any], path: str, num_layers: int) -> list[Spot]:
    """Return the places to which an override writes, one for each selected layer. Missing mappings are created.

    Args:
        data: The data. If the path is in a layer, `_spread_layers` must have been applied to the data.
        path: The path of the override.
        num_layers: The number of layers.
    """
    parts = path.split(".")
    if not _layered(path):
        return [_descend(RunConfig, data, parts, path)]
    targets = _concrete(path, num_layers)
    layers = data["model"]["layers"]
    spots = []
    for _, _, number, *rest in targets:
        if not rest:
            spots.append(Spot(None, layers, number))
            continue
        layer = layers.setdefault(number, {})
        slot = rest[0]
        if len(rest) > 1 and slot in LayerConfig.model_fields and slot_of(LayerConfig, slot):
            layer.setdefault(slot, deepcopy(_filled(ModelConfig, data["model"], slot, ("model", slot))))
        spots.append(_descend(LayerConfig, layer, [str(part) for part in rest], path))
    return spots


def _num_layers(data: Mapping[str, Any]) -> int:
    return load_config(ModelConfig, data.get("model", {}), ("model",)).num_layers


def _concrete(path: str, num_layers: int) -> list[Parts]:
    """Return the path in each layer that `path` selects. The number of the layer is an integer from 0."""
    _, _, where, *rest = path.split(".")
    with errors_at(path):
        return [("model", "layers", number, *rest) for number in select_layers(where, num_layers)]


def _spread_layers(model: dict[str, Any], num_layers: int) -> None:
    """Replace the keys of `model["layers"]`, which select one or more layers, by the numbers of these layers."""
    spread: dict[Any, Any] = {}
    for where, settings in model.get("layers", {}).items():
        if not isinstance(settings, Mapping):
            raise UserError(f"{settings!r} is not a mapping of settings", path=("model", "layers", where))
        with locate_errors("model"):
            numbers = select_layers(where, num_layers)
        for number in numbers:
            spread.setdefault(number, {}).update(deepcopy(dict(settings)))
    model["layers"] = spread


def _descend(cls: type[Config], data: dict[str, Any], parts: list[str], path: str) -> Spot:
    """Return the place of the last of `parts`. Mappings on the way to it are created if they are missing."""
    done = tuple(path.split("."))[: -len(parts)]
    while True:
        name, *parts = parts
        if issubclass(cls, Component) and name == "kind" and not parts:
            return Spot(cls, data, name)
        if name not in cls.model_fields:
            raise _unknown(cls, name, done, path)
        mark, inner = slot_of(cls, name), config_class_of(cls, name)
        if not parts:
            return Spot(cls, data, name)
        done = (*done, name)
        if mark is not None and mark.many:
            entry, *parts = parts
            data[name] = parse_entries(mark.name, data.get(name), done)
            if not parts:
                return Spot(None, data[name], entry)
            data, name, done = data[name], entry, (*done, entry)
            data[name] = _with_fields(mark.name, data.get(name) or entry, done)
            data, cls = data[name], kinds(mark.name)[data[name]["kind"]]
        elif mark is not None:
            data[name] = _filled(cls, data, name, done)
            data, cls = data[name], kinds(mark.name)[data[name]["kind"]]
        elif inner is not None:
            if data.get(name) in (None, "none"):
                data[name] = {}
            if not isinstance(data[name], dict):
                raise UserError(f"{data[name]!r} is not a mapping of settings", path=done)
            entries, (data, cls) = has_entries(cls, name), (data[name], inner)
            if entries:
                entry, *parts = parts
                if not parts:
                    return Spot(None, data, entry)
                data, done = data.setdefault(entry, {}), (*done, entry)
        else:
            problem = f"{path!r} matches nothing: {dotted_path(done)} is a single value"
            raise UserError(problem, path=(path,), remedy=f"Override {dotted_path(done)}.")


def _filled(cls: type[Config], data: Mapping[str, Any], name: str, at: KeyPath) -> dict[str, Any]:
    """Return the component in a slot as a mapping that contains its kind and the fields that are set."""
    mark, value = slot_of(cls, name), data.get(name, ...)
    slot = mark.name if mark else ""
    if value is ...:
        default = cls.model_fields[name].default
        if not isinstance(default, Component):
            raise UserError(f"{name!r} is missing", path=at[:-1], remedy=f"Add {name}: ...")
        return {"kind": default.kind, **{f: getattr(default, f) for f in sorted(default.model_fields_set)}}
    return _with_fields(slot, "none" if value is None else value, at)


def _with_fields(slot: str, value: Any, at: KeyPath) -> dict[str, Any]:
    """Return a component, given by its kind or settings, as a mapping to which fields can be written."""
    filled = dict(value) if isinstance(value, Mapping) else {"kind": value}
    kind = filled.get("kind")
    if not isinstance(kind, str) or kind not in kinds(slot):
        build_component(slot, value, at)  # raises the error
    return filled


def _unknown(cls: type[Config], name: str, done: tuple[str, ...], path: str) -> UserError:
    owner, remedy = dotted_path(done) or "the baseline", suggest(name, cls.model_fields)
    if issubclass(cls, Component):
        having = [kind for kind, other in kinds(cls.slot).items() if name in other.model_fields]
        if having:
            slot = f"{owner}: {{kind: {having[0]}, {name}: ...}}"
            remedy = f"Use a kind that has {name} ({', '.join(having)}), and write the whole slot: {slot}"
        owner += f" (kind {cls.kind})"
    elif path == "model.preset":
        remedy = "Run `taetpu new NAME --from PRESET --to PRESET`, which writes an arm for each difference."
    elif cls is RunConfig:
        if path.startswith("base."):
            remedy = f"Write {path.removeprefix('base.')}: paths start below base."
        for section in ("model", "train"):
            inner = config_class_of(cls, section)
            if inner is not None and name in inner.model_fields:
                remedy = f"Did you mean {section}.{path}?"
    return UserError(f"{path!r} matches nothing: {owner} has no field {name!r}", path=(path,), remedy=remedy)


def _overlapping(targets: Iterable[tuple[Parts, str]], mistakes: ErrorList) -> set[str]:
    """Return the paths that overlap another path, and add an error for each of them to `mistakes`."""
    twice = set[str]()
    around: tuple[Parts, str] = ((), "")
    for parts, path in sorted(targets):  # in this order, a target directly precedes the targets below it
        if around[0] and parts[: len(around[0])] == around[0]:
            if path not in twice:
                problem = f"{path!r} overlaps {around[1]!r}: both set {dotted_path(parts)}"
                mistakes.append(UserError(problem, path=(path,), remedy="Remove one of the overrides."))
            twice.add(path)
        else:
            around = parts, path
    return twice
