"""Expansion of the arms in a study file to single arms with names."""

from collections.abc import Iterator, Mapping
from itertools import chain, islice, product
from typing import Any

from taetpu.core.errors import ErrorList, KeyPath, UserError
from taetpu.spec.candidates import (
    MAX_ARMS,
    Candidate,
    bounded,
    cell_name,
    check_count,
    check_paths,
    check_values,
    label,
)
from taetpu.spec.designs import factorial, ladder, one_by_one
from taetpu.spec.overrides import apply_overrides, format_value, takes_list
from taetpu.spec.schema import BASELINE, StudySpec, check_name


def candidates(spec: StudySpec, base: Mapping[str, Any], mistakes: ErrorList) -> list[Candidate]:
    """Return all arms except the baseline: the arms under `arms` and the arms of designs, at every rung of the ladder.

    Args:
        spec: The study file.
        base: The baseline's data.
        mistakes: A list to which the errors in single arms under `arms` are added. These arms are left out.

    Raises:
        UserError: If a name, an override or a list of values in a design is invalid, two arms have the same name, or
            there are too many arms.
    """
    found: dict[str, Candidate] = {}
    arms = chain(_written(spec, base, mistakes), one_by_one(spec), factorial(spec, base), _grid(spec))
    for arm in ladder(spec, base, list(islice(arms, MAX_ARMS + 1))):
        if len(found) == MAX_ARMS:
            problem = f"the study has more than {MAX_ARMS} arms"
            raise UserError(problem, path=_place(arm, ("arms",)), remedy="Split it into several studies.")
        twin = found.get(arm.name.casefold())
        place = ("grid",) if arm.grid else ("arms", arm.name)
        if twin is not None:
            case = "" if twin.name == arm.name else f" ({twin.name!r}: names may not differ in case alone)"
            raise UserError(f"two arms are called {arm.name!r}{case}", path=_place(arm, place), remedy="Rename one.")
        found[arm.name.casefold()] = arm
    return list(found.values())


def _place(arm: Candidate, otherwise: KeyPath) -> KeyPath:
    return next(iter(arm.origins.values())) if arm.origins else otherwise


def _written(spec: StudySpec, base: Mapping[str, Any], mistakes: ErrorList) -> Iterator[Candidate]:
    for name, overrides in spec.arms.items():
        made: list[Candidate] = []
        with mistakes.collect():
            made = list(_written_arm(name, overrides, base))
        yield from made


def _written_arm(name: Any, overrides: Any, base: Mapping[str, Any]) -> Iterator[Candidate]:
    place = ("arms", name)
    if not isinstance(name, str):
        raise UserError(f"arm name {name!r} is not text", path=place, remedy=f"Write '{name}' in quotes.")
    check_name(name, "arm", place)
    if name.casefold() == BASELINE:
        raise UserError(f"the arm name {name!r} is taken by the baseline itself", path=place, remedy="Rename it.")
    if not isinstance(overrides, Mapping) or not overrides:
        problem = f"arm {name!r} names no change: {format_value(overrides)!r}"
        raise UserError(problem, path=place, remedy="Write e.g. {model.position: none}.")
    check_paths(overrides, place)
    yield from _fan_out(name, dict(overrides), base)


def _fan_out(name: str, overrides: dict[str, Any], base: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield an arm for each value in a list. If several overrides have lists, yield an arm for each combination."""
    place = ("arms", name)
    try:
        lists = {path: overrides[path] for path in _lists(overrides, base)}
    except UserError as error:
        raise error.within(*place) from None
    if not lists:
        yield Candidate(name, overrides, {path: (*place, path) for path in overrides})
        return
    for path, values in lists.items():
        check_values(values, (*place, path))
    check_count(lists.values(), place)
    for cell in product(*(enumerate(values) for values in lists.values())):
        chosen = dict(zip(lists, cell, strict=True))
        values = {path: value for path, (_, value) in chosen.items()}
        title = f"{name}={label(*values.values())}" if len(lists) == 1 else f"{name}-{cell_name(values)}"
        origins = {path: (*place, path, chosen[path][0]) if path in chosen else (*place, path) for path in overrides}
        yield Candidate(bounded(title), {**overrides, **values}, origins, crossed=len(lists) > 1)


def _lists(overrides: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """Return the paths of overrides whose value is a list of values to try.

    If the field itself is a list, a list is a single value, and a list of lists is a list of values.
    """
    given = [path for path, value in overrides.items() if isinstance(value, list)]
    if not given:
        return []
    # Valid fields depend on kinds, and valid layers on the number of layers. The first value of a list is used.
    shaping = {
        path: value[0] if isinstance(value, list) and value else value
        for path, value in overrides.items()
        if path.endswith(".kind") or path == "model.num_layers"
    }
    shaped = apply_overrides(base, shaping)
    nested = [path for path in given if any(isinstance(value, list) for value in overrides[path])]
    return [path for path in given if path in nested or not takes_list(shaped, path)]


def _grid(spec: StudySpec) -> Iterator[Candidate]:
    check_paths(spec.grid, ("grid",))
    for path, values in spec.grid.items():
        if not isinstance(values, list):
            raise UserError(
                f"{format_value(values)} is not a list of values",
                path=("grid", path),
                remedy=f"Write [{format_value(values)}, ...].",
            )
        check_values(values, ("grid", path))
    if not spec.grid:
        return
    check_count(spec.grid.values(), ("grid",))
    for cell in product(*(enumerate(values) for values in spec.grid.values())):
        chosen = dict(zip(spec.grid, cell, strict=True))
        values = {path: value for path, (_, value) in chosen.items()}
        origins = {path: ("grid", path, number) for path, (number, _) in chosen.items()}
        yield Candidate(bounded(cell_name(values)), values, origins, crossed=True, grid=True, stage="generated")
