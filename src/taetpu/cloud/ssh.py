"""The hosts of a TPU by OpenSSH: one key for all that taetpu makes, and for each stack a generated ssh_config with host
keys and connections of its own. Nothing of the user's own ssh is read for it or changed.

A host without an address of its own is reached by its instance's name through Google's Identity-Aware Proxy.
"""

import fcntl
import getpass
import hashlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from taetpu.cloud.backends.base import Machine, Worker
from taetpu.cloud.clients import fake_address
from taetpu.cloud.errors import CloudError
from taetpu.cloud.settings import Settings
from taetpu.cloud.ssh_errors import Done, refusal
from taetpu.cloud.state import folder as state_folder
from taetpu.core import disk
from taetpu.core.errors import UserError

CONNECT = 20
"""Seconds that a connection may take to be made."""
KEPT = 60
"""Seconds for which a connection that nobody uses is kept for the next command."""

CONFIG = """\
Host w{number}
  HostName {address}
  Port {port}
  User {user}
  HostKeyAlias {alias}
  ControlPath {sockets}/{key}-{number}
{proxy}
"""
COMMON = """\
Host *
  IdentityFile {identity}
  IdentitiesOnly yes
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking accept-new
  UpdateHostKeys no
  PasswordAuthentication no
  BatchMode yes
  ForwardAgent no
  ConnectTimeout {connect}
  ServerAliveInterval 15
  ServerAliveCountMax 3
  ControlMaster auto
  ControlPersist {kept}
  LogLevel ERROR
"""
# The shell of the other side gives the command's own code; 255 is ssh's, and means that there was no connection.
KEEP_255 = "{command}; code=$?; [ $code -ne 255 ] || code=254; exit $code"


def public_key() -> str:
    """The public key that machines are made with, one line; the pair is made when first asked for.

    Raises:
        UserError: ssh is not installed, or the state folder cannot be written.
    """
    key = _key()
    return key.with_suffix(".pub").read_text(encoding="utf-8").strip()


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
            config = _config(folder, machine, user, settings)
            disk.write_file(folder / "config", config.encode(), replace=True)
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
        return [_program("ssh"), "-F", str(self.folder / "config"), *options, f"w{worker}"]

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

    def enter(self, worker: int, options: Sequence[str] = (), command: Sequence[str] = ()) -> None:
        """Become an ssh that is logged into a host; never returns."""
        tty = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        words = [*self.ssh(self.check(worker), *tty, *options), *([shlex.join(command)] if command else [])]
        os.execv(words[0], words)

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


def _key() -> Path:
    """The private key, made once; several commands may ask for it at the same moment."""
    path = state_folder() / "ssh" / "id_ed25519"
    with disk.explained("write", path):
        disk.make_folder(path.parent)
        path.parent.chmod(0o700)
        with (path.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.with_suffix(".pub").exists():
                path.unlink(missing_ok=True)  # a command was killed between the two files
                keygen = [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "taetpu", "-f", str(path)]
                subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
    return path


def _config(folder: Path, machine: Machine, user: str, settings: Settings) -> str:
    hosts = []
    for number, worker in enumerate(machine.workers):
        direct = settings.external_ip or not worker.instance
        proxy = "" if direct else f"  ProxyCommand {_tunnel(worker.instance, machine.zone, settings.project)}"
        hosts.append(
            CONFIG.format(
                number=number,
                address=worker.address if direct else worker.instance,
                port=worker.port if direct else 22,
                user=getpass.getuser() if fake_address() else user,  # see fakes.hosts
                alias=f"taetpu-{machine.name}-w{number}",
                sockets=_sockets(),
                key=hashlib.sha256(str(folder).encode()).hexdigest()[:12],
                proxy=proxy,
            )
        )
    known_hosts = _quoted(folder / "known_hosts")
    common = COMMON.format(identity=_quoted(_key()), known_hosts=known_hosts, connect=CONNECT, kept=KEPT)
    return "\n".join([*hosts, common])


def _tunnel(instance: str, zone: str, project: str) -> str:
    """The command whose standard input and output lead to port 22 of an instance."""
    if fake_address():
        words = [sys.executable, "-m", "taetpu.cloud.fakes.tunnel", instance]
    else:
        words = ["gcloud", "compute", "start-iap-tunnel", instance, "22", "--listen-on-stdin"]
        words += [f"--zone={zone}", f"--project={project}", "--verbosity=warning"]
    return shlex.join(words).replace("%", "%%")


def _quoted(path: Path) -> str:
    """A path as an ssh_config has it."""
    return '"' + str(path).replace("%", "%%") + '"'


def _sockets() -> Path:
    """The folder of connections that are kept: a socket's path may have 108 bytes (104 on macOS), so it must be short.

    Raises:
        UserError: somebody else has made it.
    """
    path = Path(f"/tmp/taetpu-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UserError("this folder is not yours alone, and ssh connections are kept there", file=path)
    return path


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


def _program(name: str) -> str:
    """Where a program is.

    Raises:
        UserError: it is not installed.
    """
    if found := shutil.which(name):
        return found
    raise UserError(f"{name} is not installed here", remedy="install OpenSSH's client and rsync")
