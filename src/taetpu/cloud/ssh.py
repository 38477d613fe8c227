"""Run commands on a machine's hosts with OpenSSH and an ssh_config that is generated for each machine.

Hosts without an external address are reached through Identity-Aware Proxy, with `gcloud compute start-iap-tunnel` as
ProxyCommand. The user's own ssh configuration and keys are not used.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taetpu.cloud.gcloud import CloudError, Command, command, program
from taetpu.cloud.machine_api import Machine, Worker, add_instance_names
from taetpu.cloud.port_forwarding import Forward, check_free
from taetpu.core import atomic_files
from taetpu.core.errors import UserError
from taetpu.core.script_text import check_script_text

NO_CONNECTION = 255
"""Exit code of ssh if the connection failed or was lost."""
KEEP_255 = "{command}; code=$?; [ $code -ne 255 ] || code=254; exit $code"

HOST = """\
Host w{number}
  HostName {address}
  User {user}
  HostKeyAlias {alias}
  ControlPath {sockets}/{key}-{number}
{proxy}
"""
ALL_HOSTS = """\
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
  ConnectTimeout 20
  ServerAliveInterval 15
  ServerAliveCountMax 3
  ControlMaster auto
  ControlPersist 60
  LogLevel ERROR
"""


class Unreachable(CloudError):
    """A host does not accept connections, for example because it is starting, deleted or behind a firewall."""

    exit_code = 3


class RemoteFailed(CloudError):
    """A command on a host failed."""

    exit_code = 3


@dataclass(frozen=True)
class CommandResult:
    """The result of a command on a host: exit code (None if the command exceeded the time limit) and output."""

    worker: int
    code: int | None
    out: str = ""
    err: str = ""


@dataclass(frozen=True)
class Hosts:
    """The hosts of a machine, numbered from 0. `folder` contains their ssh_config and host keys."""

    name: str
    workers: tuple[Worker, ...]
    folder: Path

    @classmethod
    def configure(cls, machine: Machine, user: str, project: str) -> "Hosts":
        """Write the ssh_config of a machine and return its hosts.

        Host keys of an earlier machine with the same name are deleted.

        Raises:
            Unreachable: if the API does not yet report the hosts, or the instance names that tunnels need.
        """
        machine = add_instance_names(machine)
        if not machine.workers or not all(worker.external or worker.instance for worker in machine.workers):
            problem = f"{machine.name} in {machine.zone} has not reported its hosts yet ({machine.detail})"
            remedy = "Run the command again in a minute; `taetpu tpu list` shows the machine's state."
            raise Unreachable(problem, remedy=remedy)
        folder = _folder(project, machine.name)
        record: dict[str, Any] = {"name": machine.name, "zone": machine.zone, "created": machine.created}
        record["workers"] = [asdict(worker) for worker in machine.workers]
        if _read_record(folder) not in (None, record):
            forget(machine.name, project)
        with atomic_files.explain_os_error("write", folder):
            atomic_files.make_folder(folder)
            atomic_files.write_file(folder / "config", _config(folder, machine, user, project).encode(), replace=True)
            atomic_files.write_file(folder / "machine.json", json.dumps(record, indent=2).encode(), replace=True)
        return cls(machine.name, machine.workers, folder)

    @classmethod
    def load(cls, name: str, project: str) -> "Hosts | None":
        """Return the hosts that `configure` wrote for a machine, or None if it wrote none. Does not call Google."""
        folder = _folder(project, name)
        record = _read_record(folder)
        return cls(name, tuple(Worker(**worker) for worker in record["workers"]), folder) if record else None

    @property
    def all(self) -> range:
        """The numbers of all workers."""
        return range(len(self.workers))

    def describe(self, worker: int) -> str:
        """Return the name of a host for messages."""
        return f"worker {worker} of {self.name}" if len(self.workers) > 1 else self.name

    def check_worker(self, worker: int) -> int:
        """Return a worker's number if it exists.

        Raises:
            UserError: if the machine has no such worker.
        """
        if worker in self.all:
            return worker
        raise UserError(f"{self.name} has no worker {worker}", remedy=f"Use 0 to {len(self.workers) - 1}, or all.")

    def ssh(self, worker: int, *options: str) -> list[str]:
        """Return the ssh command for a host. A remote command may be appended to it."""
        return [program("ssh"), "-F", str(self.folder / "config"), *options, f"w{worker}"]

    def run(self, worker: int, words: Sequence[str], *, stdin: str = "", limit: float | None = None) -> CommandResult:
        """Run a program on a host. The arguments are quoted, so that the remote shell does not expand them.

        Args:
            worker: the host's number.
            words: program and arguments.
            stdin: standard input of the program.
            limit: seconds to wait for the program. A program that takes longer is not ended.
        """
        remote = KEEP_255.format(command=shlex.join(words))
        try:
            done = subprocess.run(
                [*self.ssh(worker), remote], input=stdin, capture_output=True, timeout=limit, check=False,
                encoding="utf-8", errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return CommandResult(worker, None)
        return CommandResult(worker, done.returncode, done.stdout, done.stderr)

    def run_all(
        self,
        words: Sequence[str],
        *,
        stdin: Callable[[int], str] = lambda worker: "",
        limit: float | None = None,
        workers: Sequence[int] | None = None,
    ) -> list[CommandResult]:
        """Run a program in parallel on all hosts or on the hosts in `workers`; see `run`."""
        chosen = list(self.all if workers is None else workers)
        with ThreadPoolExecutor(max(1, len(chosen))) as threads:
            return list(threads.map(lambda worker: self.run(worker, words, stdin=stdin(worker), limit=limit), chosen))

    def require_success(self, ended: Sequence[CommandResult], action: str) -> list[str]:
        """Return the outputs of commands if all succeeded.

        Args:
            ended: the results of the commands.
            action: verb phrase for messages that says what the commands do, such as "start the job".

        Raises:
            Unreachable: if a host did not answer.
            RemoteFailed: if a command failed.
        """
        failed = [result for result in ended if result.code != 0]
        if failed:
            error = self.failure(failed[0], action)
            if len(failed) > 1:
                error.problem += f" (as did workers {', '.join(str(result.worker) for result in failed[1:])})"
            raise error
        return [result.out for result in ended]

    def failure(self, ended: CommandResult, action: str) -> CloudError:
        """Return the error for a command that failed on a host."""
        host, message = self.describe(ended.worker), " ".join(ended.err.split())[-300:]
        if ended.code is None:
            return Unreachable(f"{host} did not {action} in time", remedy="Check the machine with `taetpu tpu status`.")
        if ended.code == NO_CONNECTION and "HOST IDENTIFICATION HAS CHANGED" in message:
            remedy = "If the machine was created again, run `taetpu tpu up`. Otherwise, do not connect."
            return CloudError(f"the host key of {host} has changed", remedy=remedy)
        if ended.code == NO_CONNECTION and "Permission denied" in message:
            remedy = "Use the computer that created the machine, or run `taetpu tpu down` and `taetpu tpu up`."
            return CloudError(f"{host} rejects the key {_key()}", remedy=remedy)
        if ended.code == NO_CONNECTION:
            remedy = "Check the machine with `taetpu tpu status`, and IAP and the firewall with `taetpu doctor`."
            return Unreachable(f"no connection to {host}: {message or 'ssh printed nothing'}", remedy=remedy)
        remedy = None
        if "No space left on device" in message:
            remedy = "Delete old jobs with `taetpu tpu clean`, or other files with `taetpu tpu ssh`."
        return RemoteFailed(f"{host} could not {action} (exit code {ended.code}): {message}", remedy=remedy)

    def enter(self, worker: int, words: Sequence[str] = (), forwards: Sequence[Forward] = ()) -> int:
        """Open a shell on a host or run a command there, in this terminal, and return the exit code.

        Args:
            worker: the host's number.
            words: program and arguments; a shell if empty.
            forwards: ports of this computer that lead to ports of the host until the command ends.

        Raises:
            UserError: if the machine has no such worker, or a local port is in use.
        """
        options = ["-t"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        self.check_worker(worker)
        if forwards:
            check_free(forwards)
            # A shared connection would keep the ports after the command.
            options += ["-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes"]
            options += [word for forward in forwards for word in ("-L", forward.option)]
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the remote program
        try:
            return subprocess.call([*self.ssh(worker, *options), *([shlex.join(words)] if words else [])])
        finally:
            signal.signal(signal.SIGINT, handler)


def forget(name: str, project: str) -> None:
    """Close the connections to a machine, and delete the record of its hosts and their keys."""
    folder = _folder(project, name)
    if hosts := Hosts.load(name, project):
        for worker in hosts.all:
            subprocess.run([*hosts.ssh(worker, "-O", "exit")], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def public_key() -> str:
    """Return the public key for all machines, as one line.

    The key pair is created on first use and has no passphrase.

    Raises:
        UserError: if ssh-keygen is not installed, or the state folder cannot be written.
    """
    return _key().with_suffix(".pub").read_text(encoding="utf-8").strip()


def state_folder() -> Path:
    """Return the folder for keys, ssh configurations and startup scripts: `$XDG_STATE_HOME/taetpu`."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    check_script_text(str(base), "folder", ("XDG_STATE_HOME",))
    if '"' in str(base):
        problem = f"{str(base)!r} contains a double quote, which ssh_config cannot represent"
        raise UserError(problem, path=("XDG_STATE_HOME",), remedy="Set XDG_STATE_HOME to a folder without one.")
    if "," in str(base):
        problem = f"{str(base)!r} contains a comma, which separates files in gcloud's lists"
        raise UserError(problem, path=("XDG_STATE_HOME",), remedy="Set XDG_STATE_HOME to a folder without a comma.")
    return Path(base) / "taetpu"


def _key() -> Path:
    path = state_folder() / "ssh" / "id_ed25519"
    with atomic_files.explain_os_error("write", path):
        atomic_files.make_folder(path.parent)
        path.parent.chmod(0o700)
        with (path.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.with_suffix(".pub").exists():
                path.unlink(missing_ok=True)  # a killed command may have left a private key
                words = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "taetpu", "-f", str(path)]
                subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return path


def _config(folder: Path, machine: Machine, user: str, project: str) -> str:
    hosts = []
    for number, worker in enumerate(machine.workers):
        line = tunnel_command(worker, machine.zone, project).shown.replace("%", "%%")
        tunnel = "" if worker.external else f"  ProxyCommand {line}"
        hosts.append(
            HOST.format(
                number=number, address=worker.external or worker.internal, user=user, proxy=tunnel,
                alias=f"taetpu-{machine.name}-w{number}", sockets=_sockets(),
                key=hashlib.sha256(str(folder).encode()).hexdigest()[:12],
            )
        )  # fmt: skip
    common = ALL_HOSTS.format(identity=_quoted(_key()), known_hosts=_quoted(folder / "known_hosts"))
    return "\n".join([*hosts, common])


def tunnel_command(worker: Worker, zone: str, project: str) -> Command:
    """Return the command that connects its standard input and output to a host's port 22, through IAP."""
    options: Mapping[str, object] = {"listen_on_stdin": True, "zone": zone, "project": project, "verbosity": "warning"}
    return command("compute", "start-iap-tunnel", worker.instance, "22", **options)


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("%", "%%") + '"'


def _sockets() -> Path:
    """Return a private folder with a short path, because macOS limits a socket's path to 104 bytes."""
    path = Path(f"/tmp/taetpu-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or path.is_symlink():
        remedy = "Delete the folder; taetpu creates it again with the right permissions."
        raise UserError("the folder of ssh connections is accessible to other users", file=path, remedy=remedy)
    return path


def _folder(project: str, name: str) -> Path:
    return state_folder() / "ssh" / (project or "no-project") / name


def _read_record(folder: Path) -> dict | None:
    try:
        return json.loads((folder / "machine.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
