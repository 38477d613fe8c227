"""Files and folders that a command is asked to write: checks, and folders that appear whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from taetpu.core.atomic_files import UNFINISHED, explain_os_error, make_folder, remove_unfinished
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


def check_new_folder(folder: Path) -> None:
    """Raise `UserError` if a folder to write is a file, or contains anything but the rest of an interrupted write."""
    with explain_os_error("write", folder, option="-o"):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise UserError("this is not a folder", file=folder, remedy="Name another folder with -o.")
        names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(UNFINISHED))
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        problem = f"this folder is not empty: it contains {', '.join(names[:3])}{more}"
        raise UserError(problem, file=folder, remedy="Name another folder with -o.")


def write_new_folder(folder: Path, files: Mapping[str, bytes | Callable[[Path], object]], needed: int) -> None:
    """Write the files of a folder that does not exist or is empty. After an error, it is as before.

    Args:
        folder: The folder.
        files: The content of each file by name, or a function that writes it to a path. The last one appears last, so
            that a folder without it was interrupted.
        needed: The number of bytes of all files, for the message about a full disk.

    Raises:
        UserError: If the folder contains other files, or the disk is full or not writable.
    """
    check_new_folder(folder)
    temporary, is_new = folder / (UNFINISHED + secrets.token_hex(8)), not folder.exists()
    with explain_os_error("write", folder, needed, option="-o"):
        try:
            make_folder(folder)
            remove_unfinished(folder)
            temporary.mkdir()
            for name, content in files.items():
                _write_synced(temporary / name, content)
            for name in files:
                (temporary / name).rename(folder / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if is_new:
                with suppress(OSError):  # it holds the files, or was never created
                    folder.rmdir()


def _write_synced(path: Path, content: bytes | Callable[[Path], object]) -> None:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    with path.open("rb") as file:
        os.fsync(file.fileno())
