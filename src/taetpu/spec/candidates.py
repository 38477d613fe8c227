"""Arms before they are resolved: what they change, where that is written, and names that can be a folder's."""

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
"""Where an arm comes from: the study's `arms`, a design, `match`, or `tune`, whose trials decide its tuned arms."""


@dataclass(frozen=True)
class Candidate:
    """An arm before it is resolved.

    Attributes:
        origins: where in the study file each override stands.
        crossed: one of a cartesian product, where a single value may be the baseline's.
        grid: from `grid`, where the baseline's own cell is no arm.
        role: what a design has it for: `against` (the arm that it is compared with, if not the baseline), and the
            design's own notes, which the analysis reads.
        stage: where it comes from.
    """

    name: str
    overrides: dict[str, Any]
    origins: Mapping[str, KeyPath]
    crossed: bool = False
    grid: bool = False
    role: Mapping[str, Any] = field(default_factory=dict)
    stage: Stage = "written"


def check_paths(overrides: Mapping[Any, Any], place: KeyPath) -> None:
    """Raises `UserError` for what is no path, and for too many of them."""
    if len(overrides) > MAX_CHANGES:
        raise UserError(f"{len(overrides)} changes are too many", path=place, remedy=f"at most {MAX_CHANGES}")
    for path in overrides:
        if not isinstance(path, str):
            raise UserError(f"{path!r} is not a path", path=(*place, path), remedy="e.g. model.mixer.num_heads")


def check_values(values: list[Any], place: KeyPath, repeated: bool = False) -> None:
    """Raises `UserError` for an empty list, and for a value that is listed twice unless it may be `repeated`."""
    if len(values) > MAX_VALUES:
        raise UserError(f"{len(values)} values are too many", path=place, remedy=f"at most {MAX_VALUES}")
    if not values:
        raise UserError("an empty list of values makes no arm", path=place, remedy="list at least one value")
    for i, value in enumerate(() if repeated else values):
        if any(value == earlier and type(value) is type(earlier) for earlier in values[:i]):
            raise UserError(f"{format_value(value)} is listed twice", path=(*place, i), remedy="remove one")


def check_count(lists: Iterable[Sequence[Any]], place: KeyPath) -> None:
    """Raises `UserError` where the product of lists has more cells than a study has arms; no cell is made."""
    cells = math.prod(len(values) for values in lists)
    if cells > MAX_ARMS:
        remedy = f"at most {MAX_ARMS}; fewer values, or arms that change one thing at a time"
        raise UserError(f"{cells} combinations are too many arms", path=place, remedy=remedy)


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
    return format_value(value)


def cell_name(values: Mapping[str, Any]) -> str:
    """`num_heads=8,dim=64`; names are cut to what tells the paths apart."""
    return ",".join(f"{short}={label(values[path])}" for path, short in short_paths(list(values)).items())


def bounded(name: str) -> str:
    """A long name cut to what a folder's may have, and kept apart from others by a hash."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def short_paths(paths: list[str]) -> dict[str, str]:
    """Each path's last part, or as many of its last parts as make it differ from the others; `x.kind` counts as `x`."""
    split = {path: (path.removesuffix(".kind") or path).split(".") for path in paths}
    for size in range(1, max(map(len, split.values()), default=0) + 1):
        names = {path: dotted_path(parts[-size:]) for path, parts in split.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in paths}
