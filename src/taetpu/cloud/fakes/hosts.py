"""Virtual machines on this machine: each is an sshd of its own on 127.0.0.1, with a home folder, a metadata server,
and a startup-script that really runs. Needs OpenSSH's sshd and Linux; no privileges.

A login is the user's who runs the fakes: an sshd without privileges can log in nobody else.
"""

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from taetpu.cloud.fakes import simulated
from taetpu.cloud.fakes.metadata import Metadata
from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.world import Refused
from taetpu.cloud.vm.machine.processes import MARK, find
from taetpu.core.errors import UserError

PASSED_ON = ("PATH", "LANG", "TAETPU_FAKE_CLOUD", "TAETPU_FAKE_CLOUD_GRPC", "STORAGE_EMULATOR_HOST", "TMPDIR")
"""Of this process's environment, what a machine is given."""
QUICK = {"TAETPU_GUARD_SECONDS": "0.5"}
"""What makes a machine of the fakes quicker than a real one."""

SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey "{folder}/host_key"
PidFile none
AuthorizedKeysFile "{folder}/authorized_keys"
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
MaxSessions 100
PrintMotd no
ForceCommand "{folder}/login"
SetEnv SHLVL=1 "ZDOTDIR={folder}"
Subsystem sftp internal-sftp
"""
"""`SetEnv` keeps this user's own shell from reading his start-up files, which it does first where sshd runs it."""
LOGIN = """\
#!/bin/bash
. {folder}/environment
cd "$HOME"
[ -z "$SSH_ORIGINAL_COMMAND" ] || exec /bin/bash -c "$SSH_ORIGINAL_COMMAND"
exec /bin/bash --noprofile
"""
PYTHON = """\
#!/bin/sh
PYTHONPATH={simulated}${{PYTHONPATH:+:$PYTHONPATH}} exec {python} "$@"
"""


@dataclass
class Trouble:
    """What goes wrong when a machine boots.

    Attributes:
        refused: it does not boot at all.
        ssh: sshd comes up once this is set.
        script: runs instead of the startup-script.
        environment: variables of everything on the machine.
    """

    refused: Refused | None = None
    ssh: threading.Event | None = None
    script: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Vm:
    """A machine that has booted.

    Attributes:
        folder: what makes the machine; its home is `home`, its private files (a real one's /var/lib/taetpu) `private`.
        mark: in the environment of all its processes.
    """

    instance: str
    worker: int
    folder: Path
    port: int
    mark: str
    metadata: Metadata
    environment: dict[str, str]
    sshd: subprocess.Popen[bytes] | None = None
    script: subprocess.Popen[bytes] | None = None
    off: threading.Event = field(default_factory=threading.Event)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def private(self) -> Path:
        return self.folder / "private"


class LoopbackHosts:
    """The `Hosts` of a world: machines by the names of their instances.

    Args:
        folder: where their files are; what is left of an earlier machine of a name goes when it boots anew.
        zone: of machines whose metadata has none.
    """

    def __init__(self, folder: Path, zone: str = "us-central1-a", project: str = "fake-project"):
        self.folder, self.zone, self.project = folder, zone, project
        self.troubles: dict[str, Trouble] = {}
        """By instance, or "*"."""
        self.vms: dict[tuple[str, int], Vm] = {}
        self.lock = threading.RLock()
        self.closed = False
        for program in ("sshd", "ssh-keygen"):
            if not executable(program):
                remedy = "install OpenSSH's server, e.g. `apt-get install openssh-server`"
                raise UserError(f"machines of the fake cloud need {program}", remedy=remedy)

    def boot(self, instance: str, worker: int, metadata: Mapping[str, str]) -> tuple[str, int]:
        with self.lock:
            if self.closed:
                raise Refused(14, "the fake cloud is being put away")
            trouble = self.troubles.get(instance) or self.troubles.get("*") or Trouble()
            if trouble.refused:
                raise trouble.refused
            self.halt(instance, worker)
            vm = self._made(instance, worker, metadata, trouble)
            self.vms[instance, worker] = vm
        if trouble.ssh is None:
            listen(vm)
        else:
            threading.Thread(target=listen, args=(vm, trouble.ssh), daemon=True).start()
        _run_script(vm, metadata.get("startup-script", "") if trouble.script is None else trouble.script)
        return "127.0.0.1", vm.port

    def halt(self, instance: str, worker: int | None = None) -> None:
        with self.lock:
            for key in [key for key in self.vms if key[0] == instance and worker in (None, key[1])]:
                _cut(self.vms.pop(key))

    def close(self) -> None:
        """Halt every machine; none boots any more."""
        with self.lock:
            self.closed = True
        for instance, worker in list(self.vms):
            self.halt(instance, worker)

    def find(self, instance: str, worker: int | None = None) -> Vm | None:
        """A machine that is on."""
        return next((vm for (name, n), vm in self.vms.items() if name == instance and worker in (None, n)), None)

    def notice(self, instance: str) -> None:
        """Tell a machine that it is about to be preempted, as a spot machine is told half a minute before."""
        for (name, _), vm in list(self.vms.items()):
            if name == instance:
                vm.metadata.put("instance/preempted", "TRUE")

    def routes(self) -> list[Route]:
        """How `taetpu.cloud.fakes.tunnel` finds a machine."""

        def answer(request: Request) -> dict[str, str | int]:
            vm = self.find(request.parts["instance"])
            if vm is None:
                raise Refused(5, f"no machine {request.parts['instance']!r} is on")
            return {"address": "127.0.0.1", "port": vm.port}

        return [Route("hosts", "hosts.find", "GET", r"/fake/hosts/(?P<instance>[^/]+)", answer)]

    def _made(self, instance: str, worker: int, metadata: Mapping[str, str], trouble: Trouble) -> Vm:
        """The files of a machine."""
        folder = self.folder / f"{instance}-{worker}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "home").mkdir(parents=True)
        (folder / "private").mkdir()
        mark, zone = secrets.token_hex(8), metadata.get("zone", self.zone)
        server = Metadata(instance, zone, metadata.get("project", self.project), metadata)
        vm = Vm(instance, worker, folder, free_port(), mark, server, {})
        vm.environment |= {name: os.environ[name] for name in PASSED_ON if name in os.environ} | QUICK
        vm.environment |= {"HOME": str(vm.home), "TAETPU_VM_ROOT": str(vm.private), MARK: mark}
        vm.environment |= {"GCE_METADATA_HOST": server.address, "GCE_METADATA_IP": server.address}
        vm.environment |= {"TPU_WORKER_ID": str(worker)} | dict(trouble.environment)
        vm.environment["PATH"] = f"{folder / 'bin'}:{vm.environment.get('PATH', os.defpath)}"
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").symlink_to(Path(sys.executable).resolve())  # a machine's own, with no libraries
        lines = [f"export {name}={shlex.quote(text)}\n" for name, text in vm.environment.items()]
        (folder / "environment").write_text("".join(lines))
        (folder / "login").write_text(LOGIN.format(folder=shlex.quote(str(folder))))
        (folder / "login").chmod(0o755)
        keys = [line.partition(":")[2] for line in metadata.get("ssh-keys", "").splitlines() if line]
        (folder / "authorized_keys").write_text("".join(f"{key}\n" for key in keys))
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key")]
        subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
        _preinstalled(vm)
        simulated.install(vm.private, metadata)
        return vm


def executable(program: str) -> str | None:
    """Where a program is; sshd's folder is on the superuser's path alone."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/usr/libexec")


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses at the moment."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def _preinstalled(vm: Vm) -> None:
    """The environment that a real machine has to install: this interpreter, under the name of that one."""
    python = vm.home / ".taetpu" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    where = shlex.quote(str(vm.private / simulated.FOLDER))
    python.write_text(PYTHON.format(python=shlex.quote(sys.executable), simulated=where))
    python.chmod(0o755)
    (python.parent / "python3").symlink_to("python")
    (vm.home / ".taetpu" / "environment").write_text("preinstalled\n")


def listen(vm: Vm, begin: threading.Event | None = None) -> None:
    """Start the machine's sshd, and wait until it answers. Another port is taken where somebody was quicker."""
    if begin is not None:
        begin.wait()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where the superuser's sshd insists on separating privileges
    while not vm.off.is_set():
        (vm.folder / "sshd_config").write_text(SSHD.format(port=vm.port, folder=vm.folder))
        command = [executable("sshd") or "sshd", "-D", "-e", "-f", str(vm.folder / "sshd_config")]
        with (vm.folder / "sshd.log").open("ab") as log:
            vm.sshd = _start(vm, command, log)
        while vm.sshd.poll() is None:
            if _answers(vm.port):
                return
            time.sleep(0.005)
        said = (vm.folder / "sshd.log").read_text()
        if "in use" not in said:
            raise UserError(f"the sshd of {vm.instance} does not start: {said.strip()[-300:]}")
        vm.port = free_port()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _run_script(vm: Vm, script: str) -> None:
    path = vm.folder / "startup-script"
    path.write_text(script)
    with (vm.folder / "startup-script.log").open("wb") as log:
        vm.script = _start(vm, ["/bin/bash", str(path)], log)


def _start(vm: Vm, command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A process of the machine, in a session of its own."""
    started = subprocess.Popen(
        command, cwd=vm.home, env=vm.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True,
    )  # fmt: skip
    if vm.off.is_set():  # its power was cut meanwhile, and who did so may not have seen this one
        _kill(vm)
        started.wait()
    return started


def _cut(vm: Vm) -> None:
    """Cut the power: nothing of the machine gets to do anything more."""
    vm.off.set()
    _kill(vm)
    for child in (vm.sshd, vm.script):
        if child:
            child.wait()
    vm.metadata.close()


def _kill(vm: Vm) -> None:
    for pid in _processes(vm):
        send(pid, signal.SIGSTOP)  # sshd's first: nobody is told that another process was killed
    while alive := _processes(vm):
        for pid in alive:
            send(pid, signal.SIGKILL)
        for child in (vm.sshd, vm.script):
            if child:
                child.poll()
        time.sleep(0.002)


def send(pid: int, number: int) -> None:
    """A signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _processes(vm: Vm) -> list[int]:
    """Every process of a machine that lives: what descends from its sshd, whose sessions write over their environment,
    and then those with its mark.
    """
    tree = parents()
    alive = [process for process in map(find, tree) if process]
    roots = below({child.pid for child in (vm.sshd, vm.script) if child}, tree)
    first = [process.pid for process in alive if process.pid in roots]
    return first + [p.pid for p in alive if p.environment.get(MARK) == vm.mark and p.pid not in roots]


def below(roots: set[int], tree: Mapping[int, int]) -> set[int]:
    """Processes and all that descend from them, by every process's parent."""

    def descends(pid: int) -> bool:
        while pid > 1:
            if pid in roots:
                return True
            pid = tree.get(pid, 0)
        return False

    return set(filter(descends, tree))


def parents() -> dict[int, int]:
    """Every process and its parent."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError):
                fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
                found[int(name)] = int(fields[1])
    return found
