"""Expand the entries of a study file that define arms to single arms with names."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, TypeVar

from taetpu.core.errors import ErrorList, KeyPath, UserError, locate_errors
from taetpu.spec.designs import factorial, one_by_one
from taetpu.spec.document import Document
from taetpu.spec.repeats import repeat_arms
from taetpu.spec.study_file import BASELINE, StudyFile
from taetpu.spec.unresolved_arms import (
    MAX_ARMS,
    Candidate,
    bounded,
    cell_name,
    cells_of,
    check_lists,
    check_part,
    label,
)

A = TypeVar("A", bound=Any)
"""The type of resolved arms."""


def build_arms(
    spec: StudyFile,
    base: Mapping[str, Any],
    first: A,
    document: Document,
    build: Callable[[Candidate, dict[str, A]], A | None],
) -> tuple[A, ...]:
    """Return all arms, the baseline first. Raise the errors in all arms together.

    Args:
        spec: The study file.
        base: The baseline's data.
        first: The baseline.
        document: The study's document.
        build: Returns an arm, given the arms before it by name, or None if the arm is left out.
    """
    mistakes, arms = ErrorList(), {first.name: first}
    for candidate in candidates(spec, base, mistakes):
        with mistakes.collect():
            if (arm := build(candidate, arms)) is not None:
                arms[arm.name] = arm
    ErrorList(map(document.locate, mistakes)).raise_all()
    return tuple(arms.values())


def candidates(spec: StudyFile, base: Mapping[str, Any], mistakes: ErrorList) -> list[Candidate]:
    """Return all arms except the baseline: the arms under `arms` and the arms of designs, in every repetition.

    Args:
        spec: The study file.
        base: The baseline's data.
        mistakes: A list to which the errors in single arms under `arms` are added. These arms are left out.

    Raises:
        UserError: If a name, an override, or a list of values in a design is invalid; if two arms have the same name;
            or if there are too many arms.
    """
    seen: dict[str, Candidate] = {}
    arms = chain(_written(spec, base, mistakes), one_by_one(spec), factorial(spec, base), _grid(spec))
    for arm in repeat_arms(spec, base, list(islice(arms, MAX_ARMS + 1))):
        place = next(iter(arm.origins.values()))
        if len(seen) == MAX_ARMS:
            problem = f"the study has more than {MAX_ARMS} arms"
            raise UserError(problem, path=place, remedy="Split the study into several studies.")
        twin = seen.setdefault(arm.name.casefold(), arm)
        if twin is not arm:
            problem = f"arm names must differ in more than case: {twin.name!r} and {arm.name!r}"
            raise UserError(problem, path=place, remedy="Rename one of the arms.")
    return list(seen.values())


def _written(spec: StudyFile, base: Mapping[str, Any], mistakes: ErrorList) -> Iterator[Candidate]:
    for name, overrides in spec.arms.items():
        with mistakes.collect():
            yield from _written_arm(spec, name, overrides, base)


def _written_arm(spec: StudyFile, name: Any, overrides: Any, base: Mapping[str, Any]) -> Iterator[Candidate]:
    """Yield an arm for each combination of listed values, or a single arm if no override has a list of values."""
    place = ("arms", name)
    check_part(name, overrides, place, "arm", spec.examples["change"])
    if name.casefold() == BASELINE:
        raise UserError(f"the arm name {name!r} is reserved for the baseline", path=place, remedy="Rename the arm.")
    with locate_errors(*place):
        lists = {path: overrides[path] for path in spec.paths_of_lists(base, overrides)}
    check_lists(lists, place)
    origins: dict[str, KeyPath] = {path: (*place, path) for path in overrides}
    for values, places in cells_of(lists, place):
        title = name
        if len(lists) == 1:
            title = f"{name}={label(*values.values())}"
        elif lists:
            title = f"{name}-{cell_name(values)}"
        yield Candidate(bounded(title), {**overrides, **values}, {**origins, **places}, crossed=len(lists) > 1)


def _grid(spec: StudyFile) -> Iterator[Candidate]:
    check_lists(spec.grid, ("grid",))
    for values, places in cells_of(spec.grid, ("grid",)) if spec.grid else ():
        yield Candidate(bounded(cell_name(values)), values, places, crossed=True, grid=True, stage="generated")
