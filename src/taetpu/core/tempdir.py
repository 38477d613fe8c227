"""The temporary folder of this process. It is removed at exit. After a kill, a later process removes it."""

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from taetpu.core import atomic_files
from taetpu.core.jax_setup import cache_folder

LOCK = "lock"


@cache
def process_folder() -> Path:
    """Return the temporary folder of this process. The first call creates it.

    Raises:
        UserError: if the folder cannot be created.
    """
    top = cache_folder() / "scratch"
    with atomic_files.explain_os_error("create the folder", top):
        atomic_files.make_folder(top)
        folder = Path(tempfile.mkdtemp(dir=top))
        # The file is never closed, because the kernel releases the lock when the process ends.
        fcntl.flock(os.open(folder / f"{LOCK}.new", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
        (folder / f"{LOCK}.new").rename(folder / LOCK)  # the file is never visible unlocked
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


def remove_abandoned() -> None:
    """Remove the folders of dead processes."""
    for lock in process_folder().parent.glob(f"*/{LOCK}"):
        with suppress(OSError), lock.open("r") as file:  # the file is locked, or another process removes the folder
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
