"""The Trainer of Hugging Face transformers: `trainer_state.json` in the output folder and in each checkpoint."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, read_object
from taetpu.programs.folders.formats import Format
from taetpu.programs.folders.tree import Tree, describe_place
from taetpu.programs.folders.unfinished import UnfinishedRuns
from taetpu.programs.folders.values import Points, flatten_settings, parse_reported
from taetpu.programs.records import Record

STATE = "trainer_state.json"
ARGUMENTS, MODEL, RESULTS = "training_args.json", "config.json", "all_results.json"
LARGEST_FILE = 2**28
"""The size up to which a state is read, in bytes."""

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def recognises(tree: Tree) -> bool:
    """Return whether a folder has a `trainer_state.json`."""
    return bool(tree.with_file(STATE))


def read(tree: Tree, unfinished: UnfinishedRuns) -> list[Record]:
    """Read each output folder as a run, from its own state or that of its last checkpoint, whichever is later.

    Settings are those of `training_args.json`, where the user has written it; `training_args.bin` is a pickle, which
    could run code, and is never read. The settings of the model's `config.json` begin with `model.`.
    """
    runs: dict[str, list[str]] = {}
    for folder in tree.with_file(STATE):
        above, _, name = folder.rpartition("/")
        runs.setdefault(above if folder and _CHECKPOINT.fullmatch(name) else folder, []).append(folder)
    return [_read_run(tree, run, folders, unfinished) for run, folders in runs.items()]


def _read_run(tree: Tree, run: str, folders: list[str], unfinished: UnfinishedRuns) -> Record:
    last = max(folders, key=lambda folder: _checkpoint_step(folder, run))
    file = tree.path(last, STATE)
    state = _read_state(file)
    if run in folders and last != run:  # the output folder's state may be older than a resumed run's checkpoints
        of_run = _read_state(tree.path(run, STATE))
        if of_run["global_step"] >= state["global_step"]:
            last, state, file = run, of_run, tree.path(run, STATE)
    points = Points()
    for i, entry in enumerate(state["log_history"]):
        _add_entry(points, entry, file, i)
    # Evaluations after training are not part of the state; those before a run was resumed do not belong to it.
    if RESULTS in tree.folders.get(run, ()) and (last == run or run not in folders):
        for name, value in parse_reported(read_object(tree.path(run, RESULTS), RESTORE)):
            if name != "epoch":
                points.add(name, value)
    fields = describe_place(tree, run)
    for name, prefix in ((MODEL, "model."), (ARGUMENTS, "")):
        folder = next((folder for folder in (run, last) if name in tree.folders.get(folder, ())), None)
        if folder is not None:
            content = tree.path(folder, name)
            settings = flatten_settings(read_object(content, RESTORE), content)
            fields |= {f"{prefix}{key}": value for key, value in settings.items()}
    if isinstance(state.get("trial_params"), Mapping):
        fields |= flatten_settings(state["trial_params"], file)
    if not _is_finished(state):
        unfinished.add(tree.path(run), f"step {state['global_step']:,} of {state['max_steps']:,}")
    return Record(tree.where(run), fields, points.metrics, points.curves)


def _checkpoint_step(folder: str, run: str) -> int:
    name = _CHECKPOINT.fullmatch(folder.rpartition("/")[2])
    return int(name[1][:18]) if folder != run and name else -1


def _read_state(file: Path) -> dict[str, Any]:
    state = read_object(file, RESTORE, LARGEST_FILE)
    for name, kind, what in (("log_history", list, "a list"), ("global_step", int, "an integer")):
        if not isinstance(state.get(name), kind):
            raise UserError(f"{name} must be {what}", path=(name,), file=file, remedy=RESTORE)
    return state


def _is_finished(state: Mapping[str, Any]) -> bool:
    """Return whether training ended, be it early; a state in which no callback says so may be of a stopped run."""
    callbacks = state.get("stateful_callbacks")
    control = callbacks.get("TrainerControl") if isinstance(callbacks, Mapping) else None
    arguments = control.get("args") if isinstance(control, Mapping) else None
    stopped = isinstance(arguments, Mapping) and arguments.get("should_training_stop") is True
    most = state.get("max_steps")
    return stopped or not isinstance(most, int) or state["global_step"] >= most


def _add_entry(points: Points, entry: Any, file: Path, index: int) -> None:
    if not isinstance(entry, Mapping) or not isinstance(step := entry.get("step"), int):
        raise UserError("expected values with a step", path=("log_history", index), file=file, remedy=RESTORE)
    for name, value in parse_reported(entry):
        if name not in ("step", "epoch"):
            points.add(name, value, step)


FORMAT = Format("trainer", "output folders of transformers' Trainer, with `trainer_state.json`", recognises, read)
