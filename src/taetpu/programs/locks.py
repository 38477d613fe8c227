"""Locks on files that a program's supervisor inherits: they are held until all processes of the program have ended.

If the driver is killed, its programs have seconds to end (see `process`). Locks keep other drivers from the program's
folder and its GPUs until then.
"""

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from taetpu.core.errors import UserError

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.1


@contextmanager
def hold_locks(files: Sequence[Path]) -> Iterator[list[int]]:
    """Lock files, which are created if necessary, during a `with` block. Yield their descriptors.

    Raises:
        UserError: If another process still holds a lock after `WAIT_SECONDS`.
    """
    until = time.monotonic() + WAIT_SECONDS
    with ExitStack() as stack:
        descriptors = []
        for path in files:
            file = stack.enter_context(path.open("a"))
            while not _lock(file.fileno()):
                if time.monotonic() > until:
                    problem = "a program that an earlier process started has not ended"
                    raise UserError(problem, file=path, remedy=f"Stop it: `fuser {path}` shows its supervisor.")
                time.sleep(POLL_SECONDS)
            descriptors.append(file.fileno())
        yield descriptors


def _lock(descriptor: int) -> bool:
    """Lock a file unless another process holds the lock. Return whether this process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
