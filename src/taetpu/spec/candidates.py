"""Arms before they are resolved, with their overrides, their places in the study file, and their path-safe names."""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from taetpu.core.errors import KeyPath, UserError, dotted_path
from taetpu.spec.overrides import format_value
from taetpu.spec.schema import LONGEST_NAME

LONGEST_LABEL = 40
MAX_VALUES = 512  # maximum number of values in a list
MAX_ARMS = 512
MAX_CHANGES = 100  # maximum number of overrides of an arm


Stage = Literal["written", "generated", "matched", "trial", "tuned"]
"""The origin of an arm: `arms` in the study file, a design, `match`, a trial of `tune`, or the result of `tune`."""


@dataclass(frozen=True)
class Candidate:
    """An arm before it is resolved.

    Attributes:
        name: The name of the arm.
        overrides: The changes to the baseline, by path.
        origins: The place of each override in the study file.
        crossed: Whether the arm is part of a Cartesian product, so that single values may equal the baseline's values.
        grid: Whether the arm is from `grid`. The cell of a grid that equals the baseline is dropped.
        role: The arm's role in a design. `against` is the name of the arm to compare with if it is not the baseline.
            The other entries are for the analysis.
        stage: The origin of the arm.
    """

    name: str
    overrides: dict[str, Any]
    origins: Mapping[str, KeyPath]
    crossed: bool = False
    grid: bool = False
    role: Mapping[str, Any] = field(default_factory=dict)
    stage: Stage = "written"


def check_paths(overrides: Mapping[Any, Any], place: KeyPath) -> None:
    """Raise `UserError` if the path of an override is not text, or if there are too many overrides."""
    if len(overrides) > MAX_CHANGES:
        raise UserError(f"too many changes: {len(overrides)}", path=place, remedy=f"Use at most {MAX_CHANGES}")
    for path in overrides:
        if not isinstance(path, str):
            raise UserError(f"{path!r} is not a path", path=(*place, path), remedy="Write e.g. model.mixer.num_heads.")


def check_values(values: list[Any], place: KeyPath, repeated: bool = False) -> None:
    """Raise `UserError` if a list is empty or too long, or if it repeats a value and `repeated` is False."""
    if len(values) > MAX_VALUES:
        raise UserError(f"too many values: {len(values)}", path=place, remedy=f"Use at most {MAX_VALUES}")
    if not values:
        raise UserError("an empty list of values makes no arm", path=place, remedy="List at least one value.")
    for i, value in enumerate(() if repeated else values):
        if any(value == earlier and type(value) is type(earlier) for earlier in values[:i]):
            raise UserError(f"{format_value(value)} is listed twice", path=(*place, i), remedy="Remove one.")


def check_count(lists: Iterable[Sequence[Any]], place: KeyPath) -> None:
    """Raise `UserError` if the product of the lists has more than `MAX_ARMS` cells. The cells are not built."""
    cells = math.prod(len(values) for values in lists)
    if cells > MAX_ARMS:
        remedy = f"Use at most {MAX_ARMS}: list fewer values, or change one thing per arm."
        raise UserError(f"too many arms: {cells} combinations", path=place, remedy=remedy)


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
    """Return the name of a cell, such as `num_heads=8,dim=64`. Paths are shortened as far as they remain distinct."""
    return ",".join(f"{short}={label(values[path])}" for path, short in short_paths(list(values)).items())


def bounded(name: str) -> str:
    """Return a name with at most `LONGEST_NAME` characters. A longer name is cut, and a hash is appended."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def short_paths(paths: list[str]) -> dict[str, str]:
    """Return suffixes by path: the shortest suffixes of equal length that are distinct. `x.kind` is treated as `x`."""
    split = {path: (path.removesuffix(".kind") or path).split(".") for path in paths}
    for size in range(1, max(map(len, split.values()), default=0) + 1):
        names = {path: dotted_path(parts[-size:]) for path, parts in split.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in paths}
