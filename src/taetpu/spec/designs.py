"""Designs: the arms that are generated for a study, and the role of each arm.

`leave_one_out` and `add_one_in` have one arm for each part and one arm for all parts together and, with `both_ways`,
one for all parts but each. `factorial` crosses
factors in full or as a fraction. `spec.repeats` repeats the arms at scales, on tasks, or under other settings.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from taetpu.core.errors import KeyPath, UserError, dotted_path
from taetpu.core.short_paths import short_paths
from taetpu.spec.document import format_value
from taetpu.spec.fractional_factorial import Fraction, build_fraction
from taetpu.spec.study_file import StudyFile
from taetpu.spec.unresolved_arms import (
    Candidate,
    bounded,
    check_lists,
    check_part,
    check_paths,
    label,
)
from taetpu.store.frozen_study import OneByOne

BOTH_WAYS = "both_ways"
FRACTIONS = {"1": 0, "1/2": 1, "1/4": 2, "1/8": 3, "1/16": 4}
MAX_CELLS, MAX_FACTORS = 256, 10


# --- one at a time ---------------------------------------------------------------------------------------------------


def one_by_one(spec: StudyFile) -> Iterator[Candidate]:
    """Yield the arms of `leave_one_out` and `add_one_in`: one for each part and, with several parts, one for all.

    With `both_ways`, an arm of all parts but one is compared with that of all parts.

    Raises:
        UserError: If a part is invalid, two parts change the same path, or `both_ways` is not possible.
    """
    words: dict[OneByOne, str] = {"leave_one_out": "without", "add_one_in": "with"}
    for kind, word in words.items():
        written: Mapping[Any, Any] = getattr(spec, kind)
        parts = {name: overrides for name, overrides in written.items() if not _is_switch(name, overrides)}
        both_ways = len(parts) < len(written) and written[BOTH_WAYS]
        if both_ways is not False:
            _check_both_ways(spec, kind, both_ways, len(parts))
        together: dict[str, Any] = {}
        places: dict[str, KeyPath] = {}
        for name, overrides in parts.items():
            place = (kind, name)
            check_part(name, overrides, place, "part", spec.examples["change"])
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
        for name in parts if both_ways else ():
            others = {path: value for path, value in together.items() if path not in parts[name]}
            yield Candidate(bounded(f"{word}-all-but-{name}"), others, {path: places[path] for path in others},
                            stage="generated",
                            role={"design": kind, "part_left": name, "against": f"{word}-all"})  # fmt: skip


def _check_both_ways(spec: StudyFile, kind: OneByOne, value: Any, parts: int) -> None:
    """Raise `UserError` if `both_ways` is not a boolean, or its second baseline, the arm of all parts, has no place."""
    if value is not True or parts < 3:  # of two parts, all but one is the other
        problem = f"{BOTH_WAYS} is {format_value(value)}, with {parts} part{'s' if parts != 1 else ''}"
        raise UserError(problem, path=(kind, BOTH_WAYS), remedy="Set true with at least three parts, or false.")
    for path, value in (
        *(((key,), getattr(spec, key)) for key in ("ladder", "tasks", "across", "tune")),
        (("measure", "reach"), spec.measure.reach),
    ):
        if value:
            problem = f"{kind}.{BOTH_WAYS} has a second baseline, and {dotted_path(path)} knows only the first"
            raise UserError(problem, path=path, remedy=f"Remove {dotted_path(path)} or {BOTH_WAYS}.")


def _is_switch(name: Any, overrides: Any) -> bool:
    """Return whether an entry is the switch `both_ways`. A part may have the same name."""
    return name == BOTH_WAYS and not isinstance(overrides, Mapping)


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


def factorial(spec: StudyFile, base: Mapping[str, Any]) -> Iterator[Candidate]:
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


def factors_of(spec: StudyFile, base: Mapping[str, Any]) -> dict[str, Factor]:
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
        remedy = f"Write e.g. {spec.examples['factorial']}. Use arms for a single change."
        raise UserError("a factorial crosses at least two factors", path=("factorial",), remedy=remedy)
    names = {name: name for name in written} | short_paths([name for name in written if "." in name])
    factors: dict[str, Factor] = {}
    changed = set[str]()
    for key, value in written.items():
        place = ("factorial", key)
        factor = read_factor(spec, names[key], key, value, base, place)
        if factor.name in factors:
            raise UserError(f"two factors are called {factor.name!r}", path=place, remedy="Rename one of the factors.")
        if twice := changed & factor.levels[1][1].keys():
            raise UserError(f"two factors change {min(twice)}", path=place, remedy="Merge them into one factor.")
        changed |= factor.levels[1][1].keys()
        factors[factor.name] = factor
    return factors


def read_factor(
    spec: StudyFile, name: str, written: str, value: Any, base: Mapping[str, Any], place: KeyPath
) -> Factor:
    """Return a factor: a list of levels with the baseline's value, or a mapping of changes.

    Args:
        spec: The study file.
        name: The name of the factor.
        written: The factor's key in the study file.
        value: The factor's value in the study file.
        base: The baseline's data.
        place: The place of the factor in the study file.

    Raises:
        UserError: If the changes are invalid, or the levels do not include the baseline's value and another one.
    """
    if isinstance(value, Mapping) and "." not in written:
        check_part(written, value, place, "factor", spec.examples["change"])
        return Factor(name, written, [("", {}), (name, dict(value))])
    check_lists({written: value}, place[:-1])
    same = [i for i, level in enumerate(value) if spec.is_baseline(base, {written: level}, {written: (*place, i)})]
    if len(value) < 2 or not same:
        now = f" {text}" if (text := spec.baseline_text(base, written)) else ""
        problem = f"the levels {format_value(value)} do not include the baseline's value{now} and at least one other"
        raise UserError(problem, path=place, remedy="List the baseline's value and the values to compare it with.")
    others = [(f"{name}={label(level)}", {written: level}) for i, level in enumerate(value) if i != same[0]]
    return Factor(name, written, [("", {}), *others])


def crossing(spec: StudyFile, factors: Mapping[str, Factor]) -> Fraction:
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
