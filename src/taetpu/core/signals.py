"""Handling of Ctrl-C, which can be delayed, and of SIGTERM, which announces that the machine is preempted."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C as a signal, as opposed to a `KeyboardInterrupt` that other code raises."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception is a Ctrl-C.

    With Python's own handler, outside `raise_interrupts`, every `KeyboardInterrupt` counts as one.
    """
    if type(error) is KeyboardInterrupt:
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def raise_interrupts() -> Iterator[Callable[[], None]]:
    """Raise `Interrupted` on Ctrl-C, and again at each later call of the yielded function.

    Python prints and drops an exception that is raised in a callback of the garbage collector, and JAX registers one:
    there, only the next call raises.
    """
    pressed = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        pressed.set()
        if not _in_gc_callback(frame):
            raise Interrupted

    def check() -> None:
        if pressed.is_set():
            raise Interrupted

    with _handler(handle):
        yield check


def _in_gc_callback(frame: FrameType | None) -> bool:
    """Return whether a frame was called by the garbage collector."""
    codes = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


class _Recorder:
    """A signal handler that records the first Ctrl-C and raises at the second."""

    count = 0

    def __call__(self, number: int, frame: Any) -> None:
        self.count += 1
        if self.count > 1:
            raise Interrupted


@contextmanager
def record_interrupts() -> Iterator[Callable[[], bool]]:
    """Record Ctrl-C instead of raising it; the yielded function returns whether it was pressed. A second one raises."""
    recorder = _Recorder()
    with _handler(recorder):
        yield lambda: recorder.count > 0


@contextmanager
def record_sigterm() -> Iterator[Callable[[], bool]]:
    """Record SIGTERM, the announcement of a preemption; the yielded function returns whether it arrived.

    A second SIGTERM ends the process.
    """
    received = threading.Event()

    def record(number: int, frame: Any) -> None:
        received.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    with _handler(record, signal.SIGTERM):
        yield received.is_set


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the block is done; a second one raises at once.

    This protects libraries that run an event loop, whose threads an interruption would leave in an undefined state.
    """
    if isinstance(signal.getsignal(signal.SIGINT), _Recorder):  # an outer block delays it already
        yield
        return
    with record_interrupts() as interrupted:
        yield
    if interrupted():
        raise Interrupted


@contextmanager
def _handler(handler: Callable[[int, Any], None], number: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """Set a signal's handler for a `with` block, in the main thread: only it may set handlers and receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
