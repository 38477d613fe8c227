"""Weights & Biases (W&B): the folders `wandb/run-*` and `wandb/offline-run-*`."""

import re
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, read_object
from taetpu.programs.folders.formats import Format
from taetpu.programs.folders.tree import Tree, describe_place
from taetpu.programs.folders.unfinished import UnfinishedRuns
from taetpu.programs.folders.values import flatten_settings, parse_reported, read_yaml
from taetpu.programs.folders.wandb_log import RunLog, is_readable, read_log
from taetpu.programs.records import Record

SUMMARY, CONFIG = "wandb-summary.json", "config.yaml"

_RUN = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-(.+)")


def recognises(tree: Tree) -> bool:
    """Return whether a folder is named as those of W&B, or has a `.wandb` file."""
    return bool(_run_folders(tree))


def read(tree: Tree, unfinished: UnfinishedRuns) -> list[Record]:
    """Read each run. The folders of a run that was resumed have the same ID and are read as one.

    The `.wandb` file of a run has everything, and is read where `wandb` is installed. Otherwise, or if it is empty, the
    summary and the config in `files` are read, which are complete only if the run was sent to a server.

    Raises:
        UserError: If a run has only a `.wandb` file and `wandb` is not installed, or a file is damaged.
    """
    runs: dict[tuple[str, str], list[str]] = {}
    for folder in _run_folders(tree):
        above, _, name = folder.rpartition("/")
        match = _RUN.fullmatch(name or tree.root.absolute().name)
        runs.setdefault((above, match[1] if match else name), []).append(folder)
    return [_read_run(tree, folders, unfinished) for folders in runs.values()]


def _run_folders(tree: Tree) -> list[str]:
    """Return the folders of runs: those that are named as runs, and those with a `.wandb` file."""
    folders = {}
    named = _RUN.fullmatch(tree.root.absolute().name)
    for folder, files in tree.folders.items():
        parts = folder.split("/")
        depth = next((i for i, part in enumerate(parts) if _RUN.fullmatch(part)), None)
        if depth is not None:
            folders["/".join(parts[: depth + 1])] = None
        elif (named and folder in ("", "files")) or any(name.endswith(".wandb") for name in files):
            folders["" if named else folder] = None
    return list(folders)


def _read_run(tree: Tree, folders: list[str], unfinished: UnfinishedRuns) -> Record:
    run, place = RunLog(), tree.path(folders[-1])
    logs = [log for folder in folders for log in _logs(tree, folder)]
    files = [f"{folder}/files".lstrip("/") for folder in folders]
    summaries = [tree.path(folder, SUMMARY) for folder in files if SUMMARY in tree.folders.get(folder, ())]
    if logs and is_readable():
        for log in logs:
            read_log(log, run)
        if run.exit_code != 0:
            unfinished.add(place, "no end was logged" if run.exit_code is None else f"exit code {run.exit_code}")
    elif not summaries and not logs:
        unfinished.add(place, f"no {SUMMARY}")
    if not run.config:
        for folder in files:
            if CONFIG in tree.folders.get(folder, ()):
                run.config |= _read_config(tree.path(folder, CONFIG))
    if not run.points.metrics:  # while a run goes on, its summary is older than its log
        for summary in summaries:
            for metric, value in parse_reported(read_object(summary, RESTORE)):
                if not metric.startswith("_"):
                    run.points.add(metric, value)
    if logs and not run.points.metrics and not is_readable():  # the summary of an offline run is missing or empty
        remedy = "Run `pip install 'taetpu[trackers]'`; W&B's offline runs have no other file with results."
        raise UserError("wandb is not installed", file=logs[0], remedy=remedy)
    above = folders[-1].rpartition("/")[0].removesuffix("wandb").rstrip("/")
    config = flatten_settings({key: value for key, value in run.config.items() if not key.startswith("_")}, place)
    fields = describe_place(tree, folders[-1], run.names.get("name", above)) | run.names | config
    return Record(tree.where(folders[-1]), fields, run.points.metrics, run.points.curves)


def _logs(tree: Tree, folder: str) -> list[Path]:
    logs = [name for name in tree.folders.get(folder, ()) if name.endswith(".wandb")]
    if len(logs) > 1:
        problem = f"expected the log of one run, got {len(logs)}: {', '.join(logs)}"
        raise UserError(problem, file=tree.path(folder), remedy="Move each `.wandb` file into a folder for its run.")
    return [tree.path(folder, name) for name in logs]


def _read_config(file: Path) -> dict[str, Any]:
    """Return the settings in `config.yaml`, in which the value of each is below `value`."""
    content = read_yaml(file, RESTORE)
    return {str(key): item["value"] for key, item in content.items() if isinstance(item, dict) and "value" in item}


FORMAT = Format("wandb", "W&B's folders `wandb/run-*` and `wandb/offline-run-*`", recognises, read)
