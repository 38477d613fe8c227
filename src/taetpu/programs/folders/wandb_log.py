"""The `.wandb` file, in which W&B logs everything about a run before it is synced.

The library has no public reader. A file begins with `:W&B` and a version, and continues as LevelDB's log format: blocks
of 32 KiB with records that are split at their ends. The records are messages of `wandb.proto`.

Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
"""

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, check_regular, explain_unreadable
from taetpu.programs.folders.values import Points, parse_reported

LARGEST_FILE = 2**30
"""The size up to which a log is read, in bytes."""

INVALID = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors of reading an invalid message or its JSON, beside `DecodeError` of protobuf, which is installed with wandb."""
_START = b":W&B\xe1\xbe\x00"
_BLOCK, _HEADER = 2**15, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass
class RunLog:
    """What a `.wandb` file says about a run."""

    names: dict[str, Any] = field(default_factory=dict)
    """The run's name, group, project, job type and tags, as far as they are set."""
    config: dict[str, Any] = field(default_factory=dict)
    points: Points = field(default_factory=Points)
    exit_code: int | None = None
    """None if the run has not ended, or its process was killed."""


def is_readable() -> bool:
    """Return whether the library that defines the messages is installed."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # otherwise, importing wandb starts to report crashes
    try:
        import wandb.proto.wandb_internal_pb2  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def read_log(file: Path, run: RunLog) -> None:
    """Add the content of a `.wandb` file to what is known about its run.

    Raises:
        UserError: If the file is damaged.
    """
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    check_regular(file, RESTORE, LARGEST_FILE)
    with explain_unreadable(file):
        data = file.read_bytes()
    run.exit_code = None
    for message in _split_records(data, file):
        try:
            _add_record(Record.FromString(message), run)
        except Exception as error:
            if not isinstance(error, INVALID) and type(error).__name__ != "DecodeError":
                raise
            raise UserError(f"not a record of W&B: {error}", file=file, remedy=RESTORE) from None


def _split_records(data: bytes, file: Path) -> Iterator[bytes]:
    """Yield the records of a log. The last one may be cut off, as a killed process leaves it.

    Raises:
        UserError: If a checksum does not match.
    """
    if not data.startswith(_START):
        problem = "this file does not begin like a log of W&B" if data else "this file is empty"
        raise UserError(problem, file=file, remedy=RESTORE)
    place, parts = len(_START), b""
    while place + _HEADER <= len(data):
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        checksum = int.from_bytes(data[place : place + 4], "little")
        size = int.from_bytes(data[place + 4 : place + 6], "little")
        body = data[place + 6 : place + _HEADER + size]  # with the type before it, to which the checksum applies
        if len(body) < 1 + size:
            return
        kind = body[0]
        if zlib.crc32(body) != checksum or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            raise UserError(f"damaged at byte {place:,}: checksum mismatch", file=file, remedy=RESTORE)
        parts = body[1:] if kind in (_FULL, _FIRST) else parts + body[1:]
        if kind in (_FULL, _LAST):
            yield parts
        place += _HEADER + size


def _add_record(record: Any, run: RunLog) -> None:
    kind = record.WhichOneof("record_type")
    if kind == "run":
        names = {
            "id": record.run.run_id,
            "name": record.run.display_name,
            "group": record.run.run_group,
            "project": record.run.project,
            "job_type": record.run.job_type,
            "tags": ", ".join(record.run.tags),
        }
        run.names |= {key: value for key, value in names.items() if value}
        _update_config(run.config, record.run.config)
    elif kind == "config":
        _update_config(run.config, record.config)
    elif kind == "summary":
        for item in record.summary.update:
            _add_values(run.points, item, None)
    elif kind == "history":
        values = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        step = record.history.step.num if record.history.HasField("step") else int(json.loads(values.get("_step", "0")))
        for item in record.history.item:
            _add_values(run.points, item, step)
    elif kind == "exit":
        run.exit_code = record.exit.exit_code


def _add_values(points: Points, item: Any, step: int | None) -> None:
    """Add the value of a key, or the values in it if it is a mapping; W&B's own keys begin with an underscore."""
    name = ".".join(item.nested_key) or item.key
    if not name.startswith("_"):
        for metric, value in parse_reported(json.loads(item.value_json), name):
            points.add(metric, value, step)


def _update_config(config: dict[str, Any], change: Any) -> None:
    for item in change.update:
        *above, last = item.nested_key or [item.key]
        target = config
        for key in above:
            target = target.setdefault(key, {})
        target[last] = json.loads(item.value_json)
    for item in change.remove:
        config.pop(item.key, None)
