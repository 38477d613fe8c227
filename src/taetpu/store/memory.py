"""A store in memory, for results that are not kept."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias, Union

from taetpu.core.errors import UserError
from taetpu.store.errors import WRITTEN_ONCE, NotStored, check_name


class Stored(NamedTuple):
    """The bytes under a key, and the time of writing in seconds since 1970."""

    data: bytes
    written: float


Folder: TypeAlias = dict[str, Union["Folder", Stored]]


class MemoryStore:
    """A `Store` in the memory of this process. It has no folders for the files of libraries.

    Args:
        place: the folder that messages name, such as the folder to which the files will be copied.
    """

    def __init__(self, place: str = "memory"):
        self.place = place
        self._top: Folder = {}

    def write(self, key: str, data: bytes, *, replace: bool = False) -> None:
        """See `Store.write`."""
        *parents, name = (check_name(part, "key part") for part in key.split("/"))
        folder = self._top
        for part in parents:
            below = folder.setdefault(part, {})
            if isinstance(below, Stored):
                raise UserError("cannot write: this is not a folder", file=self.where(key), remedy=WRITTEN_ONCE)
            folder = below
        known = folder.get(name)
        if not replace and isinstance(known, Stored) and known.data != data:
            problem = "this file already exists with different content and must not be overwritten"
            raise UserError(problem, file=self.where(key), remedy=WRITTEN_ONCE)
        folder[name] = Stored(data, time.time())

    def read(self, key: str) -> bytes:
        """See `Store.read`."""
        return self._stored(key).data

    def exists(self, key: str) -> bool:
        """See `Store.exists`."""
        return isinstance(self._find(key), Stored)

    def list(self, prefix: str, depth: int | None = None) -> list[str]:
        """See `Store.list`."""
        node = self._find(prefix) if prefix else self._top
        return sorted(_keys(node, prefix, depth)) if isinstance(node, dict) else []

    def delete(self, prefix: str) -> None:
        """See `Store.delete`."""
        parent, _, name = prefix.rpartition("/")
        folder = self._find(parent) if parent else self._top
        if isinstance(folder, dict):
            folder.pop(name, None)

    def move(self, old: str, new: str) -> None:
        """See `Store.move`."""
        for key in [old] if self.exists(old) else self.list(old):
            self.write(new + key.removeprefix(old), self.read(key))
        self.delete(old)

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """See `Store.claim`. Other processes have no access."""
        yield

    def folder(self, key: str) -> Path:
        """Raise `UserError`, since there are no folders."""
        raise UserError("files of a library cannot be stored in memory", file=self.where(key))

    def save_folder(self, key: str) -> None:
        """Raise `UserError`, since there are no folders."""
        self.folder(key)

    def fetch_folder(self, key: str) -> bool:
        """Return False, since there are no folders."""
        return False

    def where(self, key: str) -> str:
        """See `Store.where`."""
        return f"{self.place}/{key}"

    def modified(self, key: str) -> float:
        """See `Store.modified`."""
        return self._stored(key).written

    def size(self, key: str) -> int | None:
        """See `Store.size`."""
        node = self._find(key)
        return len(node.data) if isinstance(node, Stored) else None

    def run_concurrently(self, changes: Iterable[Callable[[], None]]) -> None:
        """See `Store.run_concurrently`."""
        for change in changes:
            change()

    def _find(self, key: str) -> Folder | Stored | None:
        node: Folder | Stored | None = self._top
        for part in key.split("/"):
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def _stored(self, key: str) -> Stored:
        node = self._find(key)
        if not isinstance(node, Stored):
            raise NotStored("nothing is stored here", file=self.where(key))
        return node


def _keys(folder: Folder, prefix: str, depth: int | None) -> Iterator[str]:
    if depth is not None and depth < 1:
        return
    for name, node in folder.items():
        key = f"{prefix}/{name}" if prefix else name
        if isinstance(node, Stored):
            yield key
        else:
            yield from _keys(node, key, None if depth is None else depth - 1)
