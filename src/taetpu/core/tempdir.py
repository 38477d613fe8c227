"""A folder of this process alone, for what must lie on a disk for a while. It goes with the process, and what killed
ones left goes with the next.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from taetpu.core import disk
from taetpu.core.runtime import cache_folder

LOCK, SWEPT = "lock", "swept"
LOCK_KEPT_SECONDS = 600
"""For which the lock file of a process that is gone is kept; longer than a claim in a bucket lasts."""


@cache
def process_folder() -> Path:
    """The folder, made when first asked for.

    Raises:
        UserError: it cannot be made.
    """
    top = cache_folder() / "scratch"
    with disk.explain_os_error("create the folder", top):
        disk.make_folder(top)
        folder = Path(tempfile.mkdtemp(dir=top))
        # Open for as long as the process lives: the kernel frees the lock, however it ends.
        fcntl.flock(os.open(folder / f"{LOCK}.new", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
        (folder / f"{LOCK}.new").rename(folder / LOCK)  # whoever sees it sees it locked
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


def process_lock() -> Path:
    """A file that is locked for as long as this process lives."""
    return process_folder() / LOCK


def is_abandoned(lock: Path) -> bool:
    """Is the process gone whose `lock_file` this was? A file that is not there says nothing: no."""
    try:
        with lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, or not there
        return False
    return True


def remove_abandoned() -> None:
    """Remove the folders of processes that are gone.

    The lock file stays for a while: other claims of the same process are judged by it.
    """
    for lock in process_folder().parent.glob(f"*/{LOCK}"):
        if not is_abandoned(lock):
            continue
        swept = lock.with_name(SWEPT)
        with suppress(OSError):  # another process sweeps at the same time
            if swept.exists() and time.time() - swept.stat().st_mtime > LOCK_KEPT_SECONDS:
                shutil.rmtree(lock.parent)
                continue
            swept.touch()
            for path in lock.parent.iterdir():
                if path.name not in (LOCK, SWEPT):
                    disk.remove(path)
