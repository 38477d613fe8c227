"""What can be judged: files of tables, folders of runs, and tables in memory."""

import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.judging.cells import printable
from taetpu.judging.history import Source
from taetpu.judging.table_files import read_bytes, read_table
from taetpu.programs.records import Record

DATABASES = (".db", ".sqlite")
"""The endings of files that a format of folders may recognise."""


def read_source(table: Any, kind: str = "", is_log: bool = False) -> tuple[list[Record], Source]:
    """Return the rows of a table or the runs of a folder, and where they come from.

    Args:
        table: the path of a file or folder, a pandas table, or what pandas makes a table of.
        kind: the format of a folder; empty to tell it by its layout.
        is_log: whether a table has a row for each step of a run. In a pandas table, NaN then stands for values that
            were not logged at a step. Otherwise, it is the value of a run that diverged.

    Raises:
        UserError: If the table or folder cannot be read.
    """
    if not isinstance(table, str | os.PathLike):
        return _read_frame(table, is_log)
    path = Path(table).expanduser()
    if kind or path.is_dir() or path.suffix.lower() in DATABASES:
        from taetpu.programs.folders import read_folder

        records = read_folder(path, kind or None)
        sha256 = _digest_records(records)
    else:
        data = read_bytes(path)
        records, sha256 = read_table(path, data), hashlib.sha256(data).hexdigest()
    path = path.absolute()
    return records, Source(printable(path.name), printable(str(path)), sha256)


def default_name(path: Path) -> str:
    """Return the name of a study: that of the folder, or of the file without its endings."""
    path = path.expanduser().absolute()
    return path.name if path.is_dir() else Path(path.name.removesuffix(".gz")).stem


def _digest_records(records: Sequence[Record]) -> str:
    """Return a digest of what was read from a folder, which does not depend on the order of its files."""
    runs = [
        repr([sorted(record.fields.items()), sorted(record.metrics.items())])
        + "".join(f"{name} {series.value.tobytes()!r}" for name, series in sorted(record.curves.items()))
        for record in records
    ]
    return hashlib.sha256("\n".join(sorted(runs)).encode(errors="replace")).hexdigest()


def _read_frame(table: Any, is_log: bool) -> tuple[list[Record], Source]:
    """Return the rows of a pandas table. Levels of its index that have a name are columns."""
    import pandas as pd

    try:
        frame = table if isinstance(table, pd.DataFrame) else pd.DataFrame(table)
    except (ValueError, TypeError) as error:
        raise UserError(f"this is not a table: {error}", remedy="Pass a pandas table, or the path of a file.") from None
    index = [str(label) for label in frame.index]
    named = [name for name in frame.index.names if name is not None]
    frame = frame.reset_index(level=named) if named else frame
    columns = [".".join(map(str, name)) if isinstance(name, tuple) else str(name) for name in frame.columns]
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UserError(f"{columns.count(twice[0])} columns have the name {twice[0]!r}", remedy="Rename all but one.")
    if frame.empty:
        raise UserError("this table has no rows")
    cells = [[_plain(value, is_log) for value in frame.iloc[:, i].tolist()] for i in range(len(columns))]
    rows = zip(*cells, strict=True)
    records = [
        Record(f"row {label}", dict(zip(columns, row, strict=True)), {}) for label, row in zip(index, rows, strict=True)
    ]
    return records, Source("table", "", _digest(columns, cells))


def _plain(value: Any, is_log: bool) -> Any:
    """Return a value of pandas or NumPy as a plain one; None if it is missing."""
    import pandas as pd

    if value is pd.NA or value is pd.NaT or (is_log and value != value):
        return None
    return value.item() if hasattr(value, "item") else value


def _digest(columns: Sequence[str], cells: Sequence[Sequence[Any]]) -> str:
    return hashlib.sha256(repr((list(columns), [list(map(_stable, column)) for column in cells])).encode()).hexdigest()


def _stable(value: Any) -> str:
    return "nan" if isinstance(value, float) and math.isnan(value) else f"{type(value).__name__} {value}"
