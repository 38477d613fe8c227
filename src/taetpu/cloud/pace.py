"""Not too many machines asked for in a short time, by all commands of this account together.

A project may ask the Cloud TPU API for 91 nodes a minute, by a public report (marin-community/marin#6198, June 2026);
beyond that it refuses everybody's requests for a while. A loop that has gone wild stays well below here.
"""

import fcntl
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from taetpu.cloud.clients import fake_address
from taetpu.core import disk

AT_ONCE, A_MINUTE = 20, 30
"""Requests that may follow each other without a pause, and how many more each minute brings."""
HURRY = 100
"""How many times as fast the fakes may be asked, which refuse nobody for it."""


def wait_turn(folder: Path, now: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep) -> float:
    """Wait until one more machine may be asked for; the seconds that it took.

    Args:
        folder: of the project's records, where all commands see how many were asked for.

    Raises:
        UserError: it cannot be written.
    """
    path, waited = folder / "pace", 0.0
    rate = A_MINUTE / 60 * (HURRY if fake_address() else 1)
    with disk.explained("write", path):
        disk.make_folder(folder)
        while pause := _take(path, rate, now()):
            sleep(pause)
            waited += pause
    return waited


def _take(path: Path, rate: float, now: float) -> float:
    """Take a turn if there is one: 0; else the seconds until there is. A file that says nothing has all of them."""
    left, at = float(AT_ONCE), now
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        with suppress(ValueError, TypeError):
            left, at = map(float, json.loads(file.read()))
        left = min(AT_ONCE, left + max(0.0, now - at) * rate)
        pause = 0.0 if left >= 1 else (1 - left) / rate
        file.seek(0)
        file.truncate()
        file.write(json.dumps([left if pause else left - 1, now]))
    return pause
