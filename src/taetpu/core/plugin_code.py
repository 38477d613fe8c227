"""Guards for running plug-in code: they handle `os._exit`, locate interruptions and announce slow imports."""

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

MODULE_PREFIX = "taetpu_plugin_"
"""The prefix of every plug-in's module name."""
ANNOUNCE_SECONDS = 2.0
"""The number of seconds after which a message says that a plug-in is still loading."""
_EXIT = os._exit


def guard_exit() -> None:
    """Make `os._exit` raise `SystemExit` if plug-in code calls it, so that it is reported like `sys.exit`.

    Calls from other code, and from processes that a plug-in forks, are not affected.
    """
    os._exit = _guarded_exit


def _guarded_exit(status: int) -> NoReturn:
    caller = sys._getframe().f_back
    if caller is None or any(_is_plugin(frame) for frame, _ in traceback.walk_stack(caller)):  # None: atexit called it
        raise SystemExit(f"os._exit({status})")
    _EXIT(status)


def _restore_exit() -> None:
    os._exit = _EXIT


os.register_at_fork(after_in_child=_restore_exit)


def _is_plugin(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(MODULE_PREFIX)


def plugin_location(error: BaseException) -> str | None:
    """Return `FILE:LINE` of the innermost plug-in code that an exception passed through, or None if there is none."""
    passed = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_plugin(frame)]
    return f"{passed[-1][0].f_code.co_filename}:{passed[-1][1]}" if passed else None


@contextmanager
def announce_slow_import(file: Path) -> Iterator[None]:
    """Write to stderr that a plug-in is still loading if the import takes longer than `ANNOUNCE_SECONDS`."""
    timer = threading.Timer(ANNOUNCE_SECONDS, lambda: sys.stderr.write(f"loading plug-in {file} ...\n"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
