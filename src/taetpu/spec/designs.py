"""Designs: the arms that are generated for a study, and the role of each arm.

`leave_one_out` and `add_one_in` have one arm for each part and one arm for all parts together. `factorial` crosses
factors in full or as a fraction. `ladder` repeats every arm at several scales. Each scale has a separate baseline.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import KeyPath, UserError, dotted_path
from taetpu.core.short_paths import short_paths
from taetpu.spec.document import format_value
from taetpu.spec.fractional_factorial import Fraction, build_fraction
from taetpu.spec.overrides import apply_overrides
from taetpu.spec.study_config import BASELINE, RunConfig, StudySpec
from taetpu.spec.unresolved_arms import (
    Candidate,
    bounded,
    cell_name,
    check_lists,
    check_part,
    check_paths,
    label,
)
from taetpu.store.frozen_study import OneByOne, Role, StudyDesign

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
        factor, place = _factor(names[key], key, value, base), ("factorial", key)
        if factor.name in factors:
            raise UserError(f"two factors are called {factor.name!r}", path=place, remedy="Rename one of the factors.")
        if twice := changed & factor.levels[1][1].keys():
            raise UserError(f"two factors change {min(twice)}", path=place, remedy="Merge them into one factor.")
        changed |= factor.levels[1][1].keys()
        factors[factor.name] = factor
    return factors


def _factor(name: str, written: str, value: Any, base: Mapping[str, Any]) -> Factor:
    place = ("factorial", written)
    if isinstance(value, Mapping) and "." not in written:
        check_part(written, value, place, "factor")
        return Factor(name, written, [("", {}), (name, dict(value))])
    check_lists({written: value}, ("factorial",))
    same = [i for i, level in enumerate(value) if _is_baseline(base, {written: level}, {written: (*place, i)})]
    if len(value) < 2 or not same:
        problem = f"the levels {format_value(value)} do not include the baseline's value and at least one other"
        raise UserError(problem, path=place, remedy="List the baseline's value and the values to compare it with.")
    others = [(f"{name}={label(level)}", {written: level}) for i, level in enumerate(value) if i != same[0]]
    return Factor(name, written, [("", {}), *others])


def _is_baseline(base: Mapping[str, Any], overrides: Mapping[str, Any], places: Mapping[str, KeyPath]) -> bool:
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


# --- ladder ----------------------------------------------------------------------------------------------------------


def ladder(spec: StudySpec, base: Mapping[str, Any], arms: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield every arm at every rung of the ladder. Without a ladder, yield the arms unchanged.

    Arms are compared with the baseline of their rung.
    """
    if not spec.ladder:
        yield from arms
    for rung in rungs(spec, base):
        if not rung.changes:
            yield from (replace(arm, role={**arm.role, "ladder": {"rung": rung.name, "arm": arm.name}}) for arm in arms)
            continue
        places: dict[str, KeyPath] = {path: ("ladder", path, rung.number) for path in rung.changes}
        baseline = bounded(f"{BASELINE}@{rung.name}")
        role: Role = {"against": baseline, "ladder": {"rung": rung.name, "arm": BASELINE}}
        yield Candidate(baseline, dict(rung.changes), places, crossed=True, stage="generated", role=role)
        for arm in arms:
            for path in rung.changes:
                if path in arm.overrides:
                    problem = f"arm {arm.name!r} and the ladder both set {path}"
                    remedy = "Remove the path from the arm or from the ladder."
                    raise UserError(problem, path=arm.origins[path], remedy=remedy)
            yield replace(
                arm,
                name=bounded(f"{arm.name}@{rung.name}"),
                overrides={**rung.changes, **arm.overrides},
                origins={**places, **arm.origins},
                crossed=True,
                stage="generated",
                role={**arm.role, "against": baseline, "ladder": {"rung": rung.name, "arm": arm.name}},
            )


@dataclass(frozen=True)
class Rung:
    """A scale of the ladder, with its changes to the baseline. The baseline's own scale has no changes."""

    name: str
    number: int
    changes: Mapping[str, Any]


def rungs(spec: StudySpec, base: Mapping[str, Any]) -> list[Rung]:
    """Return the rungs of a study's `ladder`. From one rung to the next, all settings of the ladder change together.

    Raises:
        UserError: If the lists of the settings differ in length, if there are fewer than two rungs, if two rungs are
            equal, or if no rung is the baseline's scale.
    """
    check_lists(spec.ladder, ("ladder",), crossed=False)
    for path, values in spec.ladder.items():
        first = next(iter(spec.ladder))
        if len(values) != len(spec.ladder[first]):
            problem = f"{path} has {len(values)} values, but {first} has {len(spec.ladder[first])}"
            raise UserError(problem, path=("ladder", path), remedy="List one value per rung for each setting.")
    listed: list[Rung] = []
    for number, values in enumerate(zip(*spec.ladder.values(), strict=True)):
        changes = dict(zip(spec.ladder, values, strict=True))
        places: dict[str, KeyPath] = {path: ("ladder", path, number) for path in changes}
        is_baseline, name = _is_baseline(base, changes, places), cell_name(changes)
        if any(rung.name == name for rung in listed):
            where, remedy = next(iter(places.values())), "Remove the duplicate."
            raise UserError(f"the rung {name} is listed twice", path=where, remedy=remedy)
        listed.append(Rung(name, number, {} if is_baseline else changes))
    if listed and (len(listed) < 2 or all(rung.changes for rung in listed)):
        problem = "the rungs of the ladder do not include the baseline's scale and at least one other"
        raise UserError(problem, path=("ladder",), remedy="List the baseline's value and the other scales.")
    return listed


# --- data for the analysis -------------------------------------------------------------------------------------------


def described(spec: StudySpec, base: Mapping[str, Any]) -> StudyDesign:
    """Return the designs of a study as plain data for the analysis."""
    designs: StudyDesign = {}
    if factors := factors_of(spec, base):
        design = crossing(spec, factors)
        designs["factorial"] = {
            "factors": {name: [title for title, _ in factor.levels] for name, factor in factors.items()},
            "fraction": str(spec.factorial.get("fraction", 1)),
            "resolution": design.resolution,
            "words": sorted(sorted(word) for word in design.words),
        }
    if climbed := rungs(spec, base):
        baseline_rung = next(rung.name for rung in climbed if not rung.changes)
        designs["ladder"] = {"rungs": [rung.name for rung in climbed], "own": baseline_rung}
    return designs
