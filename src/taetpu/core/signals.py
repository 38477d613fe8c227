"""Handling of Ctrl-C, which can be delayed, and of SIGTERM, which announces that the machine will be preempted."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""The handlers that are restored after the first signal is recorded."""


@contextmanager
def record_signal(number: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Record the first signal with this number. A second signal has Python's default effect.

    The yielded function returns whether the signal was received. Only the main thread can set handlers, so
    no signal is recorded in other threads.
    """
    received = threading.Event()

    def record(number: int, frame: Any) -> None:
        received.set()
        signal.signal(number, DEFAULTS[signal.Signals(number)])

    if threading.current_thread() is not threading.main_thread():
        yield received.is_set
        return
    before = signal.signal(number, record)
    try:
        yield received.is_set
    finally:
        signal.signal(number, before)


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the `with` block. A second Ctrl-C raises `KeyboardInterrupt` immediately.

    This protects libraries that run an event loop, because an interruption would leave their threads in an undefined
    state.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # an outer block records Ctrl-C
        yield
        return
    with record_signal(signal.SIGINT) as interrupted:
        yield
    if interrupted():
        raise KeyboardInterrupt
