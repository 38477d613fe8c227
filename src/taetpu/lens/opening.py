"""Opening of models: runs, folders that taetpu wrote, and Hugging Face folders."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, is_missing, parse_object, read_object
from taetpu.core.plugins import load_plugins
from taetpu.interop.peft import CONFIG as ADAPTER
from taetpu.lens.opened import OpenedModel
from taetpu.store.addresses import find_run, find_run_folder
from taetpu.store.backend import open_store
from taetpu.store.errors import ADDRESS_FORMS, NotStored
from taetpu.store.flat_config import SETTINGS
from taetpu.store.gcs_client import parse_address
from taetpu.store.runs import RunFolder
from taetpu.train.model_io import CONFIG, SavedModel, from_files


def open_run(
    name: str | Path,
    plugins: Iterable[str | Path] = (),
    *,
    step: int | None = None,
    root: str | Path | None = None,
    data_folder: str | Path = ".",
) -> OpenedModel:
    """Return a model with its tokenizer, data, metrics and config.

    Args:
        name: the address of a run: `STUDY/ARM/SEED`, the start of its ID, `latest` for the run that finished last, the
            path of its folder, or the address of a study or arm with one finished run (see `taetpu.store.addresses`);
            or the folder of a taetpu or Hugging Face model.
        plugins: the plug-ins that define the model's kinds; plug-ins that are already loaded can be omitted. Loading a
            plug-in executes its code, so the study's copies are never loaded automatically.
        step: the training step of a stored checkpoint (`train.keep_checkpoints`); by default, the trained model.
        root: the root of the studies; by default, `TAETPU_ROOT` or `runs`.
        data_folder: the folder to which paths in the run's task are relative, usually that of the study file.

    Raises:
        UserError: if the model or step does not exist, a plug-in is missing or has changed, or files are damaged.
    """
    if files := [Path(file) for file in plugins]:
        load_plugins(files)
    run = find_run_folder(name)
    for place in (name, f"{name}/model") if run is None else ():  # the second of a run's folder that was copied
        if (config := _model_config(place)) is not None:
            if step is not None:
                raise UserError("a model's folder has no steps", file=name, remedy="Remove the step, or open a run.")
            return _open_folder(str(place), config)
    return open_run_folder(run or _find_run(name, root), step, Path(data_folder))


def _find_run(name: str | Path, root: str | Path | None) -> RunFolder:
    """Return the run with a name.

    Raises:
        UserError: if no run has this name. If it is the name of a folder, the error says why that is not a model's.
    """
    try:
        return find_run(name, root)
    except NotStored:
        if parse_address(name) is not None or not (folder := Path(name).expanduser()).is_dir():
            raise
        problem = f"{CONFIG} is missing in this folder"
        if (folder / CONFIG).is_file():
            problem = f"{CONFIG} has neither `model_type` (Hugging Face models) nor `format` (taetpu models)"
        remedy = f"Use the folder of a model, or the address of a run: {ADDRESS_FORMS}."
        raise UserError(problem, file=name, remedy=remedy) from None


def _model_config(name: str | Path) -> Mapping[str, Any] | None:
    """Return the `config.json` of a folder that holds a model itself, or an adapter; None for other names."""
    if parse_address(name) is not None:
        store = open_store(name)
        if not store.exists(CONFIG):
            return None
        config = parse_object(store.read(CONFIG), store.where(CONFIG))
    else:
        file = Path(name).expanduser() / CONFIG
        if is_missing(file):
            return None if is_missing(file.with_name(ADAPTER)) else {"model_type": "adapter"}
        config = read_object(file, RESTORE)
    return config if "model_type" in config or "format" in config else None


def _open_folder(name: str, config: Mapping[str, Any]) -> OpenedModel:
    if "model_type" in config:
        from taetpu.interop.huggingface import import_folder

        made = import_folder(name)
        sizes = made.interface, made.seq_len
        saved = SavedModel(made.model, made.config.resolve(), *sizes, made.tokenizer, made.special_tokens)
    else:
        store = open_store(name)
        saved = from_files({key: store.read(key) for key in store.list("", depth=1)}, name)
    return OpenedModel(**_parts(saved), name=name)


def open_run_folder(run: RunFolder, step: int | None = None, data_folder: Path = Path()) -> OpenedModel:
    """Return the model of a run; see `open_run`. The plug-ins must be loaded."""
    name = f"{run.study}/{run.arm}/{run.seed}"
    if SETTINGS in run.config().get("config", {}):
        problem = "this run is that of a program, whose models taetpu cannot open"
        raise UserError(problem, file=run.where, remedy="Open the program's files with its own code.")
    if step is not None:
        files, where = run.read_checkpoint(step), f"{run.where}/checkpoints/{step}"
        if not files:
            stored = ", ".join(map(str, run.checkpoints())) or "none"
            remedy = f"Stored steps: {stored}. Set train.keep_checkpoints to store models during training."
            raise UserError(f"no model of step {step} is stored", file=run.where, remedy=remedy)
    else:
        files, where = run.read_model(), f"{run.where}/model"
        step = (run.result() or {}).get("steps")
    saved = from_files(files, where)
    return OpenedModel(**_parts(saved), name=name, run=run, step=step, data_folder=data_folder)


def _parts(saved: SavedModel) -> dict[str, Any]:
    return {field.name: getattr(saved, field.name) for field in fields(saved)}
