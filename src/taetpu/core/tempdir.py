"""The temporary folder of this process. It is removed at exit. Later processes remove the folders of killed ones."""

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
"""The time for which a dead process's lock file is kept, in seconds. It exceeds the validity of a claim in a bucket."""


@cache
def process_folder() -> Path:
    """Return the temporary folder of this process. The first call creates it.

    Raises:
        UserError: if the folder cannot be created.
    """
    top = cache_folder() / "scratch"
    with disk.explain_os_error("create the folder", top):
        disk.make_folder(top)
        folder = Path(tempfile.mkdtemp(dir=top))
        # Never closed: the kernel releases the lock when the process ends.
        fcntl.flock(os.open(folder / f"{LOCK}.new", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
        (folder / f"{LOCK}.new").rename(folder / LOCK)  # the file is never visible unlocked
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


def process_lock() -> Path:
    """Return the path of a file that is locked while this process is running."""
    return process_folder() / LOCK


def is_abandoned(lock: Path) -> bool:
    """Return whether a lock file exists and its process is dead."""
    try:
        with lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, or missing
        return False
    return True


def remove_abandoned() -> None:
    """Remove the folders of dead processes.

    Each lock file is kept for `LOCK_KEPT_SECONDS`, because it shows that other claims by its process are abandoned.
    """
    for lock in process_folder().parent.glob(f"*/{LOCK}"):
        if not is_abandoned(lock):
            continue
        swept = lock.with_name(SWEPT)
        with suppress(OSError):  # another process removes the folder at the same time
            if swept.exists() and time.time() - swept.stat().st_mtime > LOCK_KEPT_SECONDS:
                shutil.rmtree(lock.parent)
                continue
            swept.touch()
            for path in lock.parent.iterdir():
                if path.name not in (LOCK, SWEPT):
                    disk.remove(path)
