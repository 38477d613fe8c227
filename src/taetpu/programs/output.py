"""The output of a program: stored compressed and limited in size, and its last lines.

A file contains the output of both streams in the order in which it arrived. Only whole lines are written, so that the
streams do not mix within lines. If there is more output than the limit, its first half and its end are stored.
"""

import gzip
import re
import zlib
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO, Literal

from taetpu.core.atomic_files import explain_os_error, make_folder
from taetpu.core.errors import UserError, shorten
from taetpu.core.streams import escape_controls

Stream = Literal["stdout", "stderr"]

LAST_LINES = 20
LONGEST_SHOWN = 400
"""The most characters of a line that is shown."""
LAST_BYTES = 2**16
"""The size of the end of the output in which the last lines are looked for."""
LONGEST_PARTIAL = 2**16
"""The size from which a line is written before its end has arrived, in bytes."""

_FORMATS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Sequences with which programs colour text."""


class OutputLog:
    """A file of output, `<file>`, and until it is closed two files `<file>.end-<number>` of uncompressed output.

    Args:
        file: The file. An existing one is replaced.
        limit: The most bytes of output that are stored, before compression.

    Raises:
        UserError: If it cannot be written. Its methods raise this once, and later store nothing.
    """

    def __init__(self, file: Path, limit: int):
        self.size = 0
        """The number of bytes that have arrived."""
        self._file, self._half = file, max(limit, 4) // 2
        self._partial: dict[Stream, bytes] = defaultdict(bytes)
        self._last: deque[bytes] = deque()
        self._last_size = 0
        self._written = 0
        self._ends: list[Path] = []
        self._end: BinaryIO | None = None
        self._end_size = 0
        self._is_broken = False
        with explain_os_error("store output", file):
            make_folder(file.parent)
            for old in _end_files(file):
                old.unlink()
            self._start = gzip.GzipFile(file, "wb", mtime=0)

    def write(self, stream: Stream, data: bytes) -> None:
        """Add output of a stream."""
        self.size += len(data)
        partial = self._partial[stream]
        cut = data.rfind(b"\n") + 1 or (len(data) if len(partial) + len(data) > LONGEST_PARTIAL else 0)
        if cut:
            self._append(partial)
            self._append(data[:cut])
            partial = b""
        self._partial[stream] = partial + data[cut:]

    def flush(self) -> None:
        """Make the whole lines that have arrived readable by other processes."""
        with self._explain_errors():
            (self._end or self._start).flush()

    def close(self) -> None:
        """Write the rest, and join the files."""
        for stream in self._partial:
            self._append(self._partial[stream])
        self._partial.clear()
        with self._explain_errors():
            if self._end is not None:
                self._end.close()
                kept = sum(end.stat().st_size for end in self._ends)
                self._start.write(_omission(self._written - self._half - kept))
                for end in self._ends:
                    self._start.write(end.read_bytes())
            self._start.close()
            for end in self._ends:
                end.unlink()

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines for a terminal, as they look after carriage returns, and without empty lines."""
        data = b"".join([*self._last, *self._partial.values()])[-LAST_BYTES:]
        lines = remove_formats(data.decode(errors="replace")).split("\n")
        if len(data) >= LAST_BYTES and len(lines) > 1:
            del lines[0]  # its start is missing
        shown = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines]
        return tuple(shorten(escape_controls(line), LONGEST_SHOWN) for line in shown if line)[-LAST_LINES:]

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            with explain_os_error("store output", self._file, 2 * self._half):
                yield
        except UserError:
            if not self._is_broken:
                self._is_broken = True
                raise

    def _append(self, data: bytes) -> None:
        self._last.append(data)
        self._last_size += len(data)
        while self._last_size - len(self._last[0]) >= LAST_BYTES:
            self._last_size -= len(self._last.popleft())
        with self._explain_errors():
            self._store(data)

    def _store(self, data: bytes) -> None:
        if not data or self._is_broken:
            return
        start = data[: max(self._half - self._written, 0)]
        self._written += len(data)
        self._start.write(start)
        rest = memoryview(data)[len(start) :]
        while rest:
            end = self._open_end()
            part = rest[: self._half // 2 - self._end_size]
            end.write(part)
            self._end_size += len(part)
            rest = rest[len(part) :]

    def _open_end(self) -> BinaryIO:
        """Return the file for the next bytes: the current one while it is not full, otherwise a new one."""
        if self._end is None or self._end_size >= self._half // 2:
            if self._end is None:
                self._start.flush()
            else:
                self._end.close()
            number = int(self._ends[-1].name.rpartition("-")[2]) + 1 if self._ends else 0
            self._ends.append(self._file.with_name(f"{self._file.name}.end-{number}"))
            self._end, self._end_size = self._ends[-1].open("wb"), 0
            if len(self._ends) > 2:
                self._ends.pop(0).unlink()
        return self._end


def remove_formats(text: str) -> str:
    """Return output without sequences that colour it."""
    return _FORMATS.sub("", text) if "\x1b" in text else text


def read_output(file: Path) -> bytes:
    """Return stored output, also that of a log that was never closed. Damage ends it early."""
    parts = []
    with suppress(zlib.error, FileNotFoundError):
        parts.append(zlib.decompressobj(wbits=zlib.MAX_WBITS + 16).decompress(file.read_bytes()))
    ends = _end_files(file)
    if ends and not ends[0].name.endswith("-0"):
        parts.append(_omission(None))
    return b"".join([*parts, *(end.read_bytes() for end in ends)])


def _end_files(file: Path) -> list[Path]:
    ends = file.parent.glob(f"{escape(file.name)}.end-*")
    return sorted(ends, key=lambda end: int(end.name.rpartition("-")[2]))


def _omission(size: int | None) -> bytes:
    """Return the line in place of output that is not stored."""
    if size == 0:
        return b""
    return f"\n[taetpu: {'output' if size is None else f'{size:,} bytes of output'} left out here]\n".encode()
