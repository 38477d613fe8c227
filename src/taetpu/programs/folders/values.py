"""Metrics and settings as formats report them: numbers that may not be finite, steps that restart, nested settings."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taetpu.core.errors import UserError
from taetpu.core.json_files import read_bytes
from taetpu.store.documents import from_yaml
from taetpu.store.flat_config import flatten
from taetpu.store.metrics import Series

MAX_SETTINGS = 10_000
"""The maximum number of settings of a run. YAML aliases can expand to more than fits in memory."""
MAX_DEPTH = 100
LARGEST_YAML = 2**20
"""The size up to which a YAML file is read, in bytes."""

_NOT_FINITE = {"nan", "inf", "infinity"}


class Curve:
    """The points of a metric.

    Args:
        limit: The number of points from which every second point is removed, then every second of the others and so
            on. The last point is always there. By default, all points are kept.
    """

    def __init__(self, limit: int | None = None):
        self._limit = limit
        self._points: list[tuple[int, float]] = []
        self._stride, self._reports = 1, 0

    def add(self, step: int, value: float) -> None:
        """Add a point, which replaces those from its step on: a resumed run repeats the steps after its checkpoint."""
        points = self._points
        if points and points[-1][0] >= step:
            while points and points[-1][0] >= step:
                points.pop()
            self._reports = len(points) * self._stride
        elif (self._reports - 1) % self._stride:  # the last point is there only because it was the last
            points.pop()
        points.append((step, value))
        self._reports += 1
        if self._limit and len(points) > self._limit and (self._reports - 1) % (2 * self._stride) == 0:
            self._points = points[::2]
            self._stride *= 2

    @property
    def series(self) -> Series:
        """The points as arrays."""
        steps, values = zip(*self._points, strict=True)
        return Series(np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64))


class Points:
    """The values of a run's metrics in the order in which they were reported.

    Args:
        limit: The number of points of a metric from which they are thinned out (see `Curve`).
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._curves: dict[str, Curve] = {}
        self.last: dict[str, float] = {}
        """The last reported value of each metric, which may not be finite."""

    def add(self, metric: str, value: float, step: int | None = None) -> None:
        """Add a value, which belongs to the metric's curve if its step is known and fits into 64 bits."""
        self.last[metric] = value
        if step is not None and -(2**63) <= step < 2**63:
            if metric not in self._curves:
                self._curves[metric] = Curve(self._limit)
            self._curves[metric].add(step, value)

    @property
    def metrics(self) -> dict[str, float | None]:
        """The last reported value of each metric; None if it is not finite."""
        return {name: value if math.isfinite(value) else None for name, value in self.last.items()}

    @property
    def curves(self) -> dict[str, Series]:
        """The steps and values of each metric that was reported with steps."""
        return {name: curve.series for name, curve in self._curves.items()}


def parse_metric(value: Any) -> float | None:
    """Return a reported value as a number. Return None if it is none, such as text, a table, a picture or a boolean.

    NaN and infinities may be text, as JSON has no such numbers.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str) and value.strip().lstrip("+-").lower() in _NOT_FINITE:
        return float(value)
    return None


def parse_reported(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each number in a reported JSON value. A mapping's names are dotted.

    None is NaN, which JSON of some writers cannot represent. Text, lists and media (mappings with `_type`) are no
    metrics.
    """
    if isinstance(value, Mapping):
        if "_type" not in value and depth < MAX_DEPTH:
            for key, item in value.items():
                yield from parse_reported(item, f"{name}.{key}" if name else str(key), depth + 1)
    elif (number := math.nan if value is None else parse_metric(value)) is not None:
        yield name, number


def flatten_settings(settings: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return nested settings by dotted names. Lists and other values than text, numbers and booleans become text.

    Args:
        settings: The settings.
        file: The file that contains them, for messages.

    Raises:
        UserError: If there are more than `MAX_SETTINGS`, or more than `MAX_DEPTH` inside each other.
    """
    budget = iter(range(MAX_SETTINGS))

    def visit(value: Any, depth: int) -> Any:
        if next(budget, None) is None or depth > MAX_DEPTH:
            problem = f"this file has more than {MAX_SETTINGS:,} settings, or more than {MAX_DEPTH} inside each other"
            raise UserError(problem, file=file, remedy="Remove the settings that do not tell runs apart.")
        if isinstance(value, Mapping):
            return {str(key): visit(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [visit(item, depth + 1) for item in value]
        return value if isinstance(value, str | int | float | bool | None) else str(value)

    leaves = flatten(visit(settings, 0))
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in leaves}


def read_yaml(file: Path, remedy: str) -> dict[str, Any]:
    """Return the mapping in a YAML file; an empty file is an empty mapping.

    Args:
        file: The file.
        remedy: The remedy if the file is missing or damaged, or contains other tags than those of plain data.

    Raises:
        UserError: If the file is missing, not regular, too large, or not a mapping of plain data.
    """
    data = read_bytes(file, remedy, LARGEST_YAML)
    if not data.strip():
        return {}
    try:
        return from_yaml(data, str(file), remedy)
    except (RecursionError, ValueError) as error:  # ValueError: a date that does not exist
        problem = "nested too deeply" if isinstance(error, RecursionError) else f"not valid YAML: {error}"
        raise UserError(problem, file=file, remedy=remedy) from None
