"""TensorBoard's event files, read with the library `tensorboard`: scalars, and settings of the plug-in `hparams`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, check_regular, explain_unreadable
from taetpu.programs.folders.formats import Format
from taetpu.programs.folders.lightning import read_hparams
from taetpu.programs.folders.tree import Tree, describe_place
from taetpu.programs.folders.unfinished import UnfinishedRuns
from taetpu.programs.folders.values import Points
from taetpu.programs.records import Record

LARGEST_FILE = 2**30
"""The size up to which an event file is read, in bytes."""
SPLITS = {"train", "training", "val", "valid", "validation", "eval", "test"}
"""Names of folders that contain a part of a run's metrics, as those of Keras."""


@dataclass
class _Events:
    """The content of the event files in one folder."""

    scalars: list[tuple[str, float, int]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    has_session: bool = False
    """Whether `hparams` has started a session, as PyTorch does in a folder below that of the run."""


def recognises(tree: Tree) -> bool:
    """Return whether a folder has an event file."""
    return any(_is_event_file(name) for files in tree.folders.values() for name in files)


def read(tree: Tree, unfinished: UnfinishedRuns) -> list[Record]:
    """Read each folder with event files as a run.

    The folders that writers make below a run's folder are part of the run: those of `add_hparams` and `add_scalars`,
    and those named after a split. Their metrics are named `<metric>`, `<metric>/<name>` and `<split>/<metric>`.

    Raises:
        UserError: If `tensorboard` is not installed, or an event file is damaged.
    """
    events = {
        folder: _read_events([tree.path(folder, name) for name in files if _is_event_file(name)], unfinished)
        for folder, files in tree.folders.items()
        if any(map(_is_event_file, files))
    }
    runs: dict[str, dict[str, _Part]] = {}
    for folder in events:
        part = _find_part(folder, events)
        runs.setdefault(part.run, {})[folder] = part
    return [_join(tree, run, parts, events) for run, parts in runs.items()]


def _is_event_file(name: str) -> bool:
    return "tfevents" in name and not name.endswith((".profile-empty", ".gz"))


class _Part(NamedTuple):
    """The run to which a folder's events belong, and what surrounds the names of their metrics."""

    run: str
    prefix: str = ""
    suffix: str = ""


def _find_part(folder: str, events: Mapping[str, _Events]) -> _Part:
    above, _, name = folder.rpartition("/")
    if name.lower() in SPLITS and (above or all(other.partition("/")[0].lower() in SPLITS for other in events)):
        part = _find_part(above, events)
        return part._replace(prefix=f"{part.prefix}{name}/")
    if folder and above in events:
        if events[folder].has_session:
            return _find_part(above, events)
        if added := _added_scalars(name, events[folder]):
            return _find_part(above, events)._replace(suffix=f"/{added}")
    return _Part(folder)


def _added_scalars(name: str, events: _Events) -> str:
    """Return `twice` for a folder `loss_twice` that has only the metric `loss`; return "" for other folders.

    PyTorch's `add_scalars` writes such folders.
    """
    metrics = {metric.replace("/", "_") for metric, _, _ in events.scalars}
    start = f"{metrics.pop()}_" if len(metrics) == 1 else name
    return name.removeprefix(start) if name.startswith(start) else ""


def _join(tree: Tree, run: str, parts: Mapping[str, _Part], events: Mapping[str, _Events]) -> Record:
    points, settings, results = Points(), {}, []
    for folder, part in parts.items():
        settings |= events[folder].settings
        is_session = folder != run and events[folder].has_session
        for metric, value, step in events[folder].scalars:
            name = f"{part.prefix}{metric}{part.suffix}"
            if is_session:  # a result of the whole run, whose step means nothing
                results.append((name, value))
            else:
                points.add(name, value, step)
    known = set(points.metrics)
    for name, value in results:
        if name not in known:
            points.add(name, value)
    hparams = read_hparams(tree, run) if run in tree.folders else {}
    fields = describe_place(tree, run) | hparams | settings
    return Record(tree.where(run), fields, points.metrics, points.curves)


def _read_events(files: list[Path], unfinished: UnfinishedRuns) -> _Events:
    """Read the event files of a folder in the order of their names, which contain the time they were opened."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.util.tensor_util import make_ndarray
    except ModuleNotFoundError:
        raise UserError("tensorboard is not installed", remedy="Run `pip install 'taetpu[tensorboard]'`.") from None
    events, plugins = _Events(), {}
    for file in files:
        for record in _read_records(file, unfinished):
            try:
                event = Event.FromString(record)
                for value in event.summary.value:
                    # The plug-in's name may be in a metric's first event only.
                    plugin = plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                    if plugin == "hparams":
                        start = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info
                        settings = {key: _plain(setting) for key, setting in start.hparams.items()}
                        events.settings |= settings
                        events.has_session = True
                    elif value.WhichOneof("value") == "simple_value":
                        events.scalars.append((value.tag, value.simple_value, event.step))
                    elif plugin == "scalars":
                        events.scalars.append((value.tag, float(make_ndarray(value.tensor)), event.step))
            except Exception as error:  # protobuf's and tensorboard's, of many types
                raise UserError(f"not an event of TensorBoard: {error}", file=file, remedy=RESTORE) from None
    return events


def _plain(setting: Any) -> Any:
    kind = setting.WhichOneof("kind")
    if kind == "number_value":  # the format has no integers
        return int(setting.number_value) if setting.number_value.is_integer() else setting.number_value
    return getattr(setting, kind) if kind in ("string_value", "bool_value") else None


def _read_records(file: Path, unfinished: UnfinishedRuns) -> Iterator[bytes]:
    """Yield the events of a file. The library ends without an error at a damaged record, so the sizes are added up."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    check_regular(file, RESTORE, LARGEST_FILE)
    end = 0
    with explain_unreadable(file):
        for record in RawEventFileLoader(str(file)).Load():
            end += len(record) + 16  # the size, its checksum, and that of the record
            yield record
        with file.open("rb") as opened:
            opened.seek(end)
            rest = opened.read(12)
            left = opened.seek(0, 2) - end
    size, checksum = int.from_bytes(rest[:8], "little"), int.from_bytes(rest[8:], "little")
    if len(rest) == 12 and (masked_crc32c(rest[:8]) != checksum or size + 16 <= left):
        problem = f"damaged at byte {end:,}, where no event with a matching checksum begins"
        raise UserError(problem, file=file, remedy=RESTORE)
    if rest:
        unfinished.add(file, "its last event is cut off")


FORMAT = Format("tensorboard", "a folder for each run, with event files (`events.out.tfevents.*`)", recognises, read)
