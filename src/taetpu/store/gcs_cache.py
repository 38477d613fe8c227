"""What is known of a bucket without asking it again: listings that are a moment old, and contents by generation.

A live page looks every two seconds, and asks of every run whether it is done and what it has measured. One listing of
the study answers all of that; only what is new is read.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

FRESH = 1.0
"""Seconds for which a listing is believed. What this process changes is known at once."""
LAST = "/result.json"
"""How the keys end that are written after all that they vouch for."""
SMALL, ROOM = 1 << 20, 64 << 20
"""Bytes: contents that are kept, and how many of them together."""


@dataclass(frozen=True)
class Entry:
    """An object as a listing tells it; `updated` in seconds since 1970, by the server's clock."""

    generation: int
    updated: float
    size: int
    crc32c: str


@dataclass
class Listings:
    """By the first name of a key, the study's, all keys below it.

    Args:
        ask: lists all keys below a name.
    """

    ask: Callable[[str], dict[str, Entry]]
    known: dict[str, tuple[float, dict[str, Entry]]] = field(default_factory=dict)
    turn: threading.RLock = field(default_factory=threading.RLock)

    def below(self, name: str) -> Mapping[str, Entry]:
        """All keys below a name.

        A listing comes in pages, so it may have a result and lack what was written just before it. Where results are
        new, it is taken once more, and only those count that the first one had.
        """
        with self.turn:
            if (kept := self.fresh(name)) is not None:
                return kept
            _, before = self.known.get(name, (0.0, {}))
            found = self.ask(name)
            results = {key for key in found if key.endswith(LAST)}
            if results - set(before):
                found = {key: entry for key, entry in self.ask(name).items() if key in results or key[-12:] != LAST}
            self.known[name] = time.monotonic(), found
            return found

    def fresh(self, name: str) -> Mapping[str, Entry] | None:
        """The same if it was asked a moment ago."""
        with self.turn:
            at, found = self.known.get(name, (0.0, None))
            return found if time.monotonic() - at < FRESH else None

    def put(self, key: str, entry: Entry) -> None:
        """This process has written a key."""
        with self.turn:
            self._change(key, lambda found: {**found, key: entry})

    def drop(self, keys: list[str]) -> None:
        """This process has deleted keys."""
        with self.turn:
            gone = set(keys)
            for name in {key.partition("/")[0] for key in keys}:
                self._change(name, lambda found: {key: found[key] for key in found if key not in gone})

    def forget(self) -> None:
        """Ask again for all."""
        with self.turn:
            self.known.clear()

    def _change(self, key: str, changed: Callable[[dict[str, Entry]], dict[str, Entry]]) -> None:
        """Put another listing in the place of one, which somebody may be reading."""
        name = key.partition("/")[0]
        if name in self.known:
            at, found = self.known[name]
            self.known[name] = at, changed(found)


@dataclass
class Contents:
    """Bytes of small objects by key, with the generation that they are; those used last are kept."""

    kept: OrderedDict[str, tuple[int, bytes]] = field(default_factory=OrderedDict)
    size: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: str, generation: int) -> bytes | None:
        """The bytes of a key in this generation, if they are known."""
        with self.turn:
            known, data = self.kept.get(key, (0, b""))
            if known != generation:
                return None
            self.kept.move_to_end(key)
            return data

    def put(self, key: str, generation: int, data: bytes) -> None:
        """A key has these bytes."""
        with self.turn:
            _, old = self.kept.pop(key, (0, b""))
            self.size -= len(old)
            if len(data) <= SMALL:
                self.kept[key], self.size = (generation, data), self.size + len(data)
            while self.size > ROOM:
                _, (_, oldest) = self.kept.popitem(last=False)
                self.size -= len(oldest)
