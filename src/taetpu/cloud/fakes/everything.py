"""Every service of the fakes at once, as `taetpu dev fake-cloud` runs them."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from taetpu.cloud.clients import FAKE, FAKE_GRPC
from taetpu.cloud.fakes import (
    builds,
    gce,
    gce_groups,
    hosts,
    images,
    networks,
    prices,
    projects,
    quotas,
    storage,
    tpu_rest,
)
from taetpu.cloud.fakes.server import Request, Route, Server
from taetpu.cloud.fakes.storage import OBJECTS
from taetpu.cloud.fakes.tpu import Tpu
from taetpu.cloud.fakes.tpu_grpc import GrpcServer
from taetpu.cloud.fakes.world import Refused, World


@dataclass(frozen=True)
class FakeCloud:
    """A cloud that runs.

    Attributes:
        address, grpc: where its servers listen.
        folder: of its machines and of what taetpu remembers of them.
    """

    world: World
    tpu: Tpu
    hosts: hosts.LoopbackHosts
    address: str
    grpc: str
    folder: Path

    def environment(self) -> dict[str, str]:
        """What a command needs to be sent here, and to leave what it remembers here too."""
        return {
            FAKE: self.address,
            FAKE_GRPC: self.grpc,
            "STORAGE_EMULATOR_HOST": self.address,
            "GOOGLE_CLOUD_PROJECT": self.world.project,
            "TAETPU_PROJECT": self.world.project,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }

    def left(self) -> list[str]:
        """Everything that is there by kind and name, the objects of a bucket in one line."""
        with self.world.lock:
            counts = Counter(name.partition("/")[0] for name in self.world.table(OBJECTS))
            rest = [line for line in self.world.left() if not line.startswith(f"{OBJECTS}: ")]
        return [*rest, *(f"{count} objects in gs://{bucket}" for bucket, count in sorted(counts.items()))]

    def preempt(self, name: str, notice: float = 0.0) -> None:
        """Take a machine back, by the name of its TPU.

        Args:
            notice: seconds for which its metadata says so before. What is there by that name then goes only if it is
                the same machine.

        Raises:
            KeyError: there is none.
        """
        there, instances, take = self._there(name)
        if not notice:
            take()
            return
        for instance in instances:
            self.hosts.notice(instance)

        def later() -> None:
            with self.world.lock, suppress(KeyError):
                now, _, take = self._there(name)
                if now is there:
                    take()

        timer = threading.Timer(notice, later)
        timer.daemon = True
        timer.start()

    def _there(self, name: str) -> tuple[object, list[str], Callable[[], None]]:
        """What stands for a TPU, its virtual machines, and how it is taken back."""
        with self.world.lock:
            for full, node in self.world.table("tpu.nodes").items():
                if full.rpartition("/")[2] == name:
                    return node, node.instances, partial(self.tpu.preempt, name)
            for group in self.world.table(gce_groups.GROUPS).values():
                if group["name"] == name:
                    return group, group["_hosts"], partial(gce.preempt, self.world, group["_hosts"][0])
            for instance in self.world.table(gce.TABLE).values():
                if instance["name"] == name:
                    return instance, [name], partial(gce.preempt, self.world, name)
        raise KeyError(name)


@contextmanager
def running(folder: Path) -> Iterator[FakeCloud]:
    """A fake cloud, until the block is left. Its environment must be set before a machine boots: it is handed on."""
    world = World()
    machines = hosts.LoopbackHosts(folder / "machines", project=world.project)
    world.hosts = machines
    tpu = Tpu(world)
    known: list[FakeCloud] = []

    def preempted(request: Request) -> dict[str, str]:
        name = request.parts["name"]
        try:
            known[0].preempt(name, float(request.query.get("notice", "0")))
        except KeyError:
            raise Refused(5, f"there is no machine {name!r}") from None
        return {"preempted": name}

    services = (networks, gce, storage, images, builds, quotas, prices, projects)
    routes = [route for service in services for route in service.routes(world)]
    routes += [*tpu_rest.routes(tpu), *machines.routes()]
    routes += [Route("fake", "fake.preempt", "POST", r"/fake/preempt/(?P<name>[^/]+)", preempted)]
    routes += [Route("fake", "fake.left", "GET", "/fake/left", lambda request: known[0].left())]
    with ExitStack() as stack:
        stack.callback(machines.close)
        server = stack.enter_context(Server(world, routes))
        grpc = stack.enter_context(GrpcServer(tpu))
        known.append(FakeCloud(world, tpu, machines, server.address, grpc.address, folder))
        yield known[0]
