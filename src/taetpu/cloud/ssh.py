"""The hosts of a TPU by OpenSSH, with a generated ssh_config for each stack, see `ssh_config`."""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from taetpu.cloud.backends.base import Machine, Worker
from taetpu.cloud.errors import CloudError
from taetpu.cloud.settings import Settings
from taetpu.cloud.ssh_config import program, text
from taetpu.cloud.ssh_errors import Done, refusal
from taetpu.cloud.state import folder as state_folder
from taetpu.core import disk
from taetpu.core.errors import UserError

# The shell of the other side gives the command's own code; 255 is ssh's, and means that there was no connection.
KEEP_255 = "{command}; code=$?; [ $code -ne 255 ] || code=254; exit $code"


@dataclass(frozen=True)
class Slice:
    """All hosts of a machine, numbered from 0 in the order of its workers.

    Attributes:
        stack: its name.
        folder: of its ssh_config, its host keys and what is remembered of it.
    """

    stack: str
    workers: tuple[Worker, ...]
    folder: Path

    @classmethod
    def of(cls, machine: Machine, user: str, settings: Settings) -> "Slice":
        """The hosts of a machine. If it is another than was last known by this name, its host keys are forgotten."""
        folder = _folder(settings.project, machine.name)
        known = {
            "stack": machine.name, "zone": machine.zone, "created": machine.created, "user": user,
            "workers": [asdict(worker) for worker in machine.workers],
        }  # fmt: skip
        if _remembered(folder) not in (None, known):
            _purge(folder)
        if not machine.workers:
            problem = f"{machine.name} in {machine.zone} tells of no host that could be logged into"
            raise CloudError(problem, remedy="`taetpu tpu list` shows its state; wait until it is ready")
        with disk.explained("write", folder):
            disk.make_folder(folder)
            disk.write_file(folder / "config", text(folder, machine, user, settings).encode(), replace=True)
            disk.write_file(folder / "machine.json", json.dumps(known, indent=2).encode(), replace=True)
        return cls(machine.name, machine.workers, folder)

    @classmethod
    def known(cls, stack: str, settings: Settings) -> "Slice | None":
        """The hosts of a stack as they were last seen, without asking any API; None if they were not."""
        folder = _folder(settings.project, stack)
        told = _remembered(folder)
        if told is None or not (folder / "config").exists():
            return None
        return cls(stack, tuple(Worker(**one) for one in told["workers"]), folder)

    @property
    def all(self) -> range:
        return range(len(self.workers))

    def place(self, worker: int) -> str:
        """A host in words."""
        return f"worker {worker} of {self.stack}" if len(self.workers) > 1 else self.stack

    def ssh(self, worker: int, *options: str) -> list[str]:
        """The command that logs into a host; what follows it is run there by the login's shell."""
        return [program("ssh"), "-F", str(self.folder / "config"), *options, f"w{worker}"]

    def run(
        self, worker: int, command: Sequence[str], *, input: str = "", timeout: float | None = None, fresh: bool = False
    ) -> Done:
        """Run a program on one host and wait for it. No shell sees its arguments; 255 as its own code is told as 254.

        Args:
            input: for its standard input.
            timeout: seconds; the program itself goes on where it is.
            fresh: make a connection of its own, so that everything said about it is heard.
        """
        options = ["-o", "ControlPath=none", "-o", "ControlPersist=no"] if fresh else []
        remote = KEEP_255.format(command=shlex.join(command))
        place = self.place(worker)
        try:
            ended = subprocess.run(
                [*self.ssh(worker, *options), remote], input=input.encode(), capture_output=True, timeout=timeout,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            out, err = (text or b"" for text in (late.stdout, late.stderr))
            return Done(worker, place, None, out.decode(errors="replace"), err.decode(errors="replace"))
        out, err = ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")
        return Done(worker, place, ended.returncode, out, err)

    def everywhere(
        self,
        command: Sequence[str],
        *,
        input: str | Callable[[int], str] = "",
        timeout: float | None = None,
        workers: Sequence[int] | None = None,
    ) -> list[Done]:
        """Run a program on all hosts (or some) side by side, see `run`; how it ended on each, in their order."""
        chosen = list(self.all if workers is None else workers)

        def one(worker: int) -> Done:
            return self.run(worker, command, input=input(worker) if callable(input) else input, timeout=timeout)

        with ThreadPoolExecutor(max(1, len(chosen))) as threads:
            return list(threads.map(one, chosen))

    def check(self, worker: int) -> int:
        """A worker's number.

        Raises:
            UserError: there is none of that number.
        """
        if worker in self.all:
            return worker
        last = len(self.workers) - 1
        raise UserError(f"{self.stack} has no worker {worker}", remedy=f"from 0 to {last}" if last else "only 0")

    def enter(self, worker: int, options: Sequence[str] = (), command: Sequence[str] = ()) -> int:
        """Be logged into a host in this terminal until that ends; ssh's exit code, which is 255 also where there was no
        connection.
        """
        tty = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        words = [*self.ssh(self.check(worker), *tty, *options), *([shlex.join(command)] if command else [])]
        with subprocess.Popen(words) as process:
            # Keys are for the other side. What ends this process ends ssh, which then lets go of the terminal.
            before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
            for number in (signal.SIGTERM, signal.SIGHUP):
                before[number] = signal.signal(number, lambda number, frame: process.send_signal(number))
            try:
                code = process.wait()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """End the connections that are kept."""
        for worker in self.all:
            leave = [*self.ssh(worker, "-O", "exit")]
            subprocess.run(leave, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def forget(stack: str) -> None:
    """Nothing of a stack's hosts is remembered any more: keys, connections, addresses."""
    for folder in (state_folder() / "ssh").glob(f"*/{stack}"):
        _purge(folder)
        with disk.explained("delete", folder):
            disk.remove(folder)


def together(ended: Sequence[Done], doing: str) -> list[Done]:
    """What ended well on every host.

    Raises:
        CloudError: of the first host where it did not; the others that failed are named.
    """
    problems: list[tuple[Done, CloudError]] = [(one, found) for one in ended if (found := refusal(one, doing))]
    if not problems:
        return list(ended)
    others = ", ".join(str(one.worker) for one, _ in problems[1:])
    first = problems[0][1]
    if others:
        first.problem += f" (workers {others} failed too)"
    raise first


def _folder(project: str, stack: str) -> Path:
    return state_folder() / "ssh" / (project or "no-project") / stack


def _remembered(folder: Path) -> dict | None:
    try:
        return json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _purge(folder: Path) -> None:
    """Forget the host keys of a stack and end its connections: they are an earlier machine's."""
    if told := _remembered(folder):
        Slice("", tuple(Worker(**one) for one in told["workers"]), folder).close()
    (folder / "known_hosts").unlink(missing_ok=True)
