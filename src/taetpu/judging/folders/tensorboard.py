"""TensorBoard's event files, read with the library `tensorboard`: scalars, and settings of the plug-in `hparams`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, check_regular, explain_unreadable
from taetpu.judging.folders.formats import Format
from taetpu.judging.folders.lightning import read_hparams
from taetpu.judging.folders.tree import Tree, describe_place
from taetpu.judging.folders.unfinished import UnfinishedRuns
from taetpu.judging.folders.values import Points
from taetpu.judging.records import Record

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


def read(tree: Tree) -> list[Record]:
    """Read each folder with event files as a run.

    The folders that writers make below a run's folder are part of the run: those of `add_hparams` and `add_scalars`,
    and those named after a split. Their metrics are named `<metric>`, `<metric>/<name>` and `<split>/<metric>`.

    Raises:
        UserError: If `tensorboard` is not installed, or an event file is damaged.
    """
    unfinished = UnfinishedRuns()
    events = {
        folder: _read_events([tree.path(folder, name) for name in files if _is_event_file(name)], unfinished)
        for folder, files in tree.folders.items()
        if any(map(_is_event_file, files))
    }
    runs: dict[str, list[str]] = {}
    for folder in events:
        runs.setdefault(_run_folder(folder, events), []).append(folder)
    unfinished.warn()
    return [_join(tree, run, {folder: events[folder] for folder in folders}) for run, folders in runs.items()]


def _is_event_file(name: str) -> bool:
    return "tfevents" in name and not name.endswith((".profile-empty", ".gz"))


def _run_folder(folder: str, events: Mapping[str, _Events]) -> str:
    """Return the folder of the run to which a folder's events belong."""
    above, _, name = folder.rpartition("/")
    if not folder:
        return folder
    if name.lower() in SPLITS:
        return above
    if above in events and (events[folder].has_session or _added_scalars(folder, events[folder]) is not None):
        return above
    return folder


def _added_scalars(folder: str, events: _Events) -> str | None:
    """Return `twice` for a folder `loss_twice` that has only the metric `loss`; return None for other folders.

    PyTorch's `add_scalars` writes such folders.
    """
    metrics = {metric for metric, _, _ in events.scalars}
    start = f"{next(iter(metrics)).replace('/', '_')}_" if len(metrics) == 1 else "/"
    name = folder.rpartition("/")[2]
    return name.removeprefix(start) if name.startswith(start) else None


def _join(tree: Tree, run: str, parts: Mapping[str, _Events]) -> Record:
    points, settings, session = Points(), {}, []
    for folder, events in parts.items():
        settings |= events.settings
        name, added = folder.rpartition("/")[2], _added_scalars(folder, events)
        if folder != run and events.has_session:
            session += events.scalars
        else:
            for metric, value, step in events.scalars:
                if folder != run:
                    metric = f"{name}/{metric}" if name.lower() in SPLITS else f"{metric}/{added}"
                points.add(metric, value, step)
    known = set(points.metrics)
    for metric, value, _ in session:  # a result of the whole run, whose step means nothing
        if metric not in known:
            points.add(metric, value)
    hparams = read_hparams(tree, run) if run in tree.folders else {}
    fields = describe_place(tree, run) | hparams | settings
    return Record(str(tree.path(run)), fields, points.metrics, points.curves)


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
