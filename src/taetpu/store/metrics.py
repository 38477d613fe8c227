"""Metrics over a run, in segments: what was measured between two step counts, written once and never changed.

A segment `<start>-<end>.json` is `{"crc32": n, "series": {"train/loss": {"step": [...], "value": [...]}}}` on one line.
Values are written as the shortest decimals that give the same float64, so float32 values come back exactly; what JSON
has no number for stands as "NaN", "Infinity" and "-Infinity". The checksum is over the series' own bytes.
"""

import json
import re
import zlib
from collections.abc import Collection, Container, Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taetpu.core.errors import UserError
from taetpu.store.digests import Damaged, digest
from taetpu.store.documents import RETRAIN

_SEGMENT = re.compile(rb'\{"crc32":(\d+),"series":(\{.*\})\}\n')
_NAME = re.compile(r"(\d+)-(\d+)\.json")


class Series(NamedTuple):
    """One metric over the steps of one run."""

    step: NDArray[np.int64]
    """(points,), increasing: how many updates had been made."""
    value: NDArray[np.float64]
    """(points,); may hold NaN and infinities."""


SAMPLED = "val_sample"
"""The split of metrics that are measured on a sample of the validation split while a run trains."""


def metric_on_split(metric: str, split: str) -> str:
    """The same metric on another split: `test/accuracy` on `val` is `val/accuracy`."""
    return f"{split}/{metric.rpartition('/')[2]}"


def progress_metric(primary: str, recorded: Iterable[Collection[str]], curve: bool = False) -> str:
    """Name the series that shows how a study's primary metric develops.

    A primary metric may be measured only at the end of a run: on the test split, or on the whole validation split where
    a sample of it is evaluated during training. Until all runs have it, its counterpart on validation data is shown.

    Args:
        recorded: for each run that has begun, the names of what was recorded of it.
        curve: whether the series is drawn over training, so that its points count more than that it is the primary.

    Returns:
        the first of the primary metric, `val_sample/<what>`, `val/<what>` and `val/loss` that all runs with any of them
        have; of a `curve`, `val_sample/<what>` comes first. The primary metric where no run has any.
    """
    sampled, whole = metric_on_split(primary, SAMPLED), metric_on_split(primary, "val")
    wanted = [sampled, primary, whole] if curve else [primary, sampled, whole]
    wanted = list(dict.fromkeys([*wanted, metric_on_split("loss", SAMPLED), "val/loss"]))
    runs = [known for known in map(set, recorded) if known.intersection(wanted)]
    return next((name for name in wanted if runs and all(name in known for known in runs)), primary)


def encode_segment(start: int, end: int, series: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> bytes:
    """The bytes of one segment.

    Args:
        start, end: the step counts the segment lies between, both included.
        series: `(step, value)` of equal length by metric.

    Raises:
        ValueError: lengths differ, or steps do not increase, or lie outside `start`..`end`.
    """
    columns = {}
    for name, (step, value) in series.items():
        steps, values = np.asarray(step, dtype=np.int64), np.asarray(value, dtype=np.float64)
        if steps.ndim != 1 or steps.shape != values.shape:
            raise ValueError(f"{name}: steps of shape {steps.shape}, values of shape {values.shape}")
        if (np.diff(steps) <= 0).any() or ((steps < start) | (steps > end)).any():
            raise ValueError(f"{name}: steps must increase within {start}..{end}: {steps}")
        columns[name] = {"step": steps.tolist(), "value": _to_json_numbers(values)}
    body = json.dumps(columns, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return b'{"crc32":%d,"series":%b}\n' % (zlib.crc32(body), body)


def decode_segment(data: bytes, file: str, remedy: str = RETRAIN) -> dict[str, Series]:
    """Read one segment.

    Raises:
        UserError: its bytes are not those that were written.
    """
    match = _SEGMENT.fullmatch(data)
    if match is None or zlib.crc32(match[2]) != int(match[1]):
        raise Damaged("this segment of metrics is damaged: its checksum does not fit", file=file, remedy=remedy)
    columns = json.loads(match[2])
    return {
        # NumPy reads the strings "NaN", "Infinity" and "-Infinity" among the numbers.
        name: Series(np.array(column["step"], dtype=np.int64), np.array(column["value"], dtype=np.float64))
        for name, column in columns.items()
    }


def content_digest(series: Mapping[str, Series]) -> str:
    """A digest of metrics that does not depend on how they are cut into segments."""
    parts = [(name, s.step.tolist(), _to_json_numbers(s.value)) for name, s in sorted(series.items())]
    return digest(json.dumps(parts, separators=(",", ":"), allow_nan=False).encode())


def join_segments(segments: Iterable[dict[str, Series]]) -> dict[str, Series]:
    """Segments in step order as one series a metric. A metric may be absent from some of them."""
    parts: dict[str, list[Series]] = {}
    for segment in segments:
        for name, series in segment.items():
            parts.setdefault(name, []).append(series)
    return {
        name: Series(np.concatenate([part.step for part in found]), np.concatenate([part.value for part in found]))
        for name, found in sorted(parts.items())
    }


def curve_metric(metric: str, known: Container[str]) -> str:
    """The series that shows a metric over training: that of the sample of the validation split for `val/...`.

    Args:
        known: names of series. Runs of earlier versions evaluated the whole split each time, and have no sample.
    """
    split, _, what = metric.partition("/")
    sampled = f"{SAMPLED}/{what}"
    return sampled if split == "val" and sampled in known else metric


def segment_name(start: int, end: int) -> str:
    """`0-100.json`."""
    return f"{start}-{end}.json"


def segment_bounds(key: str) -> tuple[int, int]:
    """Start and end of a segment, from its key.

    Raises:
        UserError: a file that is no segment lies among them.
    """
    match = _NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        raise UserError("this file is no segment of metrics", file=key, remedy="move it out of the run's folder")
    return int(match[1]), int(match[2])


def _to_json_numbers(values: NDArray[np.float64]) -> list[float | str]:
    if np.isfinite(values).all():
        return values.tolist()
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [value if np.isfinite(value) else names[str(value)] for value in values.tolist()]
