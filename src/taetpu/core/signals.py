"""Handling of Ctrl-C, which can be delayed, and of SIGTERM, which announces that the machine will be preempted."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """The exception for a Ctrl-C, as opposed to a `KeyboardInterrupt` that other code raises."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception was caused by Ctrl-C.

    If Python's default handler is installed, as outside `raise_interrupts`, every `KeyboardInterrupt` counts.
    """
    if type(error) is KeyboardInterrupt:
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def raise_interrupts() -> Iterator[Callable[[], None]]:
    """Raise `Interrupted` on Ctrl-C, and again at each later call of the yielded function.

    During a callback of the garbage collector, such as JAX's, Ctrl-C does not raise immediately, because Python would
    print and drop the exception. Only the next call of the function raises then.
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
    """A signal handler that records the first Ctrl-C and raises `Interrupted` on later ones."""

    count = 0

    def __call__(self, number: int, frame: Any) -> None:
        self.count += 1
        if self.count > 1:
            raise Interrupted


@contextmanager
def record_interrupts() -> Iterator[Callable[[], bool]]:
    """Record the first Ctrl-C instead of raising an exception. A second Ctrl-C raises `Interrupted`.

    The yielded function returns whether Ctrl-C was pressed.
    """
    recorder = _Recorder()
    with _handler(recorder):
        yield lambda: recorder.count > 0


@contextmanager
def record_sigterm() -> Iterator[Callable[[], bool]]:
    """Record the first SIGTERM, which announces a preemption. A second SIGTERM ends the process.

    The yielded function returns whether SIGTERM was received.
    """
    received = threading.Event()

    def record(number: int, frame: Any) -> None:
        received.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    with _handler(record, signal.SIGTERM):
        yield received.is_set


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the `with` block. A second Ctrl-C raises immediately.

    This protects libraries that run an event loop: an interruption would leave their threads in an undefined state.
    """
    if isinstance(signal.getsignal(signal.SIGINT), _Recorder):  # an outer block already delays Ctrl-C
        yield
        return
    with record_interrupts() as interrupted:
        yield
    if interrupted():
        raise Interrupted


@contextmanager
def _handler(handler: Callable[[int, Any], None], number: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """Set a signal's handler for a `with` block. Do nothing outside the main thread, which alone can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
