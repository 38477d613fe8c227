"""The interface of a store, and its implementation in a local folder. `gcs` implements the interface in a bucket.

A key consists of names joined by `/`, such as `my-study/runs/nope/0-1f3a9c04/config.json`.
"""

import fcntl
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from taetpu.core import atomic_files
from taetpu.core.errors import UserError
from taetpu.store.errors import WRITTEN_ONCE, ClaimHeld, NotStored, check_name, describe_process, format_claim
from taetpu.store.gcs_client import parse_address

DAMAGED_FOLDER = "damaged"


class Store(Protocol):
    """A store of studies. If the store cannot be read or written, its methods raise a `UserError` with the path."""

    def write(self, key: str, data: bytes, *, replace: bool = False) -> None:
        """Store `data` durably and atomically.

        Raises:
            UserError: if other bytes are stored under the key and `replace` is False.
        """
        ...

    def read(self, key: str) -> bytes:
        """Return the bytes under `key`.

        Raises:
            NotStored: if nothing is stored under the key.
        """
        ...

    def exists(self, key: str) -> bool:
        """Return whether anything is stored under exactly this key."""
        ...

    def list(self, prefix: str, depth: int | None = None) -> list[str]:
        """Return the sorted keys below `prefix` ("" for the root), down to `depth` levels if `depth` is given."""
        ...

    def delete(self, prefix: str) -> None:
        """Delete a key and every key below it. Missing keys are ignored."""
        ...

    def move(self, old: str, new: str) -> None:
        """Move a key, or every key below it, to a name that is not in use."""
        ...

    def claim(self, key: str) -> AbstractContextManager[None]:
        """Hold `key` exclusively until the block ends or this process dies.

        The local store also deletes unfinished files that killed processes have left in the key's folder.

        Raises:
            ClaimHeld: if another process holds the key. The message describes that process.
        """
        ...

    def folder(self, key: str) -> Path:
        """Create and return a local folder for files that a library writes, such as a checkpoint.

        Call `save_folder` to store the files in this folder.
        """
        ...

    def save_folder(self, key: str) -> None:
        """Store the files of `folder(key)` atomically."""
        ...

    def fetch_folder(self, key: str) -> bool:
        """Restore the files of `folder(key)` that `save_folder` stored. Return whether any files were stored.

        Raises:
            Damaged: if a stored file is missing or damaged.
        """
        ...

    def where(self, key: str) -> str:
        """Return the path or address of a key, for display."""
        ...

    def modified(self, key: str) -> float:
        """Return the time at which the key was last written, in seconds since 1970.

        Raises:
            NotStored: if nothing is stored under the key.
        """
        ...

    def size(self, key: str) -> int | None:
        """Return the number of bytes under `key`; None if nothing is stored."""
        ...

    def run_concurrently(self, changes: Iterable[Callable[[], None]]) -> None:
        """Call independent functions that change the store: in threads for a bucket, one after another for a folder.

        The iterable is consumed lazily, so the data of pending changes need not fit into memory.
        """
        ...


def open_store(root: str | Path, sync: bool = True) -> Store:
    """Open the store at `root`.

    Args:
        root: an address `gs://bucket/folder` or a local folder. A local folder need not exist yet.
        sync: whether files in a local folder are synced to disk; see `LocalStore`.

    Raises:
        UserError: if the address is invalid, or its scheme is not supported.
    """
    place = parse_address(root)
    if place is None:
        return LocalStore(Path(root), sync)
    from taetpu.store.gcs import open_bucket

    return open_bucket(place)


def move_to_damaged(store: Store, study: str, key: str) -> str:
    """Move a key, or every key below it, to the study's folder `damaged`. No command reads this folder.

    Returns:
        The new path or address.
    """
    name = key.removeprefix(f"{study}/")
    places = (f"{study}/{DAMAGED_FOLDER}/{number}/{name}" for number in count(1))
    place = next(place for place in places if not store.exists(place) and not store.list(place))
    store.move(key, place)
    return store.where(place)


def default_root(option: str | None = None) -> str:
    """Return the root of studies: `option` if given, otherwise `TAETPU_ROOT` if set, otherwise `./runs`."""
    return option or os.environ.get("TAETPU_ROOT") or "./runs"


class LocalStore:
    """A `Store` in a local folder; keys are relative paths. Safe for concurrent processes.

    Args:
        root: the folder.
        sync: whether files are synced to disk, which takes milliseconds for each. Files that can be made again, such as
            those of a judged table, need not be.
    """

    def __init__(self, root: Path, sync: bool = True):
        self.root, self.sync = root.expanduser(), sync

    def write(self, key: str, data: bytes, *, replace: bool = False) -> None:
        """See `Store.write`."""
        path = self._path(key)
        with atomic_files.explain_os_error("write", path, needed=len(data)):
            if atomic_files.write_file(path, data, replace=replace, sync=self.sync) or path.read_bytes() == data:
                return
        problem = "this file already exists with different content and must not be overwritten"
        raise UserError(problem, file=path, remedy=WRITTEN_ONCE)

    def read(self, key: str) -> bytes:
        """See `Store.read`."""
        with self._reading(key) as path:
            return path.read_bytes()

    def exists(self, key: str) -> bool:
        """See `Store.exists`."""
        return self.size(key) is not None

    def list(self, prefix: str, depth: int | None = None) -> list[str]:
        """See `Store.list`."""
        top = self._path(prefix) if prefix else self.root
        with atomic_files.explain_os_error("list", top):
            return sorted(_files(str(top), prefix, depth)) if top.exists() else []

    def delete(self, prefix: str) -> None:
        """See `Store.delete`."""
        path = self._path(prefix)
        with atomic_files.explain_os_error("delete", path):
            atomic_files.remove(path)

    def move(self, old: str, new: str) -> None:
        """See `Store.move`."""
        source, target = self._path(old), self._path(new)
        with atomic_files.explain_os_error("move", source):
            atomic_files.make_folder(target.parent)
            source.rename(target)

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """See `Store.claim`."""
        path = self._path(key)
        with atomic_files.explain_os_error("write", path, needed=1):
            atomic_files.make_folder(path.parent)
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (held until the block ends)
        with file:
            with atomic_files.explain_os_error("write", path, needed=1):
                try:
                    # The kernel releases the lock when the process ends, even if it is killed. The file is kept.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise _claim_held(path) from None
                file.truncate(0)
                json.dump(describe_process(), file)
                file.flush()
                atomic_files.remove_unfinished(path.parent)
            yield

    def folder(self, key: str) -> Path:
        """See `Store.folder`."""
        path = self._path(key)
        with atomic_files.explain_os_error("create the folder", path):
            atomic_files.make_folder(path)
        return path.resolve()

    def save_folder(self, key: str) -> None:
        """Do nothing: the files of `folder(key)` are already in the store."""

    def fetch_folder(self, key: str) -> bool:
        """See `Store.fetch_folder`."""
        return self._path(key).is_dir()

    def where(self, key: str) -> str:
        """See `Store.where`."""
        return str(self._path(key))

    def modified(self, key: str) -> float:
        """See `Store.modified`."""
        with self._reading(key) as path:
            return path.stat().st_mtime

    def size(self, key: str) -> int | None:
        """See `Store.size`."""
        with self._reading(key) as path:
            return path.stat().st_size if path.is_file() else None

    def run_concurrently(self, changes: Iterable[Callable[[], None]]) -> None:
        """See `Store.run_concurrently`."""
        for change in changes:
            change()

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*(check_name(part, "key part") for part in key.split("/")))

    @contextmanager
    def _reading(self, key: str) -> Iterator[Path]:
        path = self._path(key)
        with atomic_files.explain_os_error("read", path):
            try:
                yield path
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise NotStored("nothing is stored here", file=path) from None


class TemporaryStore(LocalStore):
    """A store in a temporary folder, which is deleted with this object.

    Args:
        place: The folder that messages name, such as the folder to which the files will be copied.
    """

    def __init__(self, place: str):
        super().__init__(Path(tempfile.mkdtemp()), sync=False)
        self.place = place
        weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)

    def where(self, key: str) -> str:
        """Return the key's place in messages."""
        return f"{self.place}/{key}"


def _files(top: str, key: str, depth: int | None) -> Iterator[str]:
    """Yield the keys of the files below a folder, without hidden files.

    A folder that cannot be read raises an `OSError` instead of being skipped. `os.scandir` is used because listing many
    runs with `Path` is much slower.
    """
    if depth is not None and depth < 1:
        return
    with os.scandir(top) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            below = f"{key}/{entry.name}" if key else entry.name
            if entry.is_dir():
                with suppress(FileNotFoundError):  # another process may have deleted the folder
                    yield from _files(entry.path, below, None if depth is None else depth - 1)
            else:
                yield below


def _claim_held(path: Path) -> ClaimHeld:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # the holder has locked the file but not yet written its description
        holder = {}
    remedy = "Wait for the other process to end, or stop it, and run the same command again. Or use another --root."
    return ClaimHeld(format_claim(str(path), holder), file=path, remedy=remedy)
