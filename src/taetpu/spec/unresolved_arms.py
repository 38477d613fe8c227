"""Arms before they are resolved, with their overrides, their places in the study file, and their path-safe names."""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from taetpu.core.errors import KeyPath, UserError
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY
from taetpu.core.short_paths import short_paths
from taetpu.spec.document import format_value
from taetpu.spec.study_file import LONGEST_NAME, check_name
from taetpu.store.frozen_study import Role

LONGEST_LABEL = 40
MAX_ARMS = 512

Stage = Literal["written", "generated", "matched", "trial", "tuned", "component"]
"""The origin of an arm: `arms` in the study file, a design, `match`, a trial of `tune`, the result of `tune`, or
`taetpu components`."""


@dataclass(frozen=True)
class Candidate:
    """An arm before it is resolved.

    Attributes:
        name: The name of the arm.
        overrides: The changes to the baseline, by path.
        origins: The place of each override in the study file.
        crossed: Whether the arm is part of a Cartesian product, so that single values may equal the baseline's values.
        grid: Whether the arm is from `grid`. A combination that equals the baseline is dropped.
        role: The arm's role in a design. The entry `against` is the name of the arm to compare with. The entry is
            absent if that arm is the baseline. The analysis uses the other entries.
        stage: The origin of the arm.
    """

    name: str
    overrides: dict[str, Any]
    origins: Mapping[str, KeyPath]
    crossed: bool = False
    grid: bool = False
    role: Role = field(default_factory=Role)
    stage: Stage = "written"


def check_paths(overrides: Mapping[Any, Any], place: KeyPath) -> None:
    """Raise `UserError` if the path of an override is not text."""
    for path in overrides:
        if not isinstance(path, str):
            remedy = "Use a path, e.g. model.mixer.num_heads."
            raise UserError(f"{path!r} is not a path", path=(*place, path), remedy=remedy)


def check_part(name: Any, overrides: Any, place: KeyPath, what: str, example: str) -> None:
    """Raise `UserError` if a named change in the study file has an invalid name or no overrides.

    Args:
        name: The name.
        overrides: The overrides.
        place: The place of the name in the study file.
        what: The noun for the change in error messages, such as `arm`.
        example: The overrides that the message shows, such as `{lr: 0.1}`.
    """
    if not isinstance(name, str):
        raise UserError(f"{what} name {name!r} is not text", path=place, remedy=f"Write '{name}' in quotes.")
    check_name(name, what, place)
    if not isinstance(overrides, Mapping) or not overrides:
        problem = f"{what} {name!r} must be a mapping with at least one override, got {format_value(overrides)}"
        raise UserError(problem, path=place, remedy=f"Add overrides, e.g. {example}.")
    check_paths(overrides, place)


def check_trained(path: str, place: KeyPath) -> None:
    """Raise `UserError` if a path changes only how runs are observed or computed."""
    section, _, rest = path.partition(".")
    if section == "train" and (says := FIELDS_OUTSIDE_IDENTITY.get(rest.split(".")[0])):
        problem = f"{path} controls {says} and does not affect training, so it cannot be set here"
        raise UserError(problem, path=place, remedy="Set this field in base.")


def check_lists(lists: Mapping[str, Any], place: KeyPath, most: int = MAX_ARMS, crossed: bool = True) -> None:
    """Check lists of values by path.

    Args:
        lists: The lists.
        place: The place of `lists` in the study file.
        most: The maximum number of combinations of values. The combinations are counted without building them.
        crossed: Whether all combinations are used, so that no list may contain a value twice.

    Raises:
        UserError: If a path is not text, a list is empty or not a list, a value is listed twice, or there are too many
            combinations.
    """
    check_paths(lists, place)
    for path, values in lists.items():
        if not isinstance(values, list):
            shown = format_value(values)
            raise UserError(f"{shown} is not a list of values", path=(*place, path), remedy=f"Write [{shown}, ...].")
        if not values:
            raise UserError("the list has no values", path=(*place, path), remedy="List at least one value.")
    if not crossed:
        return
    cells = math.prod(len(values) for values in lists.values())
    if cells > most:
        remedy = f"Use at most {most} combinations. To do so, list fewer values, or change one setting per arm."
        raise UserError(f"too many combinations: {cells}", path=place, remedy=remedy)
    for path, values in lists.items():
        for i, value in enumerate(values):
            if any(value == earlier and type(value) is type(earlier) for earlier in values[:i]):
                problem = f"{format_value(value)} is listed twice"
                raise UserError(problem, path=(*place, path, i), remedy="Remove the duplicate.")


def cells_of(lists: Mapping[str, list[Any]], place: KeyPath) -> Iterator[tuple[dict[str, Any], dict[str, KeyPath]]]:
    """Yield, for each combination of listed values, the values and their places in the study file, both by path."""
    for cell in product(*(enumerate(values) for values in lists.values())):
        chosen = dict(zip(lists, cell, strict=True))
        places: dict[str, KeyPath] = {path: (*place, path, number) for path, (number, _) in chosen.items()}
        yield {path: value for path, (_, value) in chosen.items()}, places


# --- names -----------------------------------------------------------------------------------------------------------


def label(value: Any) -> str:
    """Format a value as part of a path-safe name.

    If characters must be replaced or removed, a hash is appended, so that different values have different names.
    """
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
    return format_value(value)


def cell_name(values: Mapping[str, Any]) -> str:
    """Return the name of a combination of values, such as `num_heads=8,dim=64`.

    Paths are shortened as much as possible while they remain distinct.
    """
    return ",".join(f"{short}={label(values[path])}" for path, short in short_paths(list(values)).items())


def bounded(name: str) -> str:
    """Shorten a name to at most `LONGEST_NAME` characters. If characters are cut off, a hash is appended."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
