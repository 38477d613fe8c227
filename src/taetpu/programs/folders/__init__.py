"""Folders of results that other tools wrote: trackers, trainers and lm-evaluation-harness. Each format has a file.

The files of a folder are listed once (`tree`); a format recognises its own by their names and reads a record for each
run. Libraries that a format needs are imported where they are used.
"""

from pathlib import Path

from taetpu.core.errors import UserError, suggest
from taetpu.programs.folders import lightning, lm_eval, mlflow, tensorboard, trainer, wandb
from taetpu.programs.folders.formats import Format
from taetpu.programs.folders.tree import walk
from taetpu.programs.folders.unfinished import UnfinishedRuns
from taetpu.programs.records import Record

FORMATS: tuple[Format, ...] = (
    wandb.FORMAT,
    tensorboard.FORMAT,
    lightning.FORMAT,
    trainer.FORMAT,
    mlflow.FORMAT,
    lm_eval.FORMAT,
)
KINDS = tuple(format.kind for format in FORMATS)
"""The values of `--from`."""


def read_folder(path: Path, kind: str | None = None, unfinished: UnfinishedRuns | None = None) -> list[Record]:
    """Read the runs in a folder, or in one of its files.

    Args:
        path: The folder or file.
        kind: The format's name, one of `KINDS`; by default the only one that recognises the files.
        unfinished: Collects the runs that have not ended. By default, a warning names them.

    Raises:
        UserError: If the kind is unknown, no format or several formats recognise the files, or a file cannot be read.
    """
    if kind is not None and kind not in KINDS:
        raise UserError(f"unknown format {kind!r}", path=("--from",), remedy=suggest(kind, KINDS))
    tree = walk(path)
    recognising = [format for format in FORMATS if format.recognises(tree) and kind in (None, format.kind)]
    if not recognising:
        sought = [format for format in FORMATS if kind in (None, format.kind)]
        problem = "no results of a known format" if kind is None else f"no results of the format {kind}"
        raise UserError(problem, file=path, remedy=_list_layouts("Use a folder with", sought))
    if len(recognising) > 1:
        problem = f"results of several formats: {', '.join(format.kind for format in recognising)}"
        raise UserError(problem, file=path, remedy=_list_layouts("Choose one with `--from`", recognising))
    collected = unfinished or UnfinishedRuns()
    records = recognising[0].read(tree, collected)
    if unfinished is None:
        collected.warn()
    if not records:
        problem = f"no runs with results of the format {recognising[0].kind}"
        raise UserError(problem, file=path, remedy="Use a folder with runs that are not deleted.")
    return records


def _list_layouts(instruction: str, formats: list[Format]) -> str:
    lines = "".join(f"\n    {format.kind:<12} {format.layout}" for format in formats)
    return f"{instruction}:{lines}"
