"""From what a study file writes under `arms` and `grid` to single arms with names."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from taetpu.core.errors import UserError, Where, dotted
from taetpu.spec.overrides import apply, show, takes_list
from taetpu.spec.schema import BASELINE, LONGEST_NAME, StudySpec, check_name

LONGEST_LABEL = 40


@dataclass(frozen=True)
class Candidate:
    """An arm before it is resolved.

    Attributes:
        origins: where in the study file each override stands.
        crossed: one of a cartesian product, where a single value may be the baseline's.
        grid: from `grid`, where the baseline's own cell is no arm.
    """

    name: str
    overrides: dict[str, Any]
    origins: Mapping[str, Where]
    crossed: bool = False
    grid: bool = False


def candidates(spec: StudySpec, base: Mapping[str, Any]) -> list[Candidate]:
    """All arms but the baseline, in the order of the file; those of `grid` come last.

    Raises:
        UserError: a name or a list of values that cannot be; two arms of one name; an override that matches nothing.
    """
    found: dict[str, Candidate] = {}
    for arm in (*_written(spec, base), *_grid(spec)):
        twin = found.get(arm.name.casefold())
        place = ("grid",) if arm.grid else ("arms", arm.name)
        if twin is not None:
            case = "" if twin.name == arm.name else f" ({twin.name!r}: names may not differ in case alone)"
            raise UserError(f"two arms are called {arm.name!r}{case}", path=_place(arm, place), remedy="rename one")
        found[arm.name.casefold()] = arm
    return list(found.values())


def _place(arm: Candidate, otherwise: Where) -> Where:
    return next(iter(arm.origins.values())) if arm.origins else otherwise


def _written(spec: StudySpec, base: Mapping[str, Any]) -> Iterator[Candidate]:
    for name, overrides in spec.arms.items():
        place = ("arms", name)
        if not isinstance(name, str):
            raise UserError(f"arm name {name!r} is not text", path=place, remedy=f"write '{name}' in quotes")
        check_name(name, "arm", place)
        if name.casefold() == BASELINE:
            raise UserError(f"the arm name {name!r} is taken by the baseline itself", path=place, remedy="rename it")
        if not isinstance(overrides, Mapping) or not overrides:
            problem = f"arm {name!r} names no change: {show(overrides)!r}"
            raise UserError(problem, path=place, remedy="e.g. {model.position: none}")
        _check_paths(overrides, place)
        yield from _fan_out(name, dict(overrides), base)


def _fan_out(name: str, overrides: dict[str, Any], base: Mapping[str, Any]) -> Iterator[Candidate]:
    """One arm for each value of a list, and for each combination where several overrides have lists."""
    place = ("arms", name)
    try:
        lists = {path: overrides[path] for path in _lists(overrides, base)}
    except UserError as error:
        raise error.at(*place) from None
    if not lists:
        yield Candidate(name, overrides, {path: (*place, path) for path in overrides})
        return
    for path, values in lists.items():
        _check_values(values, (*place, path))
    for cell in product(*(enumerate(values) for values in lists.values())):
        chosen = dict(zip(lists, cell, strict=True))
        values = {path: value for path, (_, value) in chosen.items()}
        title = f"{name}={label(*values.values())}" if len(lists) == 1 else f"{name}-{_cell_name(values)}"
        origins = {path: (*place, path, chosen[path][0]) if path in chosen else (*place, path) for path in overrides}
        yield Candidate(_bounded(title), {**overrides, **values}, origins, crossed=len(lists) > 1)


def _lists(overrides: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """The overrides whose value is a list of values. In a field that holds lists, a list is one value."""
    given = [path for path, value in overrides.items() if isinstance(value, list)]
    if not given:
        return []
    # What fields there are depends on kinds, and which layers on their number: those of the arm, the first of a list.
    shaping = {
        path: value[0] if isinstance(value, list) and value else value
        for path, value in overrides.items()
        if path.endswith(".kind") or path == "model.num_layers"
    }
    shaped = apply(base, shaping)
    nested = [path for path in given if any(isinstance(value, list) for value in overrides[path])]
    return [path for path in given if path in nested or not takes_list(shaped, path)]


def _grid(spec: StudySpec) -> Iterator[Candidate]:
    _check_paths(spec.grid, ("grid",))
    for path, values in spec.grid.items():
        if not isinstance(values, list):
            raise UserError(
                f"{show(values)} is not a list of values", path=("grid", path), remedy=f"[{show(values)}, ...]"
            )
        _check_values(values, ("grid", path))
    if not spec.grid:
        return
    for cell in product(*(enumerate(values) for values in spec.grid.values())):
        chosen = dict(zip(spec.grid, cell, strict=True))
        values = {path: value for path, (_, value) in chosen.items()}
        origins = {path: ("grid", path, number) for path, (number, _) in chosen.items()}
        yield Candidate(_bounded(_cell_name(values)), values, origins, crossed=True, grid=True)


def _check_paths(overrides: Mapping[Any, Any], place: Where) -> None:
    for path in overrides:
        if not isinstance(path, str):
            raise UserError(f"{path!r} is not a path", path=(*place, path), remedy="e.g. model.mixer.num_heads")


def _check_values(values: list[Any], place: Where) -> None:
    if not values:
        raise UserError("an empty list of values makes no arm", path=place, remedy="list at least one value")
    for i, value in enumerate(values):
        if any(value == earlier and type(value) is type(earlier) for earlier in values[:i]):
            raise UserError(f"{show(value)} is listed twice", path=(*place, i), remedy="remove one")


# --- names -----------------------------------------------------------------------------------------------------------


def label(value: Any) -> str:
    """A value as part of a path-safe name; different values get different labels, by a hash where characters go."""
    text = _plain(value)
    safe = re.sub(r"[^A-Za-z0-9=.,+_-]+", "-", text)
    if safe == text and 0 < len(text) <= LONGEST_LABEL:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{safe[:LONGEST_LABEL].strip('-')}-{digest}".lstrip("-")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = [_plain(v) if k == "kind" else f"{k}={_plain(v)}" for k, v in value.items()]
        return "+".join(parts) or "{}"
    if isinstance(value, list | tuple):
        return "+".join(_plain(v) for v in value) or "[]"
    return show(value)


def _cell_name(values: Mapping[str, Any]) -> str:
    """`num_heads=8,dim=64`; names are cut to what tells the paths apart."""
    return ",".join(f"{short}={label(values[path])}" for path, short in _short(list(values)).items())


def _bounded(name: str) -> str:
    """A long name cut to what a folder's may have, and kept apart from others by a hash."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _short(paths: list[str]) -> dict[str, str]:
    """Each path's last part, or as many of its last parts as make it differ from the others; `x.kind` counts as `x`."""
    split = {path: (path.removesuffix(".kind") or path).split(".") for path in paths}
    for size in range(1, max(map(len, split.values())) + 1):
        names = {path: dotted(parts[-size:]) for path, parts in split.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in paths}
