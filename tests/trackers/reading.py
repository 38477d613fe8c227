"""Read the files of trackers as `{metric: {step: value}}`, and their texts."""

import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

from taetpu.store.runs import RunFolder

Points = dict[str, dict[int, float | str]]


def added(points: Points, name: str, step: int, value: float | str) -> None:
    series = points.setdefault(name, {})
    assert step not in series, f"{name} is there twice at step {step}"
    series[step] = value


def stored(run: RunFolder, cut=float) -> Points:
    """Return the stored values of a run, converted by `cut` as by the tracker."""
    points = {
        name: dict(zip(s.step.tolist(), map(cut, s.value.tolist()), strict=True)) for name, s in run.metrics().items()
    }
    return {**points, **({"sample": dict(run.samples())} if run.samples() else {})}


def final(run: RunFolder) -> dict[str, float]:
    result = run.result()
    assert result is not None
    return {f"final/{name}": value for name, value in result["metrics"].items()}


def tensorboard(file: Path) -> Points:
    """Return the scalars and texts of an event file. Check every checksum."""
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    data, at, points = file.read_bytes(), 0, {}
    while at < len(data):
        size = struct.unpack("<Q", data[at : at + 8])[0]
        body, crc = data[at + 12 : at + 12 + size], data[at + 12 + size : at + 16 + size]
        assert struct.unpack("<I", data[at + 8 : at + 12])[0] == masked_crc32c(data[at : at + 8])
        assert struct.unpack("<I", crc)[0] == masked_crc32c(body)
        event = event_pb2.Event.FromString(body)
        assert (event.file_version == "brain.Event:2") == (at == 0)
        for value in event.summary.value:
            kind = value.metadata.plugin_data.plugin_name
            if kind == "text":
                lines = value.tensor.string_val[0].decode().split("\n")
                text = "\n".join(line.removeprefix("    ") for line in lines)
                added(points, value.tag.removesuffix("/text_summary"), event.step, text)
            elif kind == "hparams":
                added(points, value.tag, event.step, value.metadata.plugin_data.content)
            else:
                added(points, value.tag, event.step, value.simple_value)
        at += size + 16
    return points


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, which is wandb's: blocks of 32 KiB, a header of 7 bytes before
    each part of a record."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def wandb(folder: Path) -> tuple[Points, dict, dict]:
    """Return the history, the config and the summary of an offline run."""
    from wandb.proto import wandb_internal_pb2

    points, config, summary = {}, {}, {}
    (file,) = folder.glob("*.wandb")
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.HasField("run"):
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            config["name"], config["group"] = record.run.display_name, record.run.run_group
        summary |= {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.summary.update}
        row = {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
        for name in [name for name in row if not name.startswith("_")]:
            added(points, name, row["_step"], row[name])
    return points, config, summary


def trackio(file: Path) -> dict[str, Points]:
    """Return the values of all runs by name."""
    found: dict[str, Points] = {}
    with sqlite3.connect(file) as database:
        for run, step, row in database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id"):
            for name, value in json.loads(row).items():
                added(found.setdefault(run, {}), name, step, value)
    database.close()
    return found
