"""The one interface through which everything is stored, and its first backend, a local folder (`gcs` is the other).

A key is names joined by `/`, e.g. `my-study/runs/nope/0-1f3a9c04/config.json`. Whatever a place must offer stands in
`Store`.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from taetpu.core import disk
from taetpu.core.errors import UserError
from taetpu.store.gcs_client import parse_address
from taetpu.store.names import ClaimHeld, NotStored, check_name, describe_process

DAMAGED_FOLDER = "damaged"


class Store(Protocol):
    """What a place for studies can do. Every failure of the place itself is a `UserError` that names the path."""

    def write(self, key: str, data: bytes, *, replace: bool = False) -> None:
        """Store `data` durably, as a whole or not at all.

        A key is written once: the same bytes again are fine, other bytes raise `UserError` unless `replace` is set.
        """
        ...

    def read(self, key: str) -> bytes:
        """The bytes under `key`. Raises `NotStored`."""
        ...

    def exists(self, key: str) -> bool:
        """Whether `read` would find the key."""
        ...

    def list(self, prefix: str, depth: int | None = None) -> list[str]:
        """Sorted keys below `prefix` ("" for all), at most `depth` names further down."""
        ...

    def delete(self, prefix: str) -> None:
        """Remove a key, or every key below it. Nothing there is fine."""
        ...

    def move(self, old: str, new: str) -> None:
        """Give a key, or every key below it, a new name, under which nothing is stored yet."""
        ...

    def claim(self, key: str) -> AbstractContextManager[None]:
        """Hold `key` against every other process until the block is left or this process dies.

        What killed writers left unfinished in the key's folder is cleared. Raises `ClaimHeld`, which says who holds it.
        """
        ...

    def folder(self, key: str) -> Path:
        """A local folder, created, for what must be a folder (an Orbax checkpoint). `keep` stores what is put there."""
        ...

    def save_folder(self, key: str) -> None:
        """Store what lies in `folder(key)` by now: it counts whole or not at all."""
        ...

    def fetch_folder(self, key: str) -> bool:
        """Have in `folder(key)` what was kept of it; False, and nothing done, where nothing was kept.

        Raises `Damaged` where what was kept is no longer whole.
        """
        ...

    def where(self, key: str) -> str:
        """The key as a person would open it: a path, an address."""
        ...

    def modified(self, key: str) -> float:
        """When the key was last written, in seconds since 1970. Raises `NotStored`."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes under `key`; None where nothing is stored."""
        ...

    def free_bytes(self) -> int:
        """Bytes that may still be written here."""
        ...


def open_store(root: str | Path) -> "Store":
    """The store at `root`, `gs://bucket/folder` or a local folder that need not exist yet.

    Raises:
        UserError: an address of a kind that is not supported.
    """
    place = parse_address(root)
    if place is None:
        return LocalStore(Path(root))
    from taetpu.store.gcs import open_bucket

    return open_bucket(place)


def run_concurrently(store: Store, changes: Iterable[Callable[[], None]]) -> None:
    """Make changes that do not depend on each other: side by side where the store can, as a bucket can, whose every
    answer takes a while; else one after the other. They are asked for as they are made.
    """
    side_by_side = getattr(store, "run_concurrently", None)
    if side_by_side is not None:
        side_by_side(changes)
        return
    for change in changes:
        change()


def move_to_damaged(store: Store, study: str, key: str) -> str:
    """Move a key, or every key below it, to the study's folder `damaged`, and return where it can be opened.

    Damaged files are never deleted, and nothing that reads a study looks into that folder.
    """
    name = key.removeprefix(f"{study}/")
    places = (f"{study}/{DAMAGED_FOLDER}/{number}/{name}" for number in count(1))
    place = next(place for place in places if not store.exists(place) and not store.list(place))
    store.move(key, place)
    return store.where(place)


def default_root(option: str | None = None) -> str:
    """Where studies live: `--root`, else the environment's `TAETPU_ROOT`, else `./runs`."""
    return option or os.environ.get("TAETPU_ROOT") or "./runs"


class LocalStore:
    """A folder on this machine's disks; keys are relative paths. Safe with several processes at once."""

    def __init__(self, root: Path):
        self.root = root.expanduser()

    def write(self, key: str, data: bytes, *, replace: bool = False) -> None:
        path = self._path(key)
        with disk.explain_os_error("write", path, needed=len(data)):
            if disk.write_file(path, data, replace=replace) or path.read_bytes() == data:
                return
        raise UserError(
            "this file is written once, and has other content already",
            file=path,
            remedy="nothing was overwritten: use another study name or --root, or remove the old study",
        )

    def read(self, key: str) -> bytes:
        path = self._path(key)
        with disk.explain_os_error("read", path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise _not_stored(path) from None

    def exists(self, key: str) -> bool:
        path = self._path(key)
        with disk.explain_os_error("read", path):
            return path.is_file()

    def list(self, prefix: str, depth: int | None = None) -> list[str]:
        top = self._path(prefix) if prefix else self.root
        with disk.explain_os_error("list", top):
            return sorted(_files(str(top), prefix, depth)) if top.exists() else []

    def delete(self, prefix: str) -> None:
        path = self._path(prefix)
        with disk.explain_os_error("delete", path):
            disk.remove(path)

    def move(self, old: str, new: str) -> None:
        source, target = self._path(old), self._path(new)
        with disk.explain_os_error("move", source):
            disk.make_folder(target.parent)
            source.rename(target)

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        path = self._path(key)
        with disk.explain_os_error("write", path, needed=1):
            disk.make_folder(path.parent)
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (held until the block is left)
        with file:
            with disk.explain_os_error("write", path, needed=1):
                try:
                    # The kernel frees the lock with the process, however it ends; the file itself stays.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise _held(path) from None
                file.truncate(0)
                json.dump(describe_process(), file)
                file.flush()
                disk.remove_unfinished(path.parent)
            yield

    def folder(self, key: str) -> Path:
        path = self._path(key)
        with disk.explain_os_error("create the folder", path):
            disk.make_folder(path)
        return path.resolve()

    def save_folder(self, key: str) -> None:
        pass  # it lies where it is to be

    def fetch_folder(self, key: str) -> bool:
        return self._path(key).is_dir()

    def where(self, key: str) -> str:
        return str(self._path(key))

    def modified(self, key: str) -> float:
        path = self._path(key)
        with disk.explain_os_error("read", path):
            try:
                return path.stat().st_mtime
            except (FileNotFoundError, NotADirectoryError):
                raise _not_stored(path) from None

    def size(self, key: str) -> int | None:
        path = self._path(key)
        with disk.explain_os_error("read", path):
            return path.stat().st_size if path.is_file() else None

    def free_bytes(self) -> int:
        with disk.explain_os_error("read", self.root):
            return disk.free_bytes(self.root)

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*(check_name(part, "key part") for part in key.split("/")))


def _files(top: str, key: str, depth: int | None) -> Iterator[str]:
    """The keys of files below the folder of a key, without dot files; a folder that cannot be read is an error rather
    than an omission. Without `Path`, which would take most of the time of who watches many runs.
    """
    if depth is not None and depth < 1:
        return
    with os.scandir(top) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            below = f"{key}/{entry.name}" if key else entry.name
            if entry.is_dir():
                with suppress(FileNotFoundError):  # another process may have deleted it since
                    yield from _files(entry.path, below, None if depth is None else depth - 1)
            else:
                yield below


def _held(path: Path) -> ClaimHeld:
    try:
        by = json.loads(path.read_text(encoding="utf-8"))
        holder = f"pid {by['pid']} on {by['host']} (user {by['user']}) since {by['since']}"
    except (ValueError, LookupError, TypeError):  # locked a moment ago and not signed yet
        holder = "a process that has just started"
    remedy = "wait for it or stop it, then run the same command again; or use another --root"
    return ClaimHeld(f"the study is held by {holder}", file=path, remedy=remedy)


def _not_stored(path: Path) -> NotStored:
    return NotStored("nothing is stored here", file=path)
