"""Files of tables: CSV and TSV, JSON and JSON Lines, each also compressed by gzip, and Parquet."""

import codecs
import csv
import gzip
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from taetpu.core import json_files
from taetpu.core.errors import ErrorList, UserError
from taetpu.judging.cells import printable
from taetpu.programs.records import Record
from taetpu.store.flat_config import flatten

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
SEPARATORS = ",;\t"
LARGEST_FILE = 2**29
"""The size up to which a table is read, in bytes."""


def read_table(path: Path, data: bytes | None = None) -> list[Record]:
    """Read the rows of a table.

    Args:
        path: the file.
        data: its content, if it was read before.

    Returns:
        A record for each row, with every column in `fields`. Nested objects of JSON have dotted names.

    Raises:
        UserError: If the file cannot be read, has an unknown ending, or is not a table with at least one row.
    """
    data = read_bytes(path) if data is None else data
    name, ending = printable(path.name), path.suffix.lower()
    if ending == ".gz":
        ending = Path(path.stem).suffix.lower()
        data = _decompress(data, path)
    if ending not in READERS:
        *others, last = READERS
        remedy = f"Use a file that ends in {', '.join(others)} or {last}."
        raise UserError(f"unknown format of a table: {path.name!r}", file=path, remedy=remedy)
    if not data.strip():
        raise UserError("this file is empty", file=path)
    records = READERS[ending](data, path, name)
    if not records:
        raise UserError("this table has no rows", file=path)
    return records


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        UserError: If there is no such file, it is no regular file, or it is too large.
    """
    return json_files.read_bytes(path, "Pass the path of a table, or of a folder with runs.", LARGEST_FILE)


def _decompress(data: bytes, path: Path) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as opened:
            content = opened.read(LARGEST_FILE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"this file is not compressed by gzip: {error}", file=path) from None
    if len(content) > LARGEST_FILE:
        raise UserError(f"this file has more than {LARGEST_FILE:,} bytes when it is decompressed", file=path)
    return content


# --- CSV and TSV ------------------------------------------------------------------------------------------------------


def _read_csv(data: bytes, path: Path, name: str) -> list[Record]:
    text = _decode(data, path)
    separator = _separator(text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True)
    rows = [*_rows(reader, path)]
    if not rows:
        return []
    (number, header), *body = rows
    columns = _columns([cell.strip() for cell in header], path, number)
    records, mistakes = list[Record](), ErrorList()
    for number, row in body:
        if len(row) != len(header):
            problem = f"this row has {len(row)} cells, and the header has {len(header)}"
            remedy = "Quote cells that contain the separator, and write empty cells for missing values."
            mistakes.append(UserError(problem, file=f"{name}, row {number}", remedy=remedy))
            continue
        fields = {column: row[i].strip() for column, i in columns.items()}
        if any(fields.values()):
            records.append(Record(f"{name}, row {number}", fields, {}))
    mistakes.raise_all()
    return records


def _separator(text: str) -> str:
    """Return the separator that splits the header into most cells; a comma if there is one column."""
    header = next((line for line in text.splitlines() if line.strip()), "")
    counts = {sign: len(next(csv.reader([header], delimiter=sign))) for sign in SEPARATORS}
    return max(SEPARATORS, key=lambda sign: counts[sign])


def _rows(reader: Iterable[list[str]], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not blank with its number, from 1, as spreadsheets show it."""
    number = 0
    try:
        for number, row in enumerate(reader, 1):
            if row and any(cell.strip() for cell in row):
                yield number, row
    except csv.Error as error:
        remedy = "Close every quotation mark, and double those inside a quoted cell."
        raise UserError(f"not valid CSV: {error}", file=f"{path.name}, row {number + 1}", remedy=remedy) from None


def _columns(names: list[str], path: Path, row: int) -> dict[str, int]:
    """Return the place of each column. Columns without a name, such as the index of a pandas table, are left out."""
    places: dict[str, list[int]] = {}
    for i, column in enumerate(names):
        places.setdefault(column, []).append(i)
    mistakes = ErrorList()
    for column, numbers in places.items():
        if column and len(numbers) > 1:
            problem = f"the name {column!r} is that of columns {' and '.join(str(i + 1) for i in numbers)}"
            mistakes.append(UserError(problem, file=f"{path.name}, row {row}", remedy="Rename or remove all but one."))
    mistakes.raise_all()
    return {column: numbers[0] for column, numbers in places.items() if column}


def _decode(data: bytes, path: Path) -> str:
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if data.startswith(mark)), "utf-8")
    remedy = "Save the file in UTF-8."
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"this file is not encoded in {encoding.removesuffix('-sig').upper()}: byte {data[error.start]:#04x}"
        raise UserError(problem, file=path, line=line, remedy=remedy) from None
    if "\0" in text:
        raise UserError("this file contains null characters, so it is not text in UTF-8", file=path, remedy=remedy)
    return text


# --- JSON -------------------------------------------------------------------------------------------------------------


def _read_json(data: bytes, path: Path, name: str) -> list[Record]:
    content = _parse(_decode(data, path), path)
    if isinstance(content, list):
        return _records(enumerate(content, 1), name, "entry")
    if isinstance(content, dict) and content and all(isinstance(column, list | dict) for column in content.values()):
        return _records(enumerate(_transpose(content, path), 1), name, "entry")
    remedy = 'Write a list of objects, such as [{"method": "base", "seed": 0, "loss": 2.5}], or an object of columns.'
    raise UserError("this file does not contain a table", file=path, remedy=remedy)


def _transpose(columns: Mapping[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of an object that holds a list, or values by row (as pandas writes them), for each column."""
    indices = {
        name: [*range(len(column))] if isinstance(column, list) else [*column] for name, column in columns.items()
    }
    first, *others = indices
    for name in others:
        if indices[name] != indices[first]:
            raise UserError(f"columns {first!r} and {name!r} have different rows", file=path)
    yield from ({name: column[i] for name, column in columns.items()} for i in indices[first])


def _read_json_lines(data: bytes, path: Path, name: str) -> list[Record]:
    lines = [(number, line) for number, line in enumerate(_decode(data, path).split("\n"), 1) if line.strip()]
    mistakes, rows = ErrorList(), []
    for number, line in lines:
        with mistakes.collect():
            rows.append((number, _parse(line, path, number)))
    mistakes.raise_all()
    return _records(rows, name, "line")


def _records(rows: Iterable[tuple[int, Any]], name: str, noun: str) -> list[Record]:
    records, mistakes = list[Record](), ErrorList()
    for number, row in rows:
        where = f"{name}, {noun} {number}"
        if isinstance(row, dict):
            records.append(Record(where, {str(path): value for path, value in flatten(row)}, {}))
        else:
            problem = f"a row must be an object with the names of columns, got {type(row).__name__}"
            mistakes.append(UserError(problem, file=where))
    mistakes.raise_all()
    return records


def _parse(text: str, path: Path, line: int = 0) -> Any:
    try:
        return json.loads(text, parse_float=_parse_float, object_pairs_hook=lambda pairs: _unique(pairs, path, line))
    except ValueError as error:
        at = line or getattr(error, "lineno", None)
        raise UserError(f"not valid JSON: {error}", file=path, line=at) from None
    except RecursionError:
        raise UserError("not a table: the values are nested too deeply", file=path, line=line or None) from None


def _parse_float(text: str) -> float | str:
    """Return a number, or its text if it exceeds the range of 64-bit numbers, so that it is not read as infinite."""
    number = float(text)
    return number if math.isfinite(number) else text


def _unique(pairs: list[tuple[str, Any]], path: Path, line: int) -> dict[str, Any]:
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise UserError(f"the name {twice[0]!r} occurs twice in an object", file=path, line=line or None)
    return dict(pairs)


# --- Parquet ----------------------------------------------------------------------------------------------------------


def _read_parquet(data: bytes, path: Path, name: str) -> list[Record]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        remedy = "Run `pip install 'taetpu[parquet]'`, or save the table as CSV."
        raise UserError("Parquet files require pyarrow, which is not installed", file=path, remedy=remedy) from None
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(data))
        columns = [table.column(i).to_pylist() for i in range(table.num_columns)]
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"not a valid Parquet file: {error}", file=path) from None
    places = _columns(table.column_names, path, 1)
    rows = ({column: columns[i][row] for column, i in places.items()} for row in range(table.num_rows))
    return _records(enumerate(rows, 1), name, "entry")


READERS: Mapping[str, Callable[[bytes, Path, str], list[Record]]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
}
"""The reader of each ending."""
