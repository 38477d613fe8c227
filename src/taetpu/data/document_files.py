"""Files of documents in the formats that people keep text in: plain text, JSON lines, tables, Arrow and parquet.

Every reader yields texts one by one, so that a file need not fit into memory. What looks like another format than its
ending says is refused with the setting that reads it, because its syntax would be trained as if it were text.
"""

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json

from taetpu.core.errors import UserError, shorten

Format = Literal["text", "jsonl", "csv", "tsv", "parquet", "arrow"]
Per = Literal["file", "line", "blank-line"]
LONGEST_FILE = 2**28
"""Number of bytes from which a text file that is one document is refused."""
LONGEST_LINE = 2**27
"""Number of bytes from which a line of JSON or of `per: line` is refused."""
LONGEST_CELL = 2**27
"""Number of characters from which a cell of CSV is refused."""
ROWS_AT_ONCE = 1024
Row = tuple[str, Mapping[str, Any]]
"""The place of a row in its file, such as `line 3`, and its values by column."""


@dataclass(frozen=True)
class Layout:
    """How the documents of files are found.

    Attributes:
        field: the column or key of the text in tables and JSON lines.
        per: what a document of a text file is.
        lines: number of lines of a document, for `per: line`.
        format: format of all files; None for that of the ending.
    """

    format: Format | None = None
    field: str = "text"
    per: Per = "file"
    lines: int = 1


def read_texts(file: Path, layout: Layout) -> Iterator[str]:
    """Yield the documents of a file.

    Raises:
        UserError: if the file is damaged, lacks the field, or is in another format than its ending says. The error
            names file and line or row.
    """
    kind = layout.format or format_of(file) or "text"
    if kind == "text":
        with explained(file):
            yield from read_text(file, layout)
        return
    for where, row in read_rows(file, {layout.field: "field"}, kind):
        if not isinstance(text := row[layout.field], str):
            problem = f"{layout.field!r} in {where} of {file} is {shorten(repr(text), 40)}, not a text"
            remedy = f"Choose a {'field' if kind == 'jsonl' else 'column'} with texts, or remove the row."
            raise UserError(problem, path=("field",), remedy=remedy)
        yield text


def format_of(file: Path) -> Format | None:
    """Return the format of a file by its ending, such as `.jsonl.gz`; None for an ending of no table."""
    endings = [ending.lower() for ending in file.suffixes if ending.lower() not in UNPACK]
    return ENDINGS.get(endings[-1]) if endings else None


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Turn errors of reading in the `with` block into a `UserError` that names the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        place = f"line {line} (byte {error.start} of the file)"
        raise UserError(
            f"{file} is not UTF-8: byte 0x{error.object[error.start]:02x} in {place}",
            path=("source",),
            remedy="Convert the file to UTF-8, or remove it from the folder.",
        ) from None
    except (OSError, EOFError, ValueError, csv.Error) as error:
        remedy = "Copy or download the file again."
        raise UserError(f"cannot read {file}: {error}", path=("source",), remedy=remedy) from None


# --- streams of bytes ------------------------------------------------------------------------------------------------


def _zstd(file: Path) -> Any:
    pyarrow = arrow("zstd", file)
    return pyarrow.CompressedInputStream(pyarrow.OSFile(str(file)), "zstd")


UNPACK: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".zst": _zstd}


def arrow(what: str, file: Path) -> Any:
    """Return the module `pyarrow`.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        problem = f"{file} is {what}, which the package pyarrow reads, but it is not installed"
        raise UserError(problem, path=("source",), remedy="Run `pip install taetpu[parquet]`.") from None
    return pyarrow


def numbered_lines(file: Path, longest: int = LONGEST_LINE) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers, without line ends and without a byte order mark."""
    unpack = UNPACK.get(file.suffix.lower())
    with unpack(file) if unpack else file.open("rb") as raw:
        stream = io.BufferedReader(raw) if unpack is _zstd else raw
        for number in range(1, 2**62):
            line = stream.readline(longest)
            if not line:
                return
            if len(line) == longest:
                problem = f"line {number} of {file} is longer than {longest:,} bytes"
                raise UserError(problem, path=("source",), remedy="Divide it into several documents.")
            if b"\0" in line:
                raise _zero_byte(file, f"line {number}")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                problem = f"{file} is not UTF-8: byte 0x{line[error.start]:02x} in line {number}"
                raise UserError(problem, path=("source",), remedy="Convert the file to UTF-8.") from None
            yield number, text.rstrip("\r\n")


# --- formats ---------------------------------------------------------------------------------------------------------


def read_text(file: Path, layout: Layout) -> Iterator[str]:
    """Yield the documents of a text file: the whole, lines, groups of lines, or paragraphs between blank lines."""
    if layout.per == "file":
        yield read_whole(file)
        return
    lines = (line for _, line in numbered_lines(file))
    groups: Iterator[Iterable[str]]
    if layout.per == "line":
        groups = iter(lambda: [*islice(lines, layout.lines)], [])
    else:
        groups = (group for filled, group in groupby(lines, lambda line: bool(line.strip())) if filled)
    yield from map("\n".join, groups)


def read_whole(file: Path) -> str:
    """Return the content of a text file without a byte order mark."""
    unpack = UNPACK.get(file.suffix.lower())
    with unpack(file) if unpack else file.open("rb") as raw:
        content = raw.read(LONGEST_FILE + 1)
    if len(content) > LONGEST_FILE:
        problem = f"{file} is one document of more than {LONGEST_FILE:,} bytes"
        raise UserError(problem, path=("per",), remedy="Set `per: line` or `per: blank-line`, or divide the file.")
    if b"\0" in content:
        raise _zero_byte(file, f"byte {content.index(0):,}")
    return content.decode("utf-8-sig")


def _zero_byte(file: Path, where: str) -> UserError:
    problem = f"{file} has a byte 0 at {where}, which text does not have"
    return UserError(problem, path=("source",), remedy="Copy the file again, or remove the zeros.")


def json_rows(file: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the objects of a file with JSON in each line, with their places."""
    for number, line in numbered_lines(file):
        if not line or line.isspace():
            continue
        try:
            row = from_json(line)
        except ValueError as error:
            problem = f"line {number} of {file} is not JSON: {error}"
            raise UserError(problem, path=("source",), remedy="Write one object in each line.") from None
        check_object(row, columns, f"line {number}", file)
        yield f"line {number}", row


def check_object(row: Any, columns: Mapping[str, str], where: str, file: Path) -> None:
    """Raise `UserError` if a line of JSON is not an object with the given keys.

    Args:
        row: The value.
        columns: The settings of the task that name the keys, by key.
        where: The place of the line.
        file: The file.
    """
    if not isinstance(row, dict):
        remedy = 'Write one object in each line, such as {"text": ...}.'
        raise UserError(f"{where} of {file} is {str(row)[:40]!r}, not an object", path=("source",), remedy=remedy)
    for key, setting in columns.items():
        if key not in row:
            names = ", ".join(map(repr, row)) or "nothing"
            remedy = f"Set `{setting}` to one of {names}, or repair the row." if row else "Remove the row."
            raise UserError(f"{where} of {file} has no {key!r}, but {names}", path=(setting,), remedy=remedy)


def table_rows(file: Path, columns: Mapping[str, str], *, delimiter: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the cells of a CSV or TSV file with a header, with the places of the rows.

    Args:
        file: The file.
        columns: The settings of the task that name the columns, by column.
        delimiter: What separates two cells.
    """
    with _long_cells():
        rows = csv.reader((f"{line}\n" for _, line in numbered_lines(file)), delimiter=delimiter, strict=True)
        names = next(rows, [])
        _check_columns(names, columns, file)
        for column, setting in columns.items():
            if names.count(column) > 1:
                problem = f"{file} has {names.count(column)} columns named {column!r}"
                raise UserError(problem, path=(setting,), remedy="Rename one of them.")
        places = {column: names.index(column) for column in columns}
        for row in rows:
            if len(row) != len(names):
                problem = f"line {rows.line_num} of {file} has {len(row)} cells, but the header {len(names)}"
                raise UserError(problem, path=("source",), remedy="Quote cells that contain delimiters or line ends.")
            cells = {column: row[place].removesuffix("\n") for column, place in places.items()}
            yield f"line {rows.line_num}", cells


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let the module `csv` read cells of up to `LONGEST_CELL` characters in the `with` block."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def parquet_rows(file: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a parquet file; see `table_rows`."""
    arrow("parquet", file)
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        _check_columns(opened.schema_arrow.names, columns, file)
        yield from _rows(opened.iter_batches(ROWS_AT_ONCE, columns=[*columns]))


def arrow_rows(file: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of an Arrow file: a stream, as `datasets` writes it, or a file with random access."""
    pyarrow = arrow("Arrow", file)
    with pyarrow.memory_map(str(file)) as source:
        try:
            batches: Any = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            opened = pyarrow.ipc.open_file(source)
            _check_columns(opened.schema.names, columns, file)
            batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
        else:
            _check_columns(batches.schema.names, columns, file)
        yield from _rows(batch.select([*columns]) for batch in batches)


def _check_columns(names: list[str], columns: Mapping[str, str], file: Path) -> None:
    for column, setting in columns.items():
        if column not in names:
            problem = f"{file} has no column {column!r}, but {', '.join(map(repr, names)) or 'nothing'}"
            raise UserError(problem, path=(setting,), remedy=f"Set `{setting}` to one of the columns.")


def _rows(batches: Iterable[Any]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row


def read_rows(file: Path, columns: Mapping[str, str], form: Format | None = None) -> Iterator[Row]:
    """Yield the rows of a table, or of a file with an object in each line.

    Args:
        file: The file.
        columns: The settings of the task that name the columns, by column. Errors name the setting.
        form: The format; None for that of the ending.

    Raises:
        UserError: if the file is damaged, lacks a column, or is plain text.
    """
    kind = form or format_of(file)
    if kind is None or kind == "text":
        problem = f"{file} is plain text, which has no columns"
        remedy = "Use a file that ends in .jsonl, .csv, .tsv, .parquet or .arrow, or set `format`."
        raise UserError(problem, path=("source",), remedy=remedy)
    with explained(file):
        yield from ROWS[kind](file, columns)


ROWS: Mapping[str, Callable[[Path, Mapping[str, str]], Iterator[Row]]] = {
    "jsonl": json_rows, "csv": partial(table_rows, delimiter=","), "tsv": partial(table_rows, delimiter="\t"),
    "parquet": parquet_rows, "arrow": arrow_rows,
}  # fmt: skip
ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv",
                              ".parquet": "parquet", ".arrow": "arrow"}  # fmt: skip
