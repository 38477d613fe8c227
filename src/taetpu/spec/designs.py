"""Designs: the arms that are generated for a study, and the role of each arm.

`leave_one_out` and `add_one_in` have one arm for each part and one arm for all parts together. `factorial` crosses
factors in full or as a fraction. `spec.repeats` repeats the arms at scales, on tasks, or under other settings.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import KeyPath, UserError, dotted_path
from taetpu.core.short_paths import short_paths
from taetpu.spec.document import format_value
from taetpu.spec.fractional_factorial import Fraction, build_fraction
from taetpu.spec.overrides import apply_overrides
from taetpu.spec.study_config import RunConfig, StudySpec
from taetpu.spec.unresolved_arms import (
    Candidate,
    bounded,
    check_lists,
    check_part,
    check_paths,
    label,
)
from taetpu.store.frozen_study import OneByOne

FRACTIONS = {"1": 0, "1/2": 1, "1/4": 2, "1/8": 3, "1/16": 4}
MAX_CELLS, MAX_FACTORS = 256, 10


# --- one at a time ---------------------------------------------------------------------------------------------------


def one_by_one(spec: StudySpec) -> Iterator[Candidate]:
    """Yield the arms of `leave_one_out` and `add_one_in`: one for each part and, with several parts, one for all."""
    words: dict[OneByOne, str] = {"leave_one_out": "without", "add_one_in": "with"}
    for kind, word in words.items():
        parts: Mapping[Any, Any] = getattr(spec, kind)
        together: dict[str, Any] = {}
        places: dict[str, KeyPath] = {}
        for name, overrides in parts.items():
            place = (kind, name)
            check_part(name, overrides, place, "part")
            for path in overrides:
                if path in together:
                    raise UserError(f"two parts change {path}", path=(*place, path), remedy="Merge them into one part.")
            origins = {path: (*place, path) for path in overrides}
            together, places = {**together, **overrides}, {**places, **origins}
            yield Candidate(bounded(f"{word}-{name}"), dict(overrides), origins, stage="generated",
                            role={"design": kind, "part": name})  # fmt: skip
        if len(parts) > 1:
            yield Candidate(f"{word}-all", together, places, stage="generated",
                            role={"design": kind, "part": None})  # fmt: skip


# --- factorial -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Factor:
    """A factor of a factorial design.

    Attributes:
        name: The name of the factor: the end of its path, or the name in the study file.
        written: The factor's key under `factorial` in the study file.
        levels: The name and the changes of each level. The first level is that of the baseline and has no changes.
    """

    name: str
    written: str
    levels: Sequence[tuple[str, dict[str, Any]]]


def factorial(spec: StudySpec, base: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield an arm for each cell except that of the baseline. An arm's role contains the level of each factor."""
    factors = factors_of(spec, base)
    for cell in crossing(spec, factors).cells if factors else ():
        chosen = [(factor, factor.levels[cell[factor.name]]) for factor in factors.values() if cell[factor.name]]
        if chosen:
            overrides = {path: value for _, (_, changes) in chosen for path, value in changes.items()}
            origins = {path: ("factorial", factor.written) for factor, (_, changes) in chosen for path in changes}
            name = bounded(",".join(title for _, (title, _) in chosen))
            yield Candidate(name, overrides, origins, crossed=True, stage="generated",
                            role={"design": "factorial", "levels": cell})  # fmt: skip


def factors_of(spec: StudySpec, base: Mapping[str, Any]) -> dict[str, Factor]:
    """Return the factors of a study's `factorial` by name.

    Args:
        spec: The study file.
        base: The baseline's data.

    Raises:
        UserError: If a factor is neither a mapping of changes nor a list of values that includes the baseline's value;
            if two factors have the same name or change the same path; or if there are too few or too many factors.
    """
    written = {name: value for name, value in spec.factorial.items() if name != "fraction"}
    if not spec.factorial:
        return {}
    check_paths(written, ("factorial",))
    if len(written) > MAX_FACTORS:
        raise UserError(f"too many factors: {len(written)}", path=("factorial",), remedy=f"Use at most {MAX_FACTORS}.")
    if len(written) < 2:
        remedy = "Write e.g. {model.norm: [rms, layer], model.position: [rope, none]}. Use arms for a single change."
        raise UserError("a factorial crosses at least two factors", path=("factorial",), remedy=remedy)
    names = {name: name for name in written} | short_paths([name for name in written if "." in name])
    factors: dict[str, Factor] = {}
    changed = set[str]()
    for key, value in written.items():
        place = ("factorial", key)
        factor = read_factor(names[key], key, value, base, place)
        if factor.name in factors:
            raise UserError(f"two factors are called {factor.name!r}", path=place, remedy="Rename one of the factors.")
        if twice := changed & factor.levels[1][1].keys():
            raise UserError(f"two factors change {min(twice)}", path=place, remedy="Merge them into one factor.")
        changed |= factor.levels[1][1].keys()
        factors[factor.name] = factor
    return factors


def read_factor(name: str, written: str, value: Any, base: Mapping[str, Any], place: KeyPath) -> Factor:
    """Return a factor: a list of levels with the baseline's value, or a mapping of changes.

    Args:
        name: The name of the factor.
        written: The factor's key in the study file.
        value: The factor's value in the study file.
        base: The baseline's data.
        place: The place of the factor in the study file.

    Raises:
        UserError: If the changes are invalid, or the levels do not include the baseline's value and another one.
    """
    if isinstance(value, Mapping) and "." not in written:
        check_part(written, value, place, "factor")
        return Factor(name, written, [("", {}), (name, dict(value))])
    check_lists({written: value}, place[:-1])
    same = [i for i, level in enumerate(value) if is_baseline(base, {written: level}, {written: (*place, i)})]
    if len(value) < 2 or not same:
        problem = f"the levels {format_value(value)} do not include the baseline's value and at least one other"
        raise UserError(problem, path=place, remedy="List the baseline's value and the values to compare it with.")
    others = [(f"{name}={label(level)}", {written: level}) for i, level in enumerate(value) if i != same[0]]
    return Factor(name, written, [("", {}), *others])


def is_baseline(base: Mapping[str, Any], overrides: Mapping[str, Any], places: Mapping[str, KeyPath]) -> bool:
    """Return whether overrides leave the baseline unchanged.

    Raises:
        UserError: If an override is invalid. The error's path is the place of that override.
    """
    try:
        baseline, changed = (
            load_config(RunConfig, data).resolve() for data in (base, apply_overrides(base, overrides))
        )
    except UserError as error:
        there = f"{dotted_path(error.path)}."
        place = next((place for path, place in places.items() if there.startswith(f"{path}.")), None)
        raise UserError(error.problem, path=place or next(iter(places.values())), remedy=error.remedy) from None
    return baseline == changed


def crossing(spec: StudySpec, factors: Mapping[str, Factor]) -> Fraction:
    """Return the cells of a factorial design: all cells or the requested fraction.

    Raises:
        UserError: If there are too many cells; if the fraction is not supported; or if a fraction is requested for too
            few factors or for a factor that does not have two levels.
    """
    asked, names, path = str(spec.factorial.get("fraction", 1)), tuple(factors), ("factorial", "fraction")
    sizes = [len(factor.levels) for factor in factors.values()]
    if asked not in FRACTIONS:
        raise UserError(f"{asked} is not a supported fraction", path=path, remedy=f"Use {', '.join(FRACTIONS)}.")
    if FRACTIONS[asked] == 0:
        if math.prod(sizes) > MAX_CELLS:
            remedy = f"Use at most {MAX_CELLS} cells, or a fraction of factors with two levels, e.g. fraction: 1/2."
            raise UserError(f"{math.prod(sizes)} cells are too many", path=("factorial",), remedy=remedy)
        cells = product(*map(range, sizes))
        return Fraction(names, tuple(dict(zip(names, cell, strict=True)) for cell in cells), frozenset())
    for name, size in zip(names, sizes, strict=True):
        if size != 2:
            problem = f"a fraction requires factors with two levels, but {name} has {size} levels"
            raise UserError(problem, path=path, remedy="Set fraction: 1, or use two levels per factor.")
    crossed = len(names) - FRACTIONS[asked]
    if crossed < 2 or 2**crossed <= len(names):
        problem = f"{asked} of a design of {len(names)} factors has too few cells to distinguish the factors"
        raise UserError(problem, path=path, remedy="Use a larger fraction or more factors.")
    return build_fraction(names, FRACTIONS[asked])
