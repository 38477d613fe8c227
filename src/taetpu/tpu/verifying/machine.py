"""What is installed, and who has the accelerator: looked at without touching it. Nothing is ever deleted or ended."""

import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from taetpu.core.devices import Accelerators, accelerators
from taetpu.tpu.verifying.checks import Finding

LOCK = Path("/tmp/libtpu_lockfile")
"""What libtpu locks while it has the machine's TPU, or compiles for one."""
PROC = Path("/proc")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
PACKAGES = ("taetpu", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "torch", "torch-xla")
NEEDED = {  # by kind of accelerator: one of these packages, and how to get it
    "TPU": (("libtpu",), "pip install 'taetpu[tpu]'"),
    "NVIDIA GPU": (("jax-cuda12-plugin", "jax-cuda13-plugin"), "pip install 'taetpu[cuda]'"),
}


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def driver(file: Path = NVIDIA_DRIVER) -> str | None:
    """The NVIDIA driver's version, where there is one."""
    try:
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", file.read_text())
    except OSError:
        return None
    return found.group(1) if found else None


def versions(there: Sequence[Accelerators] | None = None) -> Finding:
    """What is installed, and whether it is what the accelerators of this machine need."""
    there = accelerators() if there is None else there
    found = {name: number for name in PACKAGES if (number := installed(name))}
    values: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform(), **found}
    if number := driver():
        values["nvidia_driver"] = number
    for kind in there:
        packages, remedy = NEEDED.get(kind.kind, ((), ""))
        if packages and not any(name in found for name in packages):
            missing = " or ".join(packages)
            return Finding("FAILED", f"a {kind.kind} is here, and {missing} is not installed", values, remedy)
    if "jax" in found and _series(found["jax"]) != _series(found.get("jaxlib", "")):
        figure = f"jax {found['jax']} and jaxlib {found.get('jaxlib')} do not belong together"
        return Finding("FAILED", figure, values, f"pip install jax=={found['jax']} jaxlib=={found['jax']}")
    shown = ("python", "jax", "libtpu", "nvidia_driver")
    told = ", ".join(f"{name.replace('_', ' ')} {values[name]}" for name in shown if name in values)
    return Finding("ok", told, values)


def _series(number: str) -> tuple[str, ...]:
    return tuple(number.split(".")[:2])


def lock(file: Path = LOCK) -> Finding:
    """Whether libtpu's lock is free for this user to take."""
    if not file.exists():
        return Finding("ok", "nobody holds libtpu's lock", {"file": str(file), "exists": False})
    opened, _ = holders([file])
    by = {pid: named(pid) for pid in locking(file)} or {one.pid: one for one in opened.get(file, [])}
    values = {"file": str(file), "exists": True, "held_by": [one.pid for one in by.values()]}
    if by:
        who = ", ".join(map(str, by.values()))
        return Finding("FAILED", f"{file} is held by {who}", values, "wait for that process, or end it if it is yours")
    if not _opens(file):
        figure = f"{file} was left by another user, and libtpu may not open it"
        return Finding("FAILED", figure, values, f"sudo rm {file}, once nobody uses the TPU")
    return Finding("ok", f"{file} was left behind, held by nobody: harmless", values)


def _opens(file: Path) -> bool:
    """Whether it opens as libtpu would open it; it is there already, and stays as it is."""
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT))
    except OSError:
        return False
    return True


def busy(there: Sequence[Accelerators] | None = None) -> Finding:
    """Whether other processes have the accelerators open."""
    there = accelerators() if there is None else there
    if not there:
        return Finding("skipped", "this machine has no accelerator")
    files = [file for kind in there for file in kind.files]
    by, closed = holders(files)
    told = ", ".join(f"{len(kind.files)} {kind.kind}{'s' if len(kind.files) > 1 else ''}" for kind in there)
    values = {
        "files": [str(file) for file in files],
        "held_by": {str(file): [one.pid for one in found] for file, found in by.items()},
        "processes_not_readable": closed,
    }
    unread = f" ({closed} processes of other users could not be looked into)" if closed else ""
    if not by:
        return Finding("ok", f"{told}, in nobody's use{unread}", values)
    who = "; ".join(f"{file} is open in {', '.join(map(str, found))}" for file, found in by.items())
    if any(file in by for kind in there if kind.kind == "TPU" for file in kind.files):
        return Finding("FAILED", who, values)
    return Finding("ok", f"{told}; {who}: a GPU can be shared", values)


@dataclass(frozen=True)
class Holder:
    """A process that holds a file."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def own() -> set[int]:
    """This process and its parents: what they hold is in nobody's way."""
    found, pid = set(), os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            # The name in brackets may hold anything; the fields after the last bracket are numbers.
            pid = int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def holders(files: Iterable[Path]) -> tuple[dict[Path, list[Holder]], int]:
    """Who has these files open, without `own`; and how many processes could not be looked into."""
    wanted = {os.path.realpath(file): file for file in files}
    found: dict[Path, list[Holder]] = {}
    closed, mine = 0, own()
    for folder in PROC.iterdir() if PROC.is_dir() else ():
        if not folder.name.isdecimal() or int(folder.name) in mine:
            continue
        try:
            opened = {target for link in (folder / "fd").iterdir() if (target := _target(link))}
        except PermissionError:
            closed += 1
            continue
        except OSError:  # it has ended meanwhile
            continue
        for name in opened & wanted.keys():
            found.setdefault(wanted[name], []).append(named(int(folder.name)))
    return found, closed


def _target(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None


def locking(file: Path) -> list[int]:
    """The processes that hold a lock on a file; 0 stands for one of another container."""
    try:
        status = file.stat()
        text = (PROC / "locks").read_text()
    except OSError:
        return []
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = [line.split() for line in text.splitlines() if "->" not in line]  # an arrow: one that waits for it
    return sorted({max(0, int(row[4])) for row in rows if len(row) > 5 and row[5] == inode})


def named(pid: int) -> Holder:
    """A process by its number, with the beginning of its command."""
    if pid == 0:
        return Holder(pid, "in another container")
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    return Holder(pid, " ".join(words).strip()[:40] or "unknown")
