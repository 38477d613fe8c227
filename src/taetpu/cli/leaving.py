"""A command that is ended while machines cost money: what is there is said, however it was ended."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from taetpu.cli.cloud import tell


class Ended(KeyboardInterrupt):
    """Another signal than Ctrl-C's that ends a command."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number


@contextmanager
def telling(words: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP (unless it is ignored, as under nohup) end the block by `KeyboardInterrupt`, and the
    process with 128 and the signal's number; what is left is told before.

    Args:
        words: what may be left, and how to go on; "" if nothing is.
    """
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]

    def heard(number: int, frame: object) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)  # once is enough
        raise Ended(number)

    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield
    except KeyboardInterrupt as stopped:
        with suppress(OSError):  # the terminal may be gone
            tell(f"\n{words() or 'interrupted: the same command can be given again'}")
        sys.exit(128 + (stopped.number if isinstance(stopped, Ended) else signal.SIGINT))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
