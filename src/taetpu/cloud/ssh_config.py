"""What ssh is told of a TPU's hosts: one key for all that taetpu makes, and for each stack a generated ssh_config with
host keys and connections of its own. Nothing of the user's own ssh is read for it or changed.

A host without an address of its own is reached by its instance's name through Google's Identity-Aware Proxy.
"""

import fcntl
import getpass
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from taetpu.cloud.backends.base import Machine
from taetpu.cloud.clients import fake_address
from taetpu.cloud.settings import Settings
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


def public_key() -> str:
    """The public key that machines are made with, one line; the pair is made when first asked for.

    Raises:
        UserError: ssh is not installed, or the state folder cannot be written.
    """
    key = _key()
    return key.with_suffix(".pub").read_text(encoding="utf-8").strip()


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
                keygen = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "taetpu", "-f", str(path)]
                subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
    return path


def text(folder: Path, machine: Machine, user: str, settings: Settings) -> str:
    """The ssh_config of a stack's hosts, `w0`, `w1` and so on.

    Args:
        folder: of what is remembered of it.
    """
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


def program(name: str) -> str:
    """Where a program is.

    Raises:
        UserError: it is not installed.
    """
    if found := shutil.which(name):
        return found
    raise UserError(f"{name} is not installed here", remedy="install OpenSSH's client and rsync")
