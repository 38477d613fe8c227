"""Metrics of a run, stored in segments. A segment contains the values measured between two steps and is written once.

A segment `<start>-<end>.json` is `{"crc32": n, "series": {"train/loss": {"step": [...], "value": [...]}}}` on one line.
Values are written as the shortest decimal numbers that parse to the same float64, so float32 values are restored
exactly. NaN and infinities, which JSON cannot represent, are the strings "NaN", "Infinity" and "-Infinity". The
checksum covers the bytes of the series.
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
    """Shape `(points,)`: the number of updates made before each value was measured, increasing."""
    value: NDArray[np.float64]
    """Shape `(points,)`: the values, which may be NaN or infinite."""


SAMPLED = "val_sample"
"""The split name in metrics that are measured on a sample of the validation split during training."""


def metric_on_split(metric: str, split: str) -> str:
    """Return the name of a metric on another split. For example, `test/accuracy` on `val` is `val/accuracy`."""
    return f"{split}/{metric.rpartition('/')[2]}"


def progress_metric(primary: str, recorded: Iterable[Collection[str]], curve: bool = False) -> str:
    """Return the name of the series that shows the progress of a study's primary metric.

    The primary metric may be measured only at the end of a run, on the test split or on the whole validation split.
    Until all runs have recorded the primary metric, the same metric on validation data is shown.

    Args:
        primary: the name of the primary metric.
        recorded: the names of the recorded series of each started run.
        curve: whether to prefer the series measured during training over the primary metric itself.

    Returns:
        The first of these series that all runs have: the primary metric, `val_sample/<name>`, `val/<name>`,
        `val_sample/loss` and `val/loss`. If `curve` is set, `val_sample/<name>` comes first. Runs that have none of
        these series are ignored. If no series qualifies, the primary metric is returned.
    """
    sampled, whole = metric_on_split(primary, SAMPLED), metric_on_split(primary, "val")
    preferred = [sampled, primary, whole] if curve else [primary, sampled, whole]
    preferred = list(dict.fromkeys([*preferred, metric_on_split("loss", SAMPLED), "val/loss"]))
    runs = [names for names in map(set, recorded) if names.intersection(preferred)]
    return next((name for name in preferred if runs and all(name in names for names in runs)), primary)


def encode_segment(start: int, end: int, series: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> bytes:
    """Encode one segment.

    Args:
        start: first step of the segment.
        end: last step of the segment.
        series: a pair of arrays `(step, value)` for each metric name. Both arrays have the same length.

    Raises:
        ValueError: if the two arrays of a metric have different lengths, or if its steps do not increase or are not
            between `start` and `end`.
    """
    columns = {}
    for name, (step, value) in series.items():
        steps, values = np.asarray(step, dtype=np.int64), np.asarray(value, dtype=np.float64)
        if steps.ndim != 1 or steps.shape != values.shape:
            raise ValueError(f"{name}: steps have shape {steps.shape}, values {values.shape}")
        if (np.diff(steps) <= 0).any() or ((steps < start) | (steps > end)).any():
            raise ValueError(f"{name}: steps must increase within {start}..{end}, got {steps}")
        columns[name] = {"step": steps.tolist(), "value": _to_json_numbers(values)}
    body = json.dumps(columns, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return b'{"crc32":%d,"series":%b}\n' % (zlib.crc32(body), body)


def decode_segment(data: bytes, file: str, remedy: str = RETRAIN) -> dict[str, Series]:
    """Decode one segment and verify its checksum.

    Args:
        data: the bytes of the segment.
        file: the path for error messages.
        remedy: the remedy for error messages.

    Raises:
        Damaged: if the bytes are not a segment or do not match the checksum.
    """
    match = _SEGMENT.fullmatch(data)
    if match is None or zlib.crc32(match[2]) != int(match[1]):
        raise Damaged("this metrics segment is damaged: checksum mismatch", file=file, remedy=remedy)
    columns = json.loads(match[2])
    return {
        # NumPy also converts the strings "NaN", "Infinity" and "-Infinity" to numbers.
        name: Series(np.array(column["step"], dtype=np.int64), np.array(column["value"], dtype=np.float64))
        for name, column in columns.items()
    }


def content_digest(series: Mapping[str, Series]) -> str:
    """Return the digest of a run's metrics. The digest does not depend on how the metrics are split into segments."""
    parts = [(name, s.step.tolist(), _to_json_numbers(s.value)) for name, s in sorted(series.items())]
    return digest(json.dumps(parts, separators=(",", ":"), allow_nan=False).encode())


def join_segments(segments: Iterable[dict[str, Series]]) -> dict[str, Series]:
    """Concatenate segments, given in step order, to one series per metric. Segments may contain different metrics."""
    parts: dict[str, list[Series]] = {}
    for segment in segments:
        for name, series in segment.items():
            parts.setdefault(name, []).append(series)
    return {
        name: Series(
            np.concatenate([part.step for part in segments]), np.concatenate([part.value for part in segments])
        )
        for name, segments in sorted(parts.items())
    }


def curve_metric(metric: str, known: Container[str]) -> str:
    """Return the name of the series that shows a metric over training.

    Args:
        metric: the metric's name.
        known: the names of the recorded series.

    Returns:
        `val_sample/<name>` for a metric `val/<name>` if that series is recorded, otherwise the metric's own name. Runs
        of earlier versions have no `val_sample` series, because they evaluated the whole split during training.
    """
    split, _, name = metric.partition("/")
    sampled = f"{SAMPLED}/{name}"
    return sampled if split == "val" and sampled in known else metric


def segment_bounds(key: str) -> tuple[int, int]:
    """Return the first and the last step of the segment with a given key.

    Raises:
        UserError: if the key does not end in the file name of a segment.
    """
    match = _NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        raise UserError("this file is not a metrics segment", file=key, remedy="Move the file out of the run's folder.")
    return int(match[1]), int(match[2])


def _to_json_numbers(values: NDArray[np.float64]) -> list[float | str]:
    if np.isfinite(values).all():
        return values.tolist()
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    return [value if np.isfinite(value) else names[str(value)] for value in values.tolist()]
