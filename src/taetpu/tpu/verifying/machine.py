"""Check installed versions and the processes that use the accelerators.

The checks only read. They end no process and delete no file.
"""

import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from taetpu.core.devices import Accelerators, find_accelerators
from taetpu.tpu.verifying.checks import Finding

LOCK = Path("/tmp/libtpu_lockfile")
"""The file that libtpu locks while it uses the machine's TPU or compiles for one."""
PROC = Path("/proc")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
PACKAGES = ("taetpu", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "torch", "torch-xla")
NEEDED = {
    "TPU": (("libtpu",), "pip install 'taetpu[tpu]'"),
    "NVIDIA GPU": (("jax-cuda12-plugin", "jax-cuda13-plugin"), "pip install 'taetpu[cuda]'"),
}
"""Packages of which jax needs one, and the command that installs it, by kind of accelerator."""


def versions(installed: Sequence[Accelerators] | None = None) -> Finding:
    """Check that jax and jaxlib match and that the package for each accelerator is installed.

    Args:
        installed: accelerators in the machine; default: all accelerators that have a device file.
    """
    installed = find_accelerators() if installed is None else installed
    packages = {name: number for name in PACKAGES if (number := _version(name))}
    values: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform(), **packages}
    if number := driver_version():
        values["nvidia_driver"] = number
    for one in installed:
        needed, remedy = NEEDED.get(one.kind, ((), ""))
        if needed and not any(name in packages for name in needed):
            figure = f"this machine has a {one.kind}, but {' or '.join(needed)} is not installed"
            return Finding("FAILED", figure, values, remedy)
    if "jax" in packages and _series(packages["jax"]) != _series(packages.get("jaxlib", "")):
        figure = f"jax {packages['jax']} does not match jaxlib {packages.get('jaxlib')}"
        return Finding("FAILED", figure, values, f"pip install jax=={packages['jax']} jaxlib=={packages['jax']}")
    shown = ("python", "jax", "libtpu", "nvidia_driver")
    return Finding(
        "ok", ", ".join(f"{name.replace('_', ' ')} {values[name]}" for name in shown if name in values), values
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def driver_version(file: Path = NVIDIA_DRIVER) -> str | None:
    """Return the version of the NVIDIA driver; None if no driver is installed."""
    try:
        match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", file.read_text())
    except OSError:
        return None
    return match.group(1) if match else None


def _series(number: str) -> tuple[str, ...]:
    return tuple(number.split(".")[:2])


def lock(file: Path = LOCK) -> Finding:
    """Check that this user can take libtpu's lock."""
    if not file.exists():
        return Finding("ok", "no process holds libtpu's lock", {"file": str(file), "exists": False})
    opened, _ = find_holders([file])
    holders = {pid: describe_process(pid) for pid in _lock_holders(file)}
    holders = holders or {one.pid: one for one in opened.get(file, [])}
    values = {"file": str(file), "exists": True, "held_by": [one.pid for one in holders.values()]}
    if holders:
        figure = f"{file} is held by {', '.join(map(str, holders.values()))}"
        return Finding("FAILED", figure, values, "Wait for that process, or end it if it is yours.")
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT))  # libtpu uses these flags; the file is not changed
    except OSError:
        figure = f"{file} belongs to another user, and libtpu cannot open it"
        return Finding("FAILED", figure, values, f"When no process uses the TPU: sudo rm {file}")
    return Finding("ok", f"{file} exists and is not held: harmless", values)


def busy(installed: Sequence[Accelerators] | None = None) -> Finding:
    """Check that no other process has the accelerators open.

    Args:
        installed: accelerators in the machine; default: all accelerators that have a device file.
    """
    installed = find_accelerators() if installed is None else installed
    if not installed:
        return Finding("skipped", "this machine has no accelerator")
    files = [file for one in installed for file in one.files]
    holders, unreadable = find_holders(files)
    figure = ", ".join(f"{len(one.files)} {one.kind}{'s' if len(one.files) > 1 else ''}" for one in installed)
    values = {
        "files": [str(file) for file in files],
        "held_by": {str(file): [one.pid for one in found] for file, found in holders.items()},
        "processes_not_readable": unreadable,
    }
    if not holders:
        rest = f" ({unreadable} processes of other users are not readable)" if unreadable else ""
        return Finding("ok", f"{figure}, not in use{rest}", values)
    used = "; ".join(f"{file} is open in {', '.join(map(str, found))}" for file, found in holders.items())
    if any(file in holders for one in installed if one.kind == "TPU" for file in one.files):
        return Finding("FAILED", used, values)
    return Finding("ok", f"{figure}; {used}: a GPU can be shared", values)


@dataclass(frozen=True)
class Process:
    """A process and the start of its command line."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def describe_process(pid: int) -> Process:
    """Return a process with at most 40 characters of its command line; ID 0 means a process in another container."""
    if pid == 0:
        return Process(pid, "in another container")
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    return Process(pid, " ".join(words).strip()[:40] or "unknown")


def find_holders(files: Iterable[Path]) -> tuple[dict[Path, list[Process]], int]:
    """Find the processes that have files open. Linux only.

    This process and its ancestors are omitted, because the check itself may hold a file.

    Returns:
        The processes by file, and the number of processes that this user has no permission to read.
    """
    paths = {os.path.realpath(file): file for file in files}
    holders: dict[Path, list[Process]] = {}
    unreadable, own = 0, _own_pids()
    for folder in PROC.iterdir() if PROC.is_dir() else ():
        if not folder.name.isdecimal() or int(folder.name) in own:
            continue
        try:
            opened = {target for link in (folder / "fd").iterdir() if (target := _link_target(link))}
        except PermissionError:
            unreadable += 1
            continue
        except OSError:  # the process has ended
            continue
        for name in opened & paths.keys():
            holders.setdefault(paths[name], []).append(describe_process(int(folder.name)))
    return holders, unreadable


def _own_pids() -> set[int]:
    pids, pid = set(), os.getpid()
    while pid > 1 and pid not in pids:
        pids.add(pid)
        try:
            # The command name in brackets may contain anything; the fields after the last bracket are numbers.
            pid = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return pids


def _link_target(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def _lock_holders(file: Path) -> list[int]:
    """Return the IDs of the processes that hold a lock on a file; 0 means a process in another container."""
    try:
        status = file.stat()
        text = (PROC / "locks").read_text()
    except OSError:
        return []
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = [line.split() for line in text.splitlines() if "->" not in line]  # an arrow marks a waiting process
    return sorted({max(0, int(row[4])) for row in rows if len(row) > 5 and row[5] == inode})
