"""Machines of the fake cloud: each is an sshd on 127.0.0.1 with a home folder, whose startup script really runs.

They need OpenSSH's server and Linux, and no privileges. `systemctl` and `systemd-run` are stand-ins on the machine's
PATH; gcloud is the real one, directed to the fake. sshd without privileges can log in the user who runs it alone.
"""

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

MARK = "FAKE_MACHINE"
"""Variable that marks all processes of a machine."""
PASSED_ON = ("PATH", "LANG", "TMPDIR", "STORAGE_EMULATOR_HOST")
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
Subsystem sftp internal-sftp
"""
LOGIN = """\
#!/bin/bash
. {folder}/environment
cd "$HOME"
[ -z "$SSH_ORIGINAL_COMMAND" ] || exec /bin/bash -c "$SSH_ORIGINAL_COMMAND"
exec /bin/bash --noprofile
"""
PGREP = """\
pids=$(/usr/bin/pgrep "$@") # of all machines and of this computer: those of this machine are kept
code=1
for pid in $pids; do
  tr '\\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q bin/pgrep && continue
  while [ "${pid:-0}" -gt 1 ]; do
    if tr '\\0' '\\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "FAKE_MACHINE=$FAKE_MACHINE"; then code=0; break; fi
    pid=$(sed 's/.*) . //; s/ .*//' "/proc/$pid/stat" 2>/dev/null)
  done
done
exit $code
"""
SYSTEMD_RUN = """\
unset HOME PATH # as in a real unit
while [ "${1#--}" != "$1" ]; do
  case $1 in --setenv=*) export "${1#--setenv=}" ;; esac
  shift
done
setsid=/usr/bin/setsid
exec $setsid -f "$@" </dev/null >/dev/null 2>&1
"""
PROGRAMS = {
    "systemctl": "exit 3\n",  # the timer is not active
    "pgrep": PGREP,
    "systemd-run": SYSTEMD_RUN,
}


@dataclass
class Vm:
    """A running machine; `off` is set when its power is cut."""

    name: str
    worker: int
    folder: Path
    port: int
    mark: str
    environment: dict[str, str]
    sshd: subprocess.Popen[bytes] | None = None
    script: subprocess.Popen[bytes] | None = None
    off: threading.Event = field(default_factory=threading.Event)

    @property
    def home(self) -> Path:
        return self.folder / "home"


class LoopbackHosts:
    """The machines of a world, by name and worker.

    Attributes:
        environment: added to that of every machine.
        deaf: names of machines whose sshd does not start.
        booted: names of all machines that were started, in turn.
        programs: scripts on the PATH of every machine, by name.
    """

    def __init__(self, folder: Path):
        self.folder, self.environment, self.deaf = folder, dict[str, str](), set[str]()
        self.vms: dict[tuple[str, int], Vm] = {}
        self.booted: list[str] = []
        self.programs = dict(PROGRAMS)
        self.lock = threading.RLock()

    def boot(self, name: str, worker: int, metadata: Mapping[str, str]) -> tuple[str, int]:
        """Start a machine; return address and port of its sshd."""
        with self.lock:
            self.halt(name, worker)
            vm = self._make(name, worker, metadata)
            self.vms[name, worker] = vm
            self.booted.append(name)
        if name not in self.deaf:
            _listen(vm)
        path = vm.folder / "startup-script"
        path.write_text(metadata.get("startup-script", ""))
        vm.script = _start(vm, ["/bin/bash", str(path)])
        return "127.0.0.1", vm.port

    def reboot(self, name: str, worker: int = 0) -> None:
        """Restart a machine: keep its files, end its processes, run its startup script again."""
        vm = self.vms[name, worker]
        _cut(vm)
        vm.off.clear()
        _listen(vm)
        vm.script = _start(vm, ["/bin/bash", str(vm.folder / "startup-script")])

    def halt(self, name: str, worker: int | None = None) -> None:
        """Cut the power of a machine; it need not exist."""
        with self.lock:
            for key in [key for key in self.vms if key[0] == name and worker in (None, key[1])]:
                _cut(self.vms.pop(key))

    def close(self) -> None:
        """Halt all machines."""
        for name, _ in list(self.vms):
            self.halt(name)

    def _make(self, name: str, worker: int, metadata: Mapping[str, str]) -> Vm:
        folder = self.folder / f"{name}-{worker}"
        shutil.rmtree(folder, ignore_errors=True)
        for below in ("home", "state", "bin"):
            (folder / below).mkdir(parents=True)
        vm = Vm(name, worker, folder, free_port(), secrets.token_hex(8), {})
        rounding = [key for key in os.environ if key.startswith("OPENBLAS_")]  # as on this machine, so that bytes agree
        passed = {key: os.environ[key] for key in (*PASSED_ON, *rounding) if key in os.environ}
        vm.environment |= passed | self.environment
        vm.environment |= {"HOME": str(vm.home), "STATE_DIRECTORY": str(folder / "state"), MARK: vm.mark}
        vm.environment["PATH"] = f"{folder / 'bin'}:{_foreign_path(vm.environment.get('PATH', os.defpath))}"
        for program, script in self.programs.items():
            _write_program(folder / "bin" / program, script)
        (folder / "bin" / "python3").symlink_to(Path(sys.executable).resolve())  # the system's, without libraries
        lines = [f"export {key}={shlex.quote(text)}\n" for key, text in vm.environment.items()]
        (folder / "environment").write_text("".join(lines))
        _write_program(folder / "login", LOGIN.format(folder=shlex.quote(str(folder))))
        keys = [line.partition(":")[2] for line in metadata.get("ssh-keys", "").splitlines() if line]
        (folder / "authorized_keys").write_text("".join(f"{key}\n" for key in keys))
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key")]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        _preinstall(vm)
        return vm


def executable(program: str) -> str | None:
    """Return the path of a program; sshd is only on the superuser's PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/usr/libexec")


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def _write_program(path: Path, script: str) -> None:
    path.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}")
    path.chmod(0o755)


def _foreign_path(path: str) -> str:
    """Return a PATH without folders that hold the command `taetpu`, which no machine has before it is set up."""
    return ":".join(folder for folder in path.split(":") if not Path(folder, "taetpu").exists())


def _preinstall(vm: Vm) -> None:
    """Make the virtual environment that a real machine installs, from this interpreter's libraries without taetpu."""
    from taetpu.cloud.startup import requirements

    venv, base = vm.home / ".taetpu" / "venv", Path(sys._base_executable)
    libraries = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    libraries.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "taetpu" not in entry.name:  # the package, its metadata and the file that makes it editable
            (libraries / entry.name).symlink_to(entry)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(base)
    (venv / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    (vm.home / ".taetpu" / "requirements").write_text(requirements())


def _listen(vm: Vm) -> None:
    """Start sshd and wait until it answers, on another port if this one is in use."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd of the superuser insists on it
    while not vm.off.is_set():
        (vm.folder / "sshd_config").write_text(SSHD.format(port=vm.port, folder=vm.folder))
        vm.sshd = _start(vm, [executable("sshd") or "sshd", "-D", "-e", "-f", str(vm.folder / "sshd_config")])
        while vm.sshd.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", vm.port)) == 0:
                    return
            time.sleep(0.005)
        vm.port = free_port()


def _start(vm: Vm, words: list[str]) -> subprocess.Popen[bytes]:
    with (vm.folder / "machine.log").open("ab") as log:
        return subprocess.Popen(
            words, cwd=vm.home, env=vm.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def _cut(vm: Vm) -> None:
    """Kill every process of a machine: children of its sshd, and those with its mark."""
    vm.off.set()
    while alive := _processes(vm):
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in filter(None, (vm.sshd, vm.script)):
            child.poll()
        time.sleep(0.002)
    for child in filter(None, (vm.sshd, vm.script)):
        child.wait()


def _processes(vm: Vm) -> set[int]:
    tree = parents()
    roots = {child.pid for child in (vm.sshd, vm.script) if child}
    return {pid for pid in tree if _descends(pid, roots, tree) or _marked(pid, vm.mark)}


def _descends(pid: int, roots: set[int], tree: Mapping[int, int]) -> bool:
    while pid > 1:
        if pid in roots:
            return True
        pid = tree.get(pid, 0)
    return False


def _marked(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def parents() -> dict[int, int]:
    """Return the parent of every live process."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, IndexError):
            state, parent = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(name)] = int(parent)
    return found
