"""Atomic file operations. After a kill, a crash or a full disk, a file has either its old or its new content."""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from taetpu.core.errors import UserError

# Prefix of the names of partly written files and partly removed folders. Listings skip names that begin with a dot.
UNFINISHED = ".unfinished-"

_FULL = {errno.ENOSPC, errno.EDQUOT}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


@contextmanager
def explain_os_error(doing: str, path: Path, needed: int = 0, option: str = "--root or TAETPU_ROOT") -> Iterator[None]:
    """Convert an `OSError` raised in the body to a `UserError` with the path and a remedy.

    Args:
        doing: The verb for the message, e.g. "write".
        path: The file or folder that the body reads or writes.
        needed: The number of bytes that the body writes, for the message about a full disk.
        option: What chooses another folder, for the remedy.

    Raises:
        UserError: if the body raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            problem = f"cannot {doing}: {reason} ({needed} bytes needed, {free_bytes(path)} free)"
            remedy = "Free some space and run the same command again; nothing was lost."
        elif error.errno in _CLOSED:
            problem = f"cannot {doing}: {reason}"
            remedy = f"Grant access to the path, or choose another folder with {option}."
        elif error.errno == errno.ENAMETOOLONG:
            problem, remedy = f"cannot {doing}: {reason}", f"Use a shorter name with {option}."
        else:
            problem, remedy = f"cannot {doing}: {reason}", "Check the disk, then run the same command again."
        raise UserError(problem, file=path, remedy=remedy) from error


def free_bytes(path: Path) -> int:
    """Return the number of free bytes on the disk that contains, or would contain, `path`."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def write_file(path: Path, data: bytes, *, replace: bool, sync: bool = True) -> bool:
    """Write `data` to a file atomically.

    Args:
        path: The file.
        data: Its content.
        replace: Whether to replace an existing file.
        sync: Whether to sync the file to disk. Otherwise, it survives a kill of this process, but not a crash of the
            machine.

    Returns:
        True if the file was written, or False if it already existed and `replace` is not set.
    """
    make_folder(path.parent, sync=sync)
    temporary = path.parent / (UNFINISHED + secrets.token_hex(8))
    with open(temporary, "xb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # `remove_unfinished` skips locked files
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
            written = _rename(temporary, path) if replace else _link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    if sync:
        _sync_folder(path.parent)
    return written


def make_folder(folder: Path, sync: bool = True) -> None:
    """Create a folder and its parents. Each folder is synced to disk before the next is created, if `sync` is set."""
    if folder.is_dir():
        return
    make_folder(folder.parent, sync)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder") from None
    if sync:
        _sync_folder(folder.parent)


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[int]:
    """Create a folder, and hold its lock, which one process can have.

    Yields:
        A file descriptor. Child processes that inherit it keep the folder locked until they end.

    Raises:
        BlockingIOError: if another process holds the lock, and `wait` is not set.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_same(folder / "lock", file.fileno()):
                yield file.fileno()
                return
        # The folder was deleted while this process waited.


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def remove(path: Path) -> None:
    """Delete a file or a folder. A folder disappears atomically: it is renamed before it is emptied."""
    if path.is_dir() and not path.is_symlink():
        doomed = path.parent / (UNFINISHED + secrets.token_hex(8))
        path.rename(doomed)
        while doomed.exists():
            with suppress(FileNotFoundError):  # another process removes it at the same time
                shutil.rmtree(doomed)
    else:
        path.unlink(missing_ok=True)


def remove_unused(folder: Path, use: str) -> None:
    """Delete a folder unless another process holds its lock.

    Args:
        folder: The folder.
        use: What a process that holds the lock does, for the error.

    Raises:
        UserError: if another process holds the lock.
    """
    try:
        with locked(folder, wait=False):
            remove(folder)
    except BlockingIOError:
        problem = f"another process is {use}"
        raise UserError(problem, file=folder, remedy="Wait until it has ended, or stop it.") from None


def remove_unfinished(folder: Path) -> None:
    """Remove partly written files and partly removed folders below `folder`, except files still being written."""
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
        pass  # the file is still being written, or its writer has just finished


def _rename(temporary: Path, path: Path) -> bool:
    temporary.replace(path)
    return True


def _link(temporary: Path, path: Path) -> bool:
    """Create `path` as a link to `temporary`, and return True; return False if `path` already exists."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # Some mounts, such as FAT, have no hard links. The process's claim on the study excludes other writers.
        return False if path.exists() else _rename(temporary, path)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
