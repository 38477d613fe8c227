"""Caches for a bucket: listings that are at most one second old, and the contents of objects by generation.

A live page refreshes every two seconds. Each time, it requests the status and the metrics of every run. One listing of
the study answers all requests for the status, and only objects that are not cached are read.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

MAX_AGE = 1.0
"""Seconds for which a listing is reused. Changes by this process are applied to the cached listing."""
RESULT = "/result.json"
"""Suffix of the keys of results. A result is written after all other files of its run."""
SMALL, CAPACITY = 1 << 20, 64 << 20
"""The maximum size of a cached content and the maximum size of the cache, in bytes."""


@dataclass(frozen=True)
class Entry:
    """An object in a listing. `updated` is the time of its last update by the server's clock, in seconds since 1970."""

    generation: int
    updated: float
    size: int
    crc32c: str


@dataclass
class Listings:
    """The cached listings of keys, one per study. The first part of a key is the study's name.

    Args:
        list_keys: a function that lists all keys below a study's name.
    """

    list_keys: Callable[[str], dict[str, Entry]]
    known: dict[str, tuple[float, dict[str, Entry]]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def below(self, name: str) -> Mapping[str, Entry]:
        """Return all keys below a study's name.

        A listing arrives in pages, so it may contain a result but lack files that were written just before the result.
        If a listing contains new results, the keys are therefore listed again. Results that only the second listing
        contains are ignored.
        """
        with self.lock:
            if (cached := self.fresh(name)) is not None:
                return cached
            _, before = self.known.get(name, (0.0, {}))
            found = self.list_keys(name)
            results = {key for key in found if key.endswith(RESULT)}
            if results - set(before):
                again = self.list_keys(name).items()
                found = {key: entry for key, entry in again if key in results or not key.endswith(RESULT)}
            self.known[name] = time.monotonic(), found
            return found

    def fresh(self, name: str) -> Mapping[str, Entry] | None:
        """Return the cached keys below a study's name; None if the listing is older than `MAX_AGE`."""
        with self.lock:
            listed, found = self.known.get(name, (0.0, None))
            return found if time.monotonic() - listed < MAX_AGE else None

    def put(self, key: str, entry: Entry) -> None:
        """Add a key that this process has written."""
        with self.lock:
            self._replace(key, lambda found: {**found, key: entry})

    def drop(self, keys: list[str]) -> None:
        """Remove keys that this process has deleted."""
        with self.lock:
            deleted = set(keys)
            for name in {key.partition("/")[0] for key in keys}:
                self._replace(name, lambda found: {key: found[key] for key in found if key not in deleted})

    def clear(self) -> None:
        """Drop all listings."""
        with self.lock:
            self.known.clear()

    def _replace(self, key: str, change: Callable[[dict[str, Entry]], dict[str, Entry]]) -> None:
        """Replace a study's listing by a changed copy, because another thread may be reading it."""
        name = key.partition("/")[0]
        if name in self.known:
            listed, found = self.known[name]
            self.known[name] = listed, change(found)


@dataclass
class Contents:
    """An LRU cache of small objects' bytes, by key and generation."""

    cached: OrderedDict[str, tuple[int, bytes]] = field(default_factory=OrderedDict)
    size: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: str, generation: int) -> bytes | None:
        """Return the bytes of a generation of a key; None if they are not cached."""
        with self.lock:
            cached, data = self.cached.get(key, (0, b""))
            if cached != generation:
                return None
            self.cached.move_to_end(key)
            return data

    def put(self, key: str, generation: int, data: bytes) -> None:
        """Cache the bytes of a key if they are small, and evict the least recently used entries of a full cache."""
        with self.lock:
            _, old = self.cached.pop(key, (0, b""))
            self.size -= len(old)
            if len(data) <= SMALL:
                self.cached[key], self.size = (generation, data), self.size + len(data)
            while self.size > CAPACITY:
                _, (_, oldest) = self.cached.popitem(last=False)
                self.size -= len(oldest)
