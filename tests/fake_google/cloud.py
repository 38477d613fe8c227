"""The fake Google Cloud, and the settings that direct gcloud and the storage library to it."""

import atexit
import getpass
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.fake_google import storage
from tests.fake_google.artifacts import Artifacts
from tests.fake_google.compute import Compute
from tests.fake_google.hosts import LoopbackHosts
from tests.fake_google.project import Project
from tests.fake_google.server import Route, Server
from tests.fake_google.tpu import Tpu
from tests.fake_google.world import Refused, World

ZONES = ("us-central1-a", "us-central1-b", "us-east5-a", "us-east5-b", "us-west4-a", "us-south1-a", "us-central2-b")
PATHS = {
    "TPU": "", "COMPUTE": "compute/v1/", "STORAGE": "storage/v1/", "CLOUDRESOURCEMANAGER": "", "SERVICEUSAGE": "",
    "IAM": "", "ARTIFACTREGISTRY": "", "SECRETMANAGER": "",
}  # fmt: skip
"""By gcloud API: the path of its endpoint override."""
ACCOUNT = "me@example.org"

GCLOUD = """\
#!{python} -ES
# The real gcloud, but for the tunnel, which has no endpoint override: it is joined to the sshd of the machine here.
import os, sys

if sys.argv[1:3] != ["compute", "start-iap-tunnel"]:
    if not {kept!r}:
        os.execv({real!r}, ["gcloud", *sys.argv[1:]])
    import json, socket
    request = dict(words=sys.argv[1:], environment=dict(os.environ), folder=os.getcwd())
    with socket.socket(socket.AF_UNIX) as server:
        server.connect("\\0" + {kept!r})
        socket.send_fds(server, [b" "], [0, 1, 2])
        server.sendall(json.dumps(request).encode() + b"\\n")
        sys.exit(int(server.recv(100) or 137))
import socket, threading, urllib.request

target = urllib.request.urlopen({server!r} + "/fake/hosts/" + sys.argv[3]).read().decode()
address, _, port = target.partition(":")
with socket.create_connection((address, int(port))) as there:
    def sent():
        while data := os.read(0, 1 << 16):
            there.sendall(data)
        there.shutdown(socket.SHUT_WR)
    threading.Thread(target=sent, daemon=True).start()
    while data := there.recv(1 << 16):
        os.write(1, data)
"""


@dataclass
class FakeGoogle:
    """A running fake cloud; `bin` is the first folder on PATH."""

    world: World
    hosts: LoopbackHosts
    tpu: Tpu
    compute: Compute
    project: Project
    artifacts: Artifacts
    server: Server
    bin: Path
    started: subprocess.Popen[str] | None = None

    def environment(self) -> dict[str, str]:
        """Return the variables that direct this process, gcloud and machines to the fake."""
        overrides = {
            f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{self.server.address}/{path}" for api, path in PATHS.items()
        }
        return overrides | {
            "CLOUDSDK_CONFIG": str(self.bin.parent / "gcloud"),
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
            "CLOUDSDK_CORE_ACCOUNT": ACCOUNT,
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "STORAGE_EMULATOR_HOST": self.server.address,
            "TAETPU_PROJECT": self.world.project,
            "TAETPU_USER": getpass.getuser(),
            "TAETPU_POLL_SECONDS": "0.2",
            "TAETPU_READY_MINUTES": "0.5",
            "TAETPU_UNKNOWN_MINUTES": "0.25",
            "PATH": f"{self.bin}:{os.environ.get('PATH', os.defpath)}",
        }

    def preempt(self, name: str) -> None:
        """Preempt a machine, through the API that made it."""
        with self.world.lock:
            self.tpu.preempt(name)
            self.compute.preempt(name)

    def left(self) -> list[str]:
        """Return all existing machines and queued resources."""
        return [line for line in self.world.left() if line.startswith(("tpu.", "compute.instances"))]


@cache
def keep_imported(real: str) -> str:
    """Start `gcloud.py` for this process; return its socket's name, or "" if gcloud has no bundled Python."""
    root = Path(real).resolve().parents[1]
    python = root / "platform" / "bundledpythonunix" / "bin" / "python3"
    if not python.exists():
        return ""
    name = f"taetpu-gcloud-{os.getpid()}"
    server = subprocess.Popen(
        [python, "-SP", Path(__file__).with_name("gcloud.py"), root, name], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert server.stdout
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.kill)
    return name


@contextmanager
def running(folder: Path) -> Iterator[FakeGoogle]:
    """Run the fake cloud with its files in a folder."""
    hosts = LoopbackHosts(folder / "hosts")
    world = World(hosts=hosts)
    tpu, compute, project = Tpu(world, ZONES), Compute(world, ZONES), Project(world)
    artifacts = Artifacts(world)

    def where(request):
        found = re.fullmatch(r"t1v-n-(.*)-w-(\d+)", request.parts["name"])
        key = (found[1], int(found[2])) if found else (request.parts["name"], 0)
        if (vm := hosts.vms.get(key)) is None:
            raise Refused(5, f"no machine {request.parts['name']} is on")
        return f"127.0.0.1:{vm.port}".encode()

    tunnel = Route("fake", "hosts", "GET", "/fake/hosts/(?P<name>[^/]+)", where)
    routes = [*tpu.routes(), *compute.routes(), *project.routes(), *artifacts.routes(), *storage.routes(world), tunnel]
    with Server(world, routes) as server:
        bin = folder / "bin"
        bin.mkdir(parents=True)
        real = shutil.which("gcloud") or "gcloud"
        values = {"python": sys.executable, "real": real, "kept": keep_imported(real), "server": server.address}
        (bin / "gcloud").write_text(GCLOUD.format(**values))
        (bin / "gcloud").chmod(0o755)
        found = FakeGoogle(world, hosts, tpu, compute, project, artifacts, server, bin)
        hosts.environment = found.environment()
        sign_in(folder / "gcloud")
        try:
            yield found
        finally:
            hosts.close()


def sign_in(folder: Path) -> None:
    """Sign in an account with a token that is never checked; `folder` is gcloud's configuration."""
    folder.mkdir()
    token = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
    (folder / "application_default_credentials.json").write_text(json.dumps(token))
    with closing(sqlite3.connect(folder / "credentials.db")) as kept, kept:
        kept.execute("CREATE TABLE credentials (account_id TEXT PRIMARY KEY, value BLOB)")
        kept.execute("INSERT INTO credentials VALUES (?, ?)", (ACCOUNT, json.dumps(token)))


def exports(cloud: FakeGoogle) -> str:
    """Print the environment as lines for a shell."""
    return "".join(f"export {key}={shlex.quote(value)}\n" for key, value in cloud.environment().items())
