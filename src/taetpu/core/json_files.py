"""Reading of JSON files from untrusted folders, with limits on size and depth."""

import codecs
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from taetpu.core.errors import UserError

RESTORE = "Copy or download the file again."
LARGEST_FILE = 2**24
"""The size up to which a JSON file is read, in bytes. The index of a model with 90,000 tensors has 9 MB."""


def is_missing(file: Path) -> bool:
    """Return whether nothing has this path; a broken link has it."""
    with explain_unreadable(file):
        return not file.exists() and not file.is_symlink()


def check_regular(file: Path, remedy: str, largest: int | None = None) -> None:
    """Raise `UserError` if a file is missing, or a folder, pipe or device, from which reading may never end.

    Args:
        file: The file.
        remedy: The remedy if the file is missing.
        largest: The size in bytes up to which the file is read, if there is a limit.
    """
    with explain_unreadable(file):
        try:
            status = file.stat()
        except FileNotFoundError:
            raise UserError("no such file", file=file, remedy=remedy) from None
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise UserError(f"expected a file, but this is {what}", file=file, remedy="Replace it by a regular file.")
    if largest is not None and status.st_size > largest:
        raise UserError(f"this file has more than {largest:,} bytes", file=file, remedy=RESTORE)


@contextmanager
def explain_unreadable(file: Path) -> Iterator[None]:
    """Convert an `OSError` in the `with` block, which reads a file, to a `UserError`."""
    try:
        yield
    except OSError as error:
        problem = f"cannot read: {error.strerror or error}"
        raise UserError(problem, file=file, remedy="Check the file and its permissions.") from None


def read_object(file: Path, remedy: str, largest: int = LARGEST_FILE) -> dict[str, Any]:
    """Return the JSON object in a file.

    Args:
        file: The file.
        remedy: The remedy if the file is missing.
        largest: The size up to which the file is read, in bytes.

    Raises:
        UserError: If the file is missing, no regular file or too large, or its content is not a JSON object.
    """
    return parse_object(read_bytes(file, remedy, largest), file)


def read_bytes(file: Path, remedy: str, largest: int = LARGEST_FILE) -> bytes:
    """Return the content of a file.

    Args:
        file: The file.
        remedy: The remedy if the file is missing.
        largest: The size up to which the file is read, in bytes.

    Raises:
        UserError: If the file is missing, no regular file or too large.
    """
    check_regular(file, remedy, largest)
    with explain_unreadable(file), file.open("rb") as opened:
        return opened.read(largest)


def parse_object(data: bytes, file: str | Path) -> dict[str, Any]:
    """Return the JSON object in the content of a file; see `read_object`."""
    try:
        content = from_json(data.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        place = re.search(r" at line (\d+) column \d+$", str(error))
        problem = f"not JSON: {str(error)[: place.start()] if place else error}"
        raise UserError(problem, file=file, line=int(place[1]) if place else None, remedy=RESTORE) from None
    if not isinstance(content, dict):
        raise UserError(f"expected a JSON object, got {type(content).__name__}", file=file, remedy=RESTORE)
    return content
