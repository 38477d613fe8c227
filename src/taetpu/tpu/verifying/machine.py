"""Check installed versions and the processes that use the accelerators.

The checks only read. They do not end processes or delete files.
"""

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from taetpu.core.accelerators import Accelerators, find_accelerators
from taetpu.tpu.verifying.checks import Finding

LOCK = Path("/tmp/libtpu_lockfile")
"""The file that libtpu locks while it uses the machine's TPU or compiles for one."""
PROC = Path("/proc")
PACKAGES = ("taetpu", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "torch")
NEEDED = {
    "TPU": (("libtpu",), "pip install 'taetpu[tpu]'"),
    "NVIDIA GPU": (("jax-cuda12-plugin", "jax-cuda13-plugin"), "pip install 'taetpu[cuda]'"),
}
"""For each kind of accelerator: the packages of which jax needs one, and the command that installs one of them."""


def versions(installed: Sequence[Accelerators] | None = None) -> Finding:
    """Check that jax's package for each kind of accelerator is installed.

    Args:
        installed: accelerators in the machine; default: all accelerators that have a device file.
    """
    installed = find_accelerators() if installed is None else installed
    packages = {name: number for name in PACKAGES if (number := _version(name))}
    values: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform(), **packages}
    for accelerator in installed:
        needed, remedy = NEEDED.get(accelerator.kind, ((), ""))
        if needed and not any(name in packages for name in needed):
            figure = f"this machine has a {accelerator.kind}, but {' or '.join(needed)} is not installed"
            return Finding("FAILED", figure, values, remedy)
    shown = ", ".join(f"{name} {values[name]}" for name in ("python", "jax", "libtpu") if name in values)
    return Finding("ok", shown, values)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def busy(installed: Sequence[Accelerators] | None = None, lock: Path = LOCK) -> Finding:
    """Check that no other process has a TPU or libtpu's lock file open. GPUs may be shared by processes.

    Args:
        installed: accelerators in the machine; default: all accelerators that have a device file.
        lock: the file that libtpu locks.
    """
    installed = find_accelerators() if installed is None else installed
    if not installed:
        return Finding("skipped", "this machine has no accelerator")
    has_tpu, locked = any(accelerator.kind == "TPU" for accelerator in installed), lock.exists()
    files = [file for accelerator in installed for file in accelerator.files] + [lock] * (has_tpu and locked)
    holders, unreadable = find_holders(files)
    figure = ", ".join(
        f"{len(accelerator.files)} {accelerator.kind}{'s' if len(accelerator.files) > 1 else ''}"
        for accelerator in installed
    )
    values = {
        "files": [str(file) for file in files],
        "held_by": {str(file): pids for file, pids in holders.items()},
        "processes_not_readable": unreadable,
    }
    used = "; ".join(f"{file} is open in {', '.join(map(describe_process, pids))}" for file, pids in holders.items())
    if holders:
        return Finding("FAILED", used, values) if has_tpu else Finding("ok", f"{figure}; {used}: shared", values)
    if has_tpu and locked and not os.access(lock, os.W_OK):
        remedy = f"Run `sudo rm {lock}` when no process uses the TPU."
        return Finding("FAILED", f"{lock} belongs to another user, and libtpu cannot open it", values, remedy)
    rest = f" ({unreadable} processes of other users are not readable)" if unreadable else ""
    return Finding("ok", f"{figure}, not in use{rest}", values)


def describe_process(pid: int) -> str:
    """Return a process's ID with at most 40 characters of its command line."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    return f"process {pid} ({' '.join(words).strip()[:40] or 'unknown'})"


def find_holders(files: Iterable[Path]) -> tuple[dict[Path, list[int]], int]:
    """Find the processes that have any of the given files open. This works only on Linux.

    This process and its ancestors are omitted, because the check itself may have a file open.

    Returns:
        The IDs of the processes by file, and the number of processes that this user has no permission to read.
    """
    paths = {os.path.realpath(file): file for file in files}
    holders: dict[Path, list[int]] = {}
    unreadable, own_pids = 0, _own_pids()
    for folder in PROC.iterdir() if PROC.is_dir() else ():
        if not folder.name.isdecimal() or int(folder.name) in own_pids:
            continue
        try:
            opened = {target for link in (folder / "fd").iterdir() if (target := _link_target(link))}
        except PermissionError:
            unreadable += 1
            continue
        except OSError:  # the process has ended
            continue
        for name in opened & paths.keys():
            holders.setdefault(paths[name], []).append(int(folder.name))
    return holders, unreadable


def _own_pids() -> set[int]:
    pids, pid = set(), os.getpid()
    while pid > 1 and pid not in pids:
        pids.add(pid)
        try:
            # The command name in brackets may itself contain brackets. The parent's ID follows the last bracket.
            pid = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return pids


def _link_target(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None
