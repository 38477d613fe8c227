"""Folders that take seconds to make, made by one process of pytest-xdist and copied by the others."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return this process's copy of a folder whose content `make(folder)` writes once in a run of the suite.

    The copy keeps the times of the files. Tests of this process share it.
    """
    copy = factory.mktemp(name)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        make(copy)
        return copy
    shared = factory.getbasetemp().parent / f"shared-{name}"
    with open(f"{shared}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            partial = factory.mktemp(f"{name}-partial")
            make(partial)
            partial.rename(shared)
    shutil.copytree(shared, copy, dirs_exist_ok=True)
    return copy
