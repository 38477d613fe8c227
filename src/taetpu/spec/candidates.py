"""Arms before they are resolved: their overrides, places in the study file, and path-safe names."""

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
MAX_VALUES = 512  # of one list
MAX_ARMS = 512
MAX_CHANGES = 100  # of one arm


Stage = Literal["written", "generated", "matched", "trial", "tuned"]
"""The origin of an arm: the study's `arms`, a design, `match`, or `tune` with its trials and tuned arms."""


@dataclass(frozen=True)
class Candidate:
    """An arm before it is resolved.

    Attributes:
        name: Its name.
        overrides: Its changes by path.
        origins: The place of each override in the study file.
        crossed: Whether it is part of a cartesian product, where single values may be the baseline's.
        grid: Whether it is from `grid`, where the baseline's own cell is dropped.
        role: Its role in a design: `against`, the arm to compare with if not the baseline, and the design's notes for
            the analysis.
        stage: Its origin.
    """

    name: str
    overrides: dict[str, Any]
    origins: Mapping[str, KeyPath]
    crossed: bool = False
    grid: bool = False
    role: Mapping[str, Any] = field(default_factory=dict)
    stage: Stage = "written"


def check_paths(overrides: Mapping[Any, Any], place: KeyPath) -> None:
    """Raise `UserError` for an override whose path is not text, or for too many overrides."""
    if len(overrides) > MAX_CHANGES:
        raise UserError(f"too many changes: {len(overrides)}", path=place, remedy=f"Use at most {MAX_CHANGES}")
    for path in overrides:
        if not isinstance(path, str):
            raise UserError(f"{path!r} is not a path", path=(*place, path), remedy="Write e.g. model.mixer.num_heads.")


def check_values(values: list[Any], place: KeyPath, repeated: bool = False) -> None:
    """Raise `UserError` for an empty or too long list, or for a repeated value unless `repeated` is true."""
    if len(values) > MAX_VALUES:
        raise UserError(f"too many values: {len(values)}", path=place, remedy=f"Use at most {MAX_VALUES}")
    if not values:
        raise UserError("an empty list of values makes no arm", path=place, remedy="List at least one value.")
    for i, value in enumerate(() if repeated else values):
        if any(value == earlier and type(value) is type(earlier) for earlier in values[:i]):
            raise UserError(f"{format_value(value)} is listed twice", path=(*place, i), remedy="Remove one.")


def check_count(lists: Iterable[Sequence[Any]], place: KeyPath) -> None:
    """Raise `UserError` if the product of lists has more cells than a study may have arms. No cell is built."""
    cells = math.prod(len(values) for values in lists)
    if cells > MAX_ARMS:
        remedy = f"Use at most {MAX_ARMS}: list fewer values, or change one thing per arm."
        raise UserError(f"too many arms: {cells} combinations", path=place, remedy=remedy)


# --- names -----------------------------------------------------------------------------------------------------------


def label(value: Any) -> str:
    """Return a value as part of a path-safe name. A hash keeps different values apart if characters are replaced."""
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
    """Return the name of a cell, e.g. `num_heads=8,dim=64`, with paths shortened while they stay distinct."""
    return ",".join(f"{short}={label(values[path])}" for path, short in short_paths(list(values)).items())


def bounded(name: str) -> str:
    """Return a name of at most `LONGEST_NAME` characters; a longer one is cut and gets a hash."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def short_paths(paths: list[str]) -> dict[str, str]:
    """Return the shortest suffixes that keep paths distinct, by path; `x.kind` counts as `x`."""
    split = {path: (path.removesuffix(".kind") or path).split(".") for path in paths}
    for size in range(1, max(map(len, split.values()), default=0) + 1):
        names = {path: dotted_path(parts[-size:]) for path, parts in split.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in paths}
