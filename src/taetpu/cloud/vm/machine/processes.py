"""Who is at work on this machine, by /proc: jobs, logins and what they started, and whoever holds the TPU."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = os.environ.get("TAETPU_VM_ROOT", "")
"""Where the fakes keep a machine's own devices and files; "" on a real one, which is its own."""
DEVICES = (f"{ROOT}/dev/vfio/*", f"{ROOT}/dev/accel*")
LOCK = f"{ROOT}/tmp/libtpu_lockfile"
MARK = "TAETPU_VM"
"""Set by the fakes in every process of a machine, of which there are several under one kernel."""
SHELLS = ("bash", "sh", "dash", "zsh", "fish", "tmux: server", "screen", "sudo", "su", "sshd", "login")


@dataclass(frozen=True)
class Process:
    """A process that lives: no zombie.

    Attributes:
        started: in clock ticks since boot; with the pid it names a process for ever.
        ticks: of processor time that it has used.
    """

    pid: int
    name: str
    started: int
    ticks: int
    environment: dict[str, str]

    @property
    def job(self) -> str:
        """The job that it belongs to; "" if it belongs to none."""
        return self.environment.get("TAETPU_JOB", "")

    @property
    def login(self) -> str:
        """The connection that it was started through: addresses and ports of both ends; "" if through none."""
        return self.environment.get("SSH_CONNECTION", "")


def find(pid: int) -> Process | None:
    """A process by its number; None if it does not live."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
        fields = rest.split()
        if fields[0] in "ZX":
            return None
        return Process(pid, name, int(fields[19]), int(fields[11]) + int(fields[12]), _environment(pid))
    except (OSError, IndexError):
        return None


def everyone() -> Iterator[Process]:
    """Every process of this machine whose environment may be read."""
    own = os.environ.get(MARK)
    for name in os.listdir("/proc"):
        process = find(int(name)) if name.isdigit() else None
        if process and (own is None or process.environment.get(MARK) == own):
            yield process


def holders(patterns: tuple[str, ...] = (*DEVICES, LOCK)) -> list[tuple[int, str, str]]:
    """Who has the TPU's devices or libtpu's lock open: pid, name, path.

    Raises:
        PermissionError: of some process nothing can be told.
    """
    wanted = {os.path.realpath(path) for pattern in patterns for path in glob.glob(pattern)}
    if not wanted:
        return []
    own = MARK in os.environ
    pids = [p.pid for p in everyone()] if own else [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    return [(pid, _name(pid), path) for pid in pids for path in sorted(wanted & _open(pid))]


def chips() -> int:
    """TPU chips of this machine, by their devices."""
    return sum(os.path.basename(path) != "vfio" for pattern in DEVICES for path in glob.glob(pattern))


def is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _open(pid: int) -> set[str]:
    """Paths that a process has open.

    Raises:
        PermissionError: it is somebody else's.
    """
    paths = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                paths.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except FileNotFoundError:
                continue
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended
    return paths


def _name(pid: int) -> str:
    process = find(pid)
    return process.name if process else ""


def _environment(pid: int) -> dict[str, str]:
    """As the process was started with; empty if it is somebody else's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
