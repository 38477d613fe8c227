"""Caches for a bucket: listings that are at most one second old, and the contents of objects by generation.

A live page refreshes every two seconds and requests the status and the metrics of every run each time. One listing of
the study answers all requests for the status, and only objects that are not cached are read.
"""

import threading
import time
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
            entries = self.list_keys(name)
            results = {key for key in entries if key.endswith(RESULT)}
            if results - set(before):
                again = self.list_keys(name).items()
                entries = {key: entry for key, entry in again if key in results or not key.endswith(RESULT)}
            self.known[name] = time.monotonic(), entries
            return entries

    def fresh(self, name: str) -> Mapping[str, Entry] | None:
        """Return the cached keys below a study's name, or None if they were listed more than `MAX_AGE` seconds ago."""
        with self.lock:
            listed, entries = self.known.get(name, (0.0, None))
            return entries if time.monotonic() - listed < MAX_AGE else None

    def apply(self, changes: Mapping[str, Entry | None]) -> None:
        """Apply changes that this process has made: the new entries of keys, and None for deleted keys.

        A listing is replaced by a changed copy, because another thread may be reading it.
        """
        with self.lock:
            for name in {key.partition("/")[0] for key in changes} & self.known.keys():
                listed, entries = self.known[name]
                changed = {**entries, **changes}
                self.known[name] = listed, {key: entry for key, entry in changed.items() if entry is not None}

    def clear(self) -> None:
        """Drop all listings."""
        with self.lock:
            self.known.clear()


@dataclass
class Contents:
    """A cache of the bytes of small objects, by key and generation. The cache is emptied when it is full."""

    cached: dict[tuple[str, int], bytes] = field(default_factory=dict)
    size: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: str, generation: int, data: bytes) -> None:
        """Cache the bytes of a key if they are small."""
        if len(data) > SMALL:
            return
        with self.lock:
            if self.size + len(data) > CAPACITY:
                self.cached.clear()
                self.size = 0
            self.cached[key, generation] = data
            self.size += len(data)
