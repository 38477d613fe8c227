"""Files and streams that grow, read part by part: lines that end later, files that are replaced or rewritten."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.core.json_files import explain_unreadable

LONGEST_LINE = 2**20
"""The size of a line in bytes; the rest of a longer line is skipped."""
READ_SIZE = 2**18
LARGEST_FILE = 2**30
"""The size up to which a file is read, in bytes."""
CHECKED = 64
"""The number of bytes before the place of reading by which a rewritten file is recognised."""

_LINE_END = re.compile(rb"[\r\n]")


class LineSplitter:
    r"""Splits output that arrives in parts into lines, which end in `\n` or, as those of progress bars, in `\r`."""

    def __init__(self) -> None:
        self.number = 0
        r"""The number of lines that have ended in `\n`."""
        self._partial = b""
        self._is_skipping = False

    def split(self, data: bytes) -> Iterator[tuple[int, str]]:
        r"""Yield the lines that end in the next part, with their numbers, which count `\n` from 1."""
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not cut:
            self._keep(data)
            return
        complete = data[:cut] if self._is_skipping else self._partial + data[:cut]
        if self._is_skipping:  # up to the end of the long line
            end = _LINE_END.search(complete)
            complete = self._partial + complete[end.start() if end else 0 :]
        self._partial, self._is_skipping = b"", False
        self._keep(data[cut:])
        for text in complete.decode(errors="replace").removesuffix("\n").split("\n"):
            self.number += 1
            if "\r" in text:
                for part in text.split("\r"):
                    yield self.number, part[:LONGEST_LINE]
            else:
                yield self.number, text[:LONGEST_LINE]
        if complete.endswith(b"\r"):
            self.number -= 1

    def finish(self) -> Iterator[tuple[int, str]]:
        """Yield the last line, if it has no end."""
        if self._partial:
            self.number += 1
            yield self.number, self._partial.decode(errors="replace")
        self._partial = b""

    def _keep(self, data: bytes) -> None:
        if not self._is_skipping:
            self._partial += data
            self._is_skipping = len(self._partial) > LONGEST_LINE
            self._partial = self._partial[:LONGEST_LINE]


class GrowingFile:
    """A file that another process writes. It need not exist yet.

    Args:
        file: The file.
    """

    def __init__(self, file: Path):
        self._file = file
        self._descriptor = -1
        self._offset = 0
        self._before = b""

    @property
    def was_opened(self) -> bool:
        """Whether the file has existed."""
        return self._descriptor >= 0

    def read(self) -> Iterator[bytes | None]:
        """Yield what was written since the last call, and None before what begins from the file's start again.

        That is the case if the file is shorter than before, its name belongs to another file, or what was read last is
        no longer there.

        Raises:
            UserError: If it is not a regular file, cannot be read, or has more than `LARGEST_FILE` bytes.
        """
        with explain_unreadable(self._file):
            if self._descriptor < 0 and not self._open():
                return
            if os.fstat(self._descriptor).st_size > LARGEST_FILE:
                remedy = "Let the program report less often, or write a smaller file."
                raise UserError(f"this file has more than {LARGEST_FILE:,} bytes", file=self._file, remedy=remedy)
            if not self._is_continued():
                self._offset, self._before = 0, b""
                yield None
            yield from self._read_rest()
            if self._is_replaced() and self._open():
                yield None
                yield from self._read_rest()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> bool:
        """Open the file of this name from its start. Return whether there is one."""
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK)  # otherwise, opening a pipe could block
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            problem = "expected a file, but this is a folder, pipe, socket or device"
            raise UserError(problem, file=self._file, remedy="Let the program write a regular file.")
        self.close()
        self._descriptor, self._offset, self._before = descriptor, 0, b""
        return True

    def _is_continued(self) -> bool:
        if os.fstat(self._descriptor).st_size < self._offset:
            return False
        return os.pread(self._descriptor, len(self._before), self._offset - len(self._before)) == self._before

    def _is_replaced(self) -> bool:
        """Return whether the name belongs to another file. A file without a name can still be read."""
        try:
            status = os.stat(self._file)
        except OSError:
            return False
        opened = os.fstat(self._descriptor)
        return (status.st_dev, status.st_ino) != (opened.st_dev, opened.st_ino)

    def _read_rest(self) -> Iterator[bytes]:
        while data := os.pread(self._descriptor, READ_SIZE, self._offset):
            self._offset += len(data)
            self._before = (self._before + data)[-CHECKED:]
            yield data
