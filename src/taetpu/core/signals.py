"""Ctrl-C, which waits while it would do harm, and SIGTERM, which announces that the machine is preempted."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C as a signal, which a `KeyboardInterrupt` that other code raises is not."""


def is_interrupt(error: BaseException) -> bool:
    """Is an exception a Ctrl-C? Python's own handler, outside of `listening`, does not distinguish it from code that
    raises `KeyboardInterrupt`, which then counts as one.
    """
    if type(error) is KeyboardInterrupt:
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def raise_interrupts() -> Iterator[Callable[[], None]]:
    """Raise `Interrupted` on Ctrl-C, at once and again at each later call of the function that this yields.

    Python prints and drops what a callback of the garbage collector raises, and JAX registers one: there, only the next
    call raises.
    """
    pressed_once = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        pressed_once.set()
        if not _in_gc_callback(frame):
            raise Interrupted

    def check() -> None:
        if pressed_once.is_set():
            raise Interrupted

    with _handler(note):
        yield check


def _in_gc_callback(frame: FrameType | None) -> bool:
    """Return whether a frame was called by the garbage collector."""
    codes = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


class _Note:
    """Notes Ctrl-C; pressed again, it is raised."""

    heard = 0

    def __call__(self, number: int, frame: Any) -> None:
        self.heard += 1
        if self.heard > 1:
            raise Interrupted


@contextmanager
def record_interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C is only noted, and what this gives says whether it was; pressed again, it waits no longer."""
    note = _Note()
    with _handler(note):
        yield lambda: note.heard > 0


@contextmanager
def record_sigterm() -> Iterator[Callable[[], bool]]:
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
def delay_interrupts() -> Iterator[None]:
    """Ctrl-C waits until the block is done; pressed again, it waits no longer.

    For libraries that run an event loop: one of its threads would be left in the middle of its work.
    """
    if isinstance(signal.getsignal(signal.SIGINT), _Note):  # it waits anyway, further out
        yield
        return
    with record_interrupts() as heard:
        yield
    if heard():
        raise Interrupted


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
