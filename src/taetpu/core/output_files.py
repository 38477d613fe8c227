"""Checks of the files that a command is asked to write."""

from collections.abc import Iterable
from pathlib import Path

from taetpu.core.errors import UserError


def check_output(file: str | Path, formats: Iterable[str], what: str = "file") -> Path:
    """Return the path of a file to write.

    Args:
        file: The file.
        formats: The endings of the known formats, such as `.png`.
        what: What the file holds, for the error.

    Raises:
        UserError: if the ending is unknown, the folder does not exist, or the path is that of a folder.
    """
    path, (*others, last) = Path(file), formats
    if path.suffix not in (*others, last):
        remedy = f"Use {', '.join(others)} or {last}." if others else f"Use {last}."
        raise UserError(f"unknown {what} format {path.suffix or path.name!r}", file=path, remedy=remedy)
    if path.is_dir():
        raise UserError("cannot write: this is a folder", file=path, remedy="Choose another file with -o.")
    if not path.parent.is_dir():
        remedy = "Create the folder, or choose another file with -o."
        raise UserError(f"cannot write: the folder {str(path.parent)!r} does not exist", file=path, remedy=remedy)
    return path
