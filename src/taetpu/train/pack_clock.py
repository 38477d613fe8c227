"""The clock of a pack, which divides its wall time into the parts of `store.pack_times`."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from threading import get_ident
from typing import Any, Concatenate, ParamSpec, TypeVar

from jax import monitoring

from taetpu.core.errors import UserError
from taetpu.store.pack_times import PARTS, Part, Parts

COMPILATION = "/jax/core/compile/"
"""The start of the names of JAX's events for tracing, lowering and compilation, which includes reads of its cache."""
NOTE_SECONDS = 10.0
"""Seconds between the times at which an unfinished pack stores its parts."""

P = ParamSpec("P")
T = TypeVar("T")


class PackClock:
    """Measures what the wall time of a pack is spent on. It is a context manager around the training of the pack.

    Time outside `spend` is `other`. The compilations of this thread are `compiled`, wherever they happen.

    Args:
        write: stores the parts; by default, they are not stored.
        earlier: the parts that earlier processes measured for the pack.
        waited: the seconds that passed between the assignment of the pack to this process and now.
    """

    def __init__(
        self, write: Callable[[Parts], None] = lambda parts: None, earlier: Mapping[Part, float] | None = None,
        waited: float = 0.0,
    ):  # fmt: skip
        self.write, self.thread = write, get_ident()
        self.parts: Parts = {part: (earlier or {}).get(part, 0.0) for part in PARTS}
        self.parts["waited"] += waited
        self.part: Part = "other"
        self.since = self.noted = time.monotonic()
        self.compilations: list[tuple[float, float]] = []
        """When the compilations within the current part ended and how long they took, without those within others."""

    def __enter__(self) -> "PackClock":
        monitoring.register_event_duration_secs_listener(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        monitoring.unregister_event_duration_listener(self._on_event)
        self.note(0.0)

    @contextmanager
    def spend(self, part: Part) -> Iterator[None]:
        """Count the time of a `with` block as `part`, except for inner blocks."""
        before = self._switch(part)
        try:
            yield
        finally:
            self._switch(before)

    def note(self, interval: float = NOTE_SECONDS) -> None:
        """Store the parts if the last time was at least `interval` seconds ago. Errors of the store are ignored."""
        self._switch(self.part)
        if self.since - self.noted >= interval:
            self.noted = self.since
            with suppress(UserError, OSError):  # results do not depend on times
                self.write(dict(self.parts))

    def _switch(self, part: Part) -> Part:
        """Begin to count time as `part`, and return the part before."""
        now = time.monotonic()
        self.parts[self.part] += now - self.since
        before, self.part, self.since = self.part, part, now
        self.compilations.clear()
        return before

    def _on_event(self, event: str, duration_secs: float, **_: object) -> None:
        """Count a compilation, which ends now. Compilations within it, such as inner traces, were counted before."""
        if not event.startswith(COMPILATION) or get_ident() != self.thread:
            return
        now, within = time.monotonic(), 0.0
        while self.compilations and self.compilations[-1][0] > now - duration_secs:
            within += self.compilations.pop()[1]
        self.compilations.append((now, duration_secs))
        new = min(max(duration_secs - within, 0.0), now - self.since)
        self.parts["compiled"] += new
        self.since += new


def spends(part: Part) -> Callable[[Callable[Concatenate[Any, P], T]], Callable[Concatenate[Any, P], T]]:
    """Return a decorator for methods whose time is counted as `part` by `self.clock`."""

    def decorate(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
        @wraps(method)
        def timed(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
            with self.clock.spend(part):
                return method(self, *args, **kwargs)

        return timed

    return decorate
