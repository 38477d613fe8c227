"""Writing files so that a kill, a crash or a full disk leaves the old content or the new, never a part of it."""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from taetpu.core.errors import UserError

# What a write has not finished (or a delete has not removed) carries this prefix; listings leave out dot files.
UNFINISHED = ".unfinished-"

_FULL = {errno.ENOSPC, errno.EDQUOT}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


@contextmanager
def explain_os_error(doing: str, path: Path, needed: int = 0) -> Iterator[None]:
    """Turn an `OSError` of the body into a `UserError` that names the path and says what to do.

    Args:
        doing: the verb for the message, e.g. "write".
        path: what the body reads or writes.
        needed: bytes the body wants to write, for the message of a full disk.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            problem = f"cannot {doing}: {reason} ({needed} bytes needed, {free_bytes(path)} free)"
            remedy = "nothing was lost: free some space and run the same command again"
        elif error.errno in _CLOSED:
            problem = f"cannot {doing}: {reason}"
            remedy = "give access to it, or choose another folder with --root or TAETPU_ROOT"
        else:
            problem, remedy = f"cannot {doing}: {reason}", "see to the disk, then run the same command again"
        raise UserError(problem, file=path, remedy=remedy) from error


def free_bytes(path: Path) -> int:
    """Bytes that may still be written on the disk that holds, or would hold, `path`."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def write_file(path: Path, data: bytes, *, replace: bool) -> bool:
    """Write all of `data` or nothing, and have it on the disk before returning.

    Returns:
        False, with nothing written, when the file is there and `replace` is not set.
    """
    make_folder(path.parent)
    temporary = path.parent / (UNFINISHED + secrets.token_hex(8))
    with open(temporary, "xb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # tells `sweep` that somebody is still at it
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            written = _rename(temporary, path) if replace else _link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)
    return written


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, each known to the disk before the next."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder") from None
    _sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Delete a file or a folder. A folder vanishes as a whole: it is renamed before it is emptied."""
    if path.is_dir() and not path.is_symlink():
        doomed = path.parent / (UNFINISHED + secrets.token_hex(8))
        path.rename(doomed)
        while doomed.exists():
            with suppress(FileNotFoundError):  # another process sweeps it at the same time
                shutil.rmtree(doomed)
    else:
        path.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what writes and deletes of killed processes left below `folder`; those of living ones stay."""
    for parent, folders, files in os.walk(folder):
        for name in [name for name in folders if name.startswith(UNFINISHED)]:
            folders.remove(name)
            shutil.rmtree(Path(parent, name), ignore_errors=True)
        for name in [name for name in files if name.startswith(UNFINISHED)]:
            _remove_if_abandoned(Path(parent, name))


def _remove_if_abandoned(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except (BlockingIOError, FileNotFoundError):
        pass  # its writer lives, or has just finished


def _rename(temporary: Path, path: Path) -> bool:
    temporary.replace(path)
    return True


def _link(temporary: Path, path: Path) -> bool:
    """Give the file its name unless the name is taken; of two writers at the same moment, one is told so."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Some mounts (Google Drive in Colab, FAT) have no hard links. The study's claim keeps other writers out.
        return False if path.exists() else _rename(temporary, path)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
