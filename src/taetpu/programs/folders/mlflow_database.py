"""MLflow's SQLite database, read with the standard library and without writing to it."""

import math
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.core.json_files import RESTORE, check_regular
from taetpu.programs.folders.values import Points

COLUMNS = {
    "experiments": ("experiment_id", "name", "lifecycle_stage"),
    "runs": ("run_uuid", "name", "status", "lifecycle_stage", "experiment_id"),
    "params": ("run_uuid", "key", "value"),
    "tags": ("run_uuid", "key", "value"),
    "metrics": ("run_uuid", "key", "value", "step", "timestamp", "is_nan"),
}
"""The columns that are read. They are the same in all versions from 1.0 on."""


LARGEST = sys.float_info.max
"""MLflow stores an infinite value as the largest number."""


@dataclass(frozen=True)
class RunRow:
    """A run of either store."""

    id: str
    place: Path
    """The run's folder, or the database."""
    name: str
    experiment: str
    status: str
    """`FINISHED`, `RUNNING`, `SCHEDULED`, `FAILED` or `KILLED`."""
    started: int = 0
    """Milliseconds since 1970, 0 if unknown."""
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    points: Points = field(default_factory=Points)


def read_database(file: Path) -> list[RunRow]:
    """Return the runs in a database that are not deleted, nor their experiments.

    Raises:
        UserError: If the file is not an SQLite database, lacks a table or column, or is locked or damaged.
    """
    check_regular(file, RESTORE)
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            _check_columns(database, file)
            return list(_read_runs(database, file).values())
    except sqlite3.Error as error:
        remedy = "Use a database of MLflow, and stop the server that writes to it."
        raise UserError(f"cannot read as an SQLite database: {error}", file=file, remedy=remedy) from None


def _check_columns(database: sqlite3.Connection, file: Path) -> None:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table, columns in COLUMNS.items():
        present = {row[1] for row in database.execute(f"PRAGMA table_info({table})")} if table in tables else set()
        missing = [column for column in columns if column not in present]
        if missing:
            problem = f"no table {table!r}" if not present else f"table {table!r} has no column {', '.join(missing)}"
            remedy = "Use a database that MLflow has written, or export the runs as a table."
            raise UserError(f"not a database of MLflow: {problem}", file=file, remedy=remedy)


def _read_runs(database: sqlite3.Connection, file: Path) -> dict[str, RunRow]:
    rows = database.execute(
        "SELECT run_uuid, runs.name, experiments.name, status FROM runs"
        " JOIN experiments ON experiments.experiment_id = runs.experiment_id"
        " WHERE runs.lifecycle_stage = 'active' AND experiments.lifecycle_stage = 'active' ORDER BY runs.rowid"
    )
    runs = {
        run: RunRow(str(run), file, str(name or ""), str(experiment), str(status or "of unknown status"))
        for run, name, experiment, status in rows
    }
    for table in ("params", "tags"):
        for run, key, value in database.execute(f"SELECT run_uuid, key, value FROM {table} ORDER BY rowid"):
            if run in runs:
                getattr(runs[run], table)[str(key)] = str(value)
    for run, key, value, step in _read_metrics(database, file):
        if run in runs:
            runs[run].points.add(str(key), value, step)
    return runs


def _read_metrics(database: sqlite3.Connection, file: Path) -> Iterator[tuple[str, str, float, int]]:
    """Yield run, metric, value and step in MLflow's order: by step, then by time."""
    order = "ORDER BY run_uuid, key, step, timestamp, rowid"
    for run, key, value, step, is_nan in database.execute(
        f"SELECT run_uuid, key, value, step, is_nan FROM metrics {order}"
    ):
        if not isinstance(value, int | float) or not isinstance(step, int):
            cell = value if isinstance(step, int) else step
            raise UserError(f"expected a number, got {cell!r}", path=("metrics", key), file=file, remedy=RESTORE)
        yield (
            run,
            key,
            math.nan if is_nan else math.copysign(math.inf, value) if abs(value) >= LARGEST else float(value),
            step,
        )
