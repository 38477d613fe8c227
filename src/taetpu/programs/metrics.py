"""Metrics that a program reports while it runs: on its output, in files that grow, in folders of trackers.

The last reported value of a metric counts, not that of its highest step. A step that is not above earlier ones replaces
the points from that step on, as a resumed program repeats the steps after its checkpoint. Values that are reported
without a step are numbered from 1. NaN and infinities are values: the run has diverged.
"""

import csv
import math
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from taetpu.core.errors import UserError, suggest
from taetpu.core.number_parsing import parse_float, parse_int
from taetpu.core.short_repr import shorten_value
from taetpu.programs.folders import read_folder
from taetpu.programs.folders.tree import walk
from taetpu.programs.folders.unfinished import UnfinishedRuns
from taetpu.programs.folders.values import Points, parse_metric, parse_reported
from taetpu.programs.growing_file import GrowingFile, LineSplitter
from taetpu.programs.metric_sources import LastLine, MetricFile, Pattern, ResultFolder, Source
from taetpu.programs.output import Stream, remove_formats
from taetpu.programs.records import Record
from taetpu.store.metrics import Series

MAX_POINTS = 10_000
"""The number of points of a curve from which it is thinned out."""
MAX_METRICS = 1_000
LONGEST_SEARCHED = 8192
"""The characters of a line that a pattern sees: some patterns take a time quadratic in their number."""
FOLDER_INTERVAL, FOLDER_SHARE = 5.0, 20
"""A folder is read at most every 5 s, and after 20 times the time that reading it took: the whole of it is read."""
NUMBERS = "Report numbers as Python prints them, or let the pattern match the number alone."


class Reports:
    """The values that a program has reported.

    Args:
        required: The metrics that must be numbers, so that text is an error from the first on.

    Attributes:
        changes: A number that grows with each report.
        step: The last reported step.
    """

    def __init__(self, required: Collection[str]):
        self.required = required
        self.changes = 0
        self.step: int | None = None
        self._points = Points(MAX_POINTS)
        self._numbered: dict[str, int] = {}
        self._replaced: dict[str, Series] = {}

    @property
    def last(self) -> dict[str, float]:
        """The last reported value of each metric, which may be NaN or infinite."""
        return dict(self._points.last)

    @property
    def curves(self) -> dict[str, Series]:
        """The steps and values of each metric."""
        return self._points.curves | self._replaced

    def add(self, name: str, value: float, step: int | None) -> None:
        """Add a value."""
        if step is not None:
            self.step = step
            self._numbered.pop(name, None)
        elif name in self._numbered or name not in self._points.last:
            step = self._numbered[name] = self._numbered.get(name, 0) + 1
        self._points.add(name, value, step)
        self._count(name)

    def replace(self, name: str, value: float, curve: Series | None) -> None:
        """Replace the values of a metric."""
        self._points.add(name, value)
        if curve is not None:
            self._replaced[name], self.step = curve, int(curve.step[-1])
        self._count(name)

    def restart(self, names: Collection[str]) -> None:
        """Start to number the values of metrics from 1 again."""
        self._numbered |= {name: 0 for name in names if name in self._numbered}

    def _count(self, name: str) -> None:
        self.changes += 1
        if len(self._points.last) > MAX_METRICS:
            problem = f"more than {MAX_METRICS:,} metrics, such as {shorten_value(name)}"
            raise UserError(problem, remedy="Report the metrics of all steps under the same names.")

    def is_number(self, name: str) -> bool:
        """Return whether text in place of a metric is an error, rather than a column of text."""
        return name in self.required or name in self._points.last


class _Reader:
    """Reads a source; by default, not at all."""

    def read(self) -> None:
        """Read what is new."""

    def finish(self) -> None:
        """Read the rest, whose end may be missing."""

    def close(self) -> None:
        """Close files."""


class MetricReader(Reports):
    """A listener of a process that collects its metrics. All its methods are called by the thread that waits for it.

    Args:
        sources: Where the metrics are reported.
        folder: The run's folder.
        required: The metrics that the run must report.
    """

    def __init__(self, sources: Collection[Source], folder: Path, required: Collection[str] = ()):
        super().__init__(required)
        self._streams: dict[Stream, _StreamReader] = {}
        self._readers: list[_Reader] = []
        for source in sources:
            if isinstance(source, Pattern | LastLine):
                if source.stream not in self._streams:
                    self._streams[source.stream] = _StreamReader(source.stream, self)
                self._streams[source.stream].sources.append(source)
            elif isinstance(source, ResultFolder):
                self._readers.append(_FolderReader(folder / source.folder, source.kind, self))
            else:
                self._readers.append(_FileReader(folder / source.file, source, self))

    def write(self, stream: Stream, data: bytes) -> None:
        """Read output of the program.

        Raises:
            UserError: If a value is not a number; the line is named.
        """
        if stream in self._streams:
            self._streams[stream].write(data)

    def poll(self) -> None:
        """Read files and folders as far as they are written.

        Raises:
            UserError: If a value is not a number, or a file is damaged; the line is named.
        """
        for reader in self._readers:
            reader.read()

    def finish(self, complete: bool) -> None:
        """Read the rest after the end of the program.

        Args:
            complete: Whether the program succeeded. Otherwise, what it wrote last may be cut off, and is then ignored.

        Raises:
            UserError: If the program succeeded, and a source is damaged or missing or a required metric was not
                reported.
        """
        readers = (*self._streams.values(), *self._readers)
        try:
            for reader in readers:
                try:
                    reader.finish()
                except UserError:
                    if complete:
                        raise
        finally:
            for reader in readers:
                reader.close()
        reported = self.last
        for name in self.required:
            if complete and name not in reported:
                problem = f"the program ended without a value of {name!r}"
                known = suggest(name, reported) if reported else "It reported no metrics: check where they are read."
                raise UserError(problem, remedy=known)


# --- output -----------------------------------------------------------------------------------------------------------


class _StreamReader(_Reader):
    """Reads the lines of a stream, whose data are passed to `write`."""

    def __init__(self, stream: Stream, reports: Reports):
        self.sources: list[Pattern | LastLine] = []
        self._stream, self._reports = stream, reports
        self._lines = LineSplitter()
        self._last = (0, "")

    def write(self, data: bytes) -> None:
        """Read the lines that end in a part of the output."""
        self._search(self._lines.split(data))

    def finish(self) -> None:
        """Read a last line without an end, and the JSON in the last line."""
        self._search(self._lines.finish())
        for source in self.sources:
            if isinstance(source, LastLine):
                number, text = self._last
                if not text:
                    remedy = "Print a JSON object in the last line."
                    raise UserError("the program has printed nothing", file=source.stream, remedy=remedy)
                _add_object(self._reports, text.encode(), source.step, source.stream, number)

    def _search(self, lines: Iterator[tuple[int, str]]) -> None:
        patterns = [source.regex.search for source in self.sources if isinstance(source, Pattern)]
        needs_last = len(patterns) < len(self.sources)
        for number, text in lines:
            if "\x1b" in text:
                text = remove_formats(text)
            if needs_last and text.strip():
                self._last = (number, text)
            for search in patterns:
                if match := search(text if len(text) <= LONGEST_SEARCHED else text[:LONGEST_SEARCHED]):
                    self._add(match, number)

    def _add(self, match: re.Match[str], number: int) -> None:
        values = match.groupdict()
        step = _parse_step(values.pop("step", None), self._stream, number, "step")
        for name, text in values.items():
            if text is not None:
                self._reports.add(name, _parse_value(text, name, self._stream, number), step)


# --- files ------------------------------------------------------------------------------------------------------------


class _FileReader(_Reader):
    """Reads the lines of a JSONL or CSV file."""

    def __init__(self, file: Path, source: MetricFile, reports: Reports):
        self._file, self._source, self._reports = file, source, reports
        self._growing = GrowingFile(file)
        self._lines = LineSplitter()
        self._columns: list[str] | None = None
        self._names: set[str] = set()

    def read(self) -> None:
        """Read the lines that are complete."""
        for data in self._growing.read():
            if data is None:
                self._lines, self._columns = LineSplitter(), None
                self._reports.restart(self._names)
            else:
                self._add(self._lines.split(data))

    def finish(self) -> None:
        """Read all lines."""
        self.read()
        if not self._growing.was_opened:
            raise UserError("the program has not written this file", file=self._file, remedy="Check where it writes.")
        self._add(self._lines.finish())

    def close(self) -> None:
        """Close the file."""
        self._growing.close()

    def _add(self, lines: Iterator[tuple[int, str]]) -> None:
        for number, text in lines:
            if not text.strip():
                continue
            if self._source.kind == "jsonl":
                self._names |= _add_object(self._reports, text.encode(), self._source.step, self._file, number)
            else:
                self._add_row(text, number)

    def _add_row(self, text: str, number: int) -> None:
        try:
            row = next(csv.reader([text.removeprefix("\ufeff")], strict=True))
        except csv.Error as error:
            problem = f"not a row of a CSV file: {error}"
            raise UserError(problem, file=self._file, line=number, remedy="Write each row in a line.") from None
        if self._columns is None:
            if len(set(row)) < len(row):
                problem = f"column names must be distinct, got {shorten_value(row)}"
                raise UserError(problem, file=self._file, line=number, remedy="Rename a column.")
            self._columns = row
        elif row != self._columns:  # a resumed program may write the names again
            self._add_cells(row, self._columns, number)

    def _add_cells(self, row: list[str], columns: list[str], number: int) -> None:
        if len(row) != len(columns):
            problem = f"this row has {len(row)} cells, but there are {len(columns)} columns"
            raise UserError(problem, file=self._file, line=number, remedy="Write a cell for each column.")
        cells = dict(zip(columns, row, strict=True))
        step = _parse_step(cells.pop(self._source.step, None) or None, self._file, number, self._source.step)
        for name, cell in cells.items():
            if cell.strip() and (self._reports.is_number(name) or _is_number(cell)):
                self._reports.add(name, _parse_value(cell, name, self._file, number), step)
                self._names.add(name)


def _add_object(reports: Reports, data: bytes, step_name: str, file: Path | str, number: int) -> set[str]:
    """Add the numbers in a JSON object, and return their names.

    Those of objects in it have dotted names. Null is NaN, which some writers of JSON cannot represent.
    """
    try:
        content = from_json(data)
    except ValueError as error:
        reason = str(error).partition(" at line ")[0]
        problem = f"not JSON: {reason}, in {shorten_value(data.decode(errors='replace'))}"
        raise UserError(problem, file=file, line=number or None, remedy="Write a JSON object in this line.") from None
    if not isinstance(content, Mapping):
        problem = f"expected a JSON object, got {shorten_value(content)}"
        raise UserError(problem, file=file, line=number, remedy="Write metrics as an object with their names.")
    step = _parse_step(content.get(step_name), file, number, step_name)
    values = {
        name: _parse_value(value, name, file, number) if isinstance(value, str) and reports.is_number(name) else value
        for name, value in content.items()
        if name != step_name
    }
    numbers = dict(parse_reported(values))
    for name, value in numbers.items():
        reports.add(name, value, step)
    return {*numbers}


# --- folders ----------------------------------------------------------------------------------------------------------


class _FolderReader(_Reader):
    """Reads the folder of a tracker again when its files have changed."""

    def __init__(self, folder: Path, kind: str, reports: Reports):
        self._folder, self._kind, self._reports = folder, kind, reports
        self._read_at, self._seen = 0.0, ()
        self._before: dict[str, str] = {}

    def read(self) -> None:
        """Read the folder, if that is due. What cannot be read may be half written, and is read later."""
        started = time.monotonic()
        if started < self._read_at:
            return
        try:
            state = self._list_state()
            if state != self._seen:
                self._read_runs()
                self._seen = state
        except (UserError, OSError):
            pass
        taken = time.monotonic() - started
        self._read_at = started + max(FOLDER_INTERVAL, FOLDER_SHARE * taken)

    def finish(self) -> None:
        """Read the folder."""
        self._read_runs()

    def _list_state(self) -> tuple[Any, ...]:
        tree = walk(self._folder)
        files = [tree.path(folder, name) for folder, names in tree.folders.items() for name in names]
        statuses = [(file, file.stat()) for file in files]
        return tuple((file, status.st_size, status.st_mtime_ns) for file, status in statuses)

    def _read_runs(self) -> None:
        points = Points(MAX_POINTS)
        for record in read_folder(self._folder, self._kind, UnfinishedRuns()):
            _add_record(points, record)
        curves = points.curves
        for name, value in points.last.items():
            curve = curves.get(name)
            state = repr((value, curve and len(curve.step)))  # as text, in which NaN equals itself
            if self._before.get(name) != state:
                self._before[name] = state
                self._reports.replace(name, value, curve)


def _add_record(points: Points, record: Record) -> None:
    for name, value in record.metrics.items():
        curve = record.curves.get(name)
        for step, point in zip(curve.step.tolist(), curve.value.tolist(), strict=True) if curve else ():
            points.add(name, point, step)
        points.add(name, math.nan if value is None else value)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _is_number(text: str) -> bool:
    try:
        return parse_metric(text) is not None or math.isfinite(parse_float(text.strip()))
    except ValueError:
        return False


def _parse_value(text: str, name: str, file: Path | str, number: int) -> float:
    value = parse_metric(text)
    try:
        return parse_float(text.strip()) if value is None else value
    except ValueError:
        problem = f"{shorten_value(text)} is not a number"
        raise UserError(problem, path=(name,), file=file, line=number, remedy=NUMBERS) from None


def _parse_step(value: Any, file: Path | str, number: int, name: str) -> int | None:
    """Return a step, which may be written as a number without decimals such as `100.0`."""
    if value is None:
        return None
    step = None
    with suppress(ValueError):
        step = value if isinstance(value, float) else parse_float(str(value).strip())
        with suppress(ValueError):  # digits that a float does not have
            step = parse_int(str(value).strip())
    if step is None or step != step // 1 or not 0 <= step <= 2**53:
        problem = f"the step {shorten_value(value)} is not an integer from 0 to 2^53"
        raise UserError(problem, path=(name,), file=file, line=number, remedy="Report whole steps.")
    return int(step)
