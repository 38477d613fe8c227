"""A store that several processes share: the first one reads and writes it, and all of them know what it read."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from taetpu.core.distributed import agreed
from taetpu.store.backend import Store


class Together:
    """`Store` for several processes that all do the same: every operation has to be asked for by each of them.

    No folder has to be seen by more than the first.

    Args:
        own: the store itself, for what the first process does alone.
    """

    def __init__(self, own: Store):
        self.own = own

    def write(self, key: str, data: bytes, *, replace: bool = False) -> None:
        agreed(lambda: self.own.write(key, data, replace=replace))

    def read(self, key: str) -> bytes:
        return agreed(lambda: self.own.read(key))

    def exists(self, key: str) -> bool:
        return agreed(lambda: self.own.exists(key))

    def list(self, prefix: str, depth: int | None = None) -> list[str]:
        return agreed(lambda: self.own.list(prefix, depth))

    def delete(self, prefix: str) -> None:
        agreed(lambda: self.own.delete(prefix))

    def move(self, old: str, new: str) -> None:
        agreed(lambda: self.own.move(old, new))

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """Held by the first process, for all."""
        with ExitStack() as held:
            agreed(lambda: held.enter_context(self.own.claim(key)))
            yield

    def folder(self, key: str) -> Path:
        """A folder that the first process works in; the others need not see it."""
        return Path(agreed(lambda: str(self.own.folder(key))))

    def keep(self, key: str) -> None:
        agreed(lambda: self.own.keep(key))

    def fetch(self, key: str) -> bool:
        return agreed(lambda: self.own.fetch(key))

    def where(self, key: str) -> str:
        return self.own.where(key)

    def modified(self, key: str) -> float:
        return agreed(lambda: self.own.modified(key))

    def size(self, key: str) -> int | None:
        return agreed(lambda: self.own.size(key))

    def free_bytes(self) -> int:
        return agreed(self.own.free_bytes)
