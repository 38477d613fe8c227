"""The end of a fake cloud that does not come by itself: of the command that it runs, its machines and its folder.

Whatever belongs to a fake has its address in its environment, or is a machine's sshd, or descends from one of these.
Linux alone tells.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taetpu.cloud.clients import FAKE
from taetpu.cloud.fakes.hosts import below, parents, send
from taetpu.cloud.vm.machine.processes import MARK, find

GRACE = 5.0
"""Seconds that a command has to end after SIGTERM."""


def belonging(address: str, folder: Path, machines: bool = True) -> list[int]:
    """Every process that lives of the command that a fake runs and, if they are wanted, of its machines; not this one.

    An sshd and its sessions write over their environment: it is known by where its settings are, they by it.
    """
    tree = parents()
    alive = {pid: process.environment for pid in tree if (process := find(pid))}
    served = {pid for pid in alive if _is_sshd(pid, folder)}
    found = below({pid for pid, environment in alive.items() if environment.get(FAKE) == address} | served, tree)
    if not machines:
        found -= below({pid for pid in found if MARK in alive.get(pid, {})} | served, tree)
    return sorted(found & alive.keys() - {os.getpid()})


def _is_sshd(pid: int, folder: Path) -> bool:
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False
    return b"sshd" in words.split(b" ")[0] and os.fsencode(folder) in words


def end_command(address: str, folder: Path) -> None:
    """End what is no machine's: asked first, and killed after a while."""
    for pid in belonging(address, folder, machines=False):
        send(pid, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while alive := belonging(address, folder, machines=False):
        if time.monotonic() > until:
            _kill(alive)
        time.sleep(0.02)


def end(address: str, folder: Path) -> None:
    """End everything, and remove the folder."""
    end_command(address, folder)
    for pid in belonging(address, folder):
        send(pid, signal.SIGSTOP)  # no guard gets to see that others are killed
    while alive := belonging(address, folder):
        _kill(alive)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        send(pid, signal.SIGKILL)


@contextmanager
def watched(address: str, folder: Path) -> Iterator[None]:
    """Should this process be killed inside, another one ends what belongs to the fake."""
    words = [sys.executable, "-m", "taetpu.cloud.fakes.ending", address, str(folder)]
    environment = {name: text for name, text in os.environ.items() if name != FAKE}
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
    ) as watcher:
        try:
            yield
        finally:
            watcher.communicate(b"ended well")


@contextmanager
def signalled() -> Iterator[None]:
    """SIGTERM, and SIGHUP unless it is ignored as under nohup, end the block by `SystemExit`, once."""
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]

    def heard(number: int, frame: object) -> None:
        for one in numbers:
            signal.signal(one, signal.SIG_IGN)  # what is being put away now is put away
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(address: str, folder: str) -> None:
    """Wait until the fake has ended, and put away after it unless it has done so itself."""
    if not sys.stdin.buffer.read():
        end(address, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
