"""Ctrl-C, heard even where a library swallows the exception that it raises, and held back where it would do harm; and
SIGTERM, on which a machine that is taken away leaves a moment to write things down.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AGAIN = 0.02  # seconds after which a dropped Ctrl-C is raised once more


class Pressed(KeyboardInterrupt):
    """Ctrl-C as a signal, which a `KeyboardInterrupt` that other code raises is not."""


def pressed(error: BaseException) -> bool:
    """Is an exception a Ctrl-C? Python's own handler, outside of `listening`, does not distinguish it from code that
    raises `KeyboardInterrupt`, which then counts as one.
    """
    if type(error) is KeyboardInterrupt:
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def listening() -> Iterator[Callable[[], None]]:
    """Ctrl-C raises `Pressed` at once; soon after if that was dropped; else at the next call of what this
    gives.

    An exception that is raised in a callback of the garbage collector (jax has one) Python drops: it says so on stderr
    and goes on as if nothing had been pressed.
    """
    heard, answered, main = threading.Event(), threading.Event(), threading.get_ident()
    hook = sys.unraisablehook

    def note(number: int, frame: Any) -> None:
        heard.set()
        raise Pressed

    def check() -> None:
        if heard.is_set():
            answered.set()
            raise Pressed

    def again() -> None:
        if not answered.is_set():
            signal.pthread_kill(main, signal.SIGINT)

    def tell(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):  # what is raised here, too, would be dropped
            threading.Timer(AGAIN, again).start()
        else:
            hook(unraisable)

    sys.unraisablehook = tell
    try:
        with _handler(note):
            yield check
    finally:
        answered.set()
        sys.unraisablehook = hook


class _Note:
    """Notes Ctrl-C; pressed again, it is raised."""

    heard = 0

    def __call__(self, number: int, frame: Any) -> None:
        self.heard += 1
        if self.heard > 1:
            raise Pressed


@contextmanager
def noted() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is only noted, and what this gives says whether it was; pressed again, it waits no longer."""
    note = _Note()
    with _handler(note):
        yield lambda: note.heard > 0


@contextmanager
def ending() -> Iterator[Callable[[], bool]]:
    """SIGTERM, with which a machine says that it will be taken away, is only noted; what this gives says whether it
    was. A second one ends the process as ever.
    """
    heard = threading.Event()

    def note(number: int, frame: Any) -> None:
        heard.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    with _handler(note, signal.SIGTERM):
        yield heard.is_set


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C waits until the block is done; pressed again, it waits no longer.

    For libraries that run an event loop: one of its threads would be left in the middle of its work.
    """
    if isinstance(signal.getsignal(signal.SIGINT), _Note):  # it waits anyway, further out
        yield
        return
    with noted() as heard:
        yield
    if heard():
        raise Pressed


@contextmanager
def _handler(handler: Callable[[int, Any], None], number: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """What a signal does inside. Only the main thread hears signals, and only it may say what they do."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
