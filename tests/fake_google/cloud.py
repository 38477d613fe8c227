"""All of the fake Google Cloud, and what directs gcloud and the storage library to it."""

import getpass
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fake_google import storage
from tests.fake_google.compute import Compute
from tests.fake_google.hosts import LoopbackHosts
from tests.fake_google.project import Project
from tests.fake_google.server import Route, Server
from tests.fake_google.tpu import Tpu
from tests.fake_google.world import Refused, World

ZONES = ("us-central1-a", "us-central1-b", "us-east5-a", "us-east5-b", "us-west4-a", "us-south1-a", "us-central2-b")
PATHS = {
    "TPU": "", "COMPUTE": "compute/v1/", "STORAGE": "storage/v1/", "CLOUDRESOURCEMANAGER": "", "SERVICEUSAGE": "",
    "IAM": "",
}  # fmt: skip
"""By API of gcloud: what follows the server's address in its endpoint override."""

GCLOUD = """\
#!{python}
# The real gcloud, but for the tunnel, which has no endpoint override: it is joined to the sshd of the machine here.
import os, socket, sys, threading, urllib.request

if sys.argv[1:3] != ["compute", "start-iap-tunnel"]:
    os.execv({real!r}, ["gcloud", *sys.argv[1:]])
target = sys.argv[3]
if ":" not in target:
    target = urllib.request.urlopen({server!r} + "/fake/hosts/" + target).read().decode()
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
    """The fake cloud while it runs. `bin` is the folder that goes first on PATH."""

    world: World
    hosts: LoopbackHosts
    tpu: Tpu
    compute: Compute
    project: Project
    server: Server
    bin: Path

    def environment(self) -> dict[str, str]:
        """Variables that direct this process, gcloud and machines to the fake."""
        overrides = {
            f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{self.server.address}/{path}" for api, path in PATHS.items()
        }
        return overrides | {
            "CLOUDSDK_CONFIG": str(self.bin.parent / "gcloud"),
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
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
        """Take a machine away, as the API that made it does."""
        self.tpu.preempt(name)
        self.compute.preempt(name)

    def left(self) -> list[str]:
        """Every machine and queued resource that exists."""
        return [line for line in self.world.left() if line.startswith(("tpu.", "compute.instances"))]


@contextmanager
def running(folder: Path) -> Iterator[FakeGoogle]:
    """Run the fake cloud; its files are in a folder."""
    hosts = LoopbackHosts(folder / "hosts")
    world = World(hosts=hosts)
    tpu, compute, project = Tpu(world, ZONES), Compute(world, ZONES), Project(world)

    def where(request):
        vm = next((vm for (name, _), vm in hosts.vms.items() if name == request.parts["name"]), None)
        if vm is None:
            raise Refused(5, f"no machine {request.parts['name']} is on")
        return f"127.0.0.1:{vm.port}".encode()

    tunnel = Route("fake", "hosts", "GET", "/fake/hosts/(?P<name>[^/]+)", where)
    routes = [*tpu.routes(), *compute.routes(), *project.routes(), *storage.routes(world), tunnel]
    with Server(world, routes) as server:
        bin = folder / "bin"
        bin.mkdir(parents=True)
        real = shutil.which("gcloud") or "gcloud"
        (bin / "gcloud").write_text(GCLOUD.format(python=sys.executable, real=real, server=server.address))
        (bin / "gcloud").chmod(0o755)
        found = FakeGoogle(world, hosts, tpu, compute, project, server, bin)
        hosts.environment = found.environment()
        try:
            yield found
        finally:
            hosts.close()


def exports(cloud: FakeGoogle) -> str:
    """The environment as lines for a shell."""
    return "".join(f"export {key}={shlex.quote(value)}\n" for key, value in cloud.environment().items())
