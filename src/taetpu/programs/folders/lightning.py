"""Lightning's CSVLogger: `metrics.csv` and `hparams.yaml` in a folder for each version."""

import csv
from collections.abc import Iterator
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, check_regular, explain_unreadable
from taetpu.core.number_parsing import parse_float, parse_int
from taetpu.programs.folders.formats import Format
from taetpu.programs.folders.tree import Tree, describe_place
from taetpu.programs.folders.unfinished import UnfinishedRuns
from taetpu.programs.folders.values import Points, flatten_settings, parse_metric, read_yaml
from taetpu.programs.records import Record

METRICS, SETTINGS = "metrics.csv", "hparams.yaml"
LARGEST_FILE = 2**28
"""The size up to which a file of metrics is read, in bytes."""
PLAIN = "Write hyperparameters as text, numbers, lists and mappings only, or delete the file."


def recognises(tree: Tree) -> bool:
    """Return whether a folder has a `metrics.csv`."""
    return bool(tree.with_file(METRICS))


def read(tree: Tree, unfinished: UnfinishedRuns) -> list[Record]:
    """Read each folder with a `metrics.csv` as a run."""
    return [_read_run(tree, folder) for folder in tree.with_file(METRICS)]


def _read_run(tree: Tree, folder: str) -> Record:
    points = Points()
    for metric, value, step in _read_values(tree.path(folder, METRICS)):
        points.add(metric, value, step)
    fields = describe_place(tree, folder) | read_hparams(tree, folder)
    return Record(tree.where(folder), fields, points.metrics, points.curves)


def read_hparams(tree: Tree, folder: str) -> dict:
    """Return the settings in a folder's `hparams.yaml`, which all loggers of Lightning write."""
    if SETTINGS not in tree.folders[folder]:
        return {}
    file = tree.path(folder, SETTINGS)
    return flatten_settings(read_yaml(file, PLAIN), file)


def _read_values(file: Path) -> Iterator[tuple[str, float, int | None]]:
    """Yield the metric, value and step of each cell. Empty cells are values that were not reported in that row."""
    check_regular(file, RESTORE, LARGEST_FILE)
    try:
        with explain_unreadable(file), file.open(encoding="utf-8-sig", newline="") as opened:
            rows = csv.reader(opened, strict=True)
            names = next(rows, [])
            if len(set(names)) < len(names) or not names:
                problem = "column names must be distinct" if names else "this file is empty"
                raise UserError(problem, file=file, line=1, remedy=RESTORE)
            for row in rows:
                yield from _read_row(file, rows.line_num, names, row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"not a CSV file in UTF-8: {error}", file=file, remedy=RESTORE) from None


def _read_row(file: Path, line: int, names: list[str], row: list[str]) -> Iterator[tuple[str, float, int | None]]:
    if len(row) != len(names):
        problem = f"this row has {len(row)} cells, but there are {len(names)} columns"
        raise UserError(problem, file=file, line=line, remedy=RESTORE)
    cells = dict(zip(names, row, strict=True))
    name = "step"
    try:
        step = parse_int(cells[name]) if cells.get(name) else None
        for name, cell in cells.items():
            if cell and name not in ("step", "epoch"):
                value = parse_metric(cell)
                yield name, parse_float(cell) if value is None else value, step
    except ValueError as error:
        raise UserError(str(error), path=(name,), file=file, line=line, remedy=RESTORE) from None


FORMAT = Format("lightning", "a folder such as `version_0` for each run, with `metrics.csv`", recognises, read)
