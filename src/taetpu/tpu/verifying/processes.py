"""Which processes of this machine have a file open, or locked, as far as this user may know. Linux; reads /proc."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


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
