"""A fake cloud with both APIs at once, watched at every call, and what tells its backends apart to a test."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import pytest

from taetpu.cloud import project, reconcile
from taetpu.cloud.backends.base import Backend, Machine, Operation, State
from taetpu.cloud.backends.gce import Gce
from taetpu.cloud.backends.gce_requests import labels_in
from taetpu.cloud.backends.tpu_api import TpuApi
from taetpu.cloud.clients import FAKE, FAKE_GRPC, Clients
from taetpu.cloud.fakes import gce, gce_base, tpu_rest
from taetpu.cloud.fakes import world as worlds
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.tpu import Tpu
from taetpu.cloud.fakes.tpu_grpc import GrpcServer
from taetpu.cloud.fakes.world import Fault, Refused, World
from taetpu.cloud.spec import OWNER, STACK, BackendName, Spec
from taetpu.cloud.state import Record, Records
from taetpu.core.chips import resolve

ZONE, NEXT, FAR = "us-east5-b", "us-east5-a", "us-central1-b"
"""Two zones of a region, and one of another."""
ME, NAME = "ada", "lab"
KEY = "ssh-ed25519 AAAAC3Nz laptop"
SCRIPT = "#!/bin/sh\n"
QUICK = project.Waits(poll=0.001, settle=0.2, ready=5.0, queue=0.3)
IMAGE, RUNTIME = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", "v2-alpha-tpuv6e"
ENDING = {"STOPPING", "STOPPED", "TERMINATED", "SUSPENDING", "SUSPENDED", "PREEMPTED", "DELETING", "FAILED"}
"""States of either API in which a machine costs nothing any more, or soon."""


@dataclass(frozen=True)
class Kind:
    """A backend with a slice, and the names of the calls that make, show and delete it.

    Attributes:
        make: inside which it fails where the zone has none after all.
    """

    name: str
    backend: BackendName
    tpu: str
    create: str
    make: str
    look: str
    delete: str

    def spec(self, name: str = NAME, **more) -> Spec:
        runtime = IMAGE if self.backend == "gce" else RUNTIME
        return Spec(name, resolve(more.pop("tpu", self.tpu)), self.backend, **{"owner": ME, "runtime": runtime} | more)

    @property
    def lists(self) -> tuple[str, ...]:
        """The calls that list all machines."""
        kinds = ("instances", GROUPS, "instanceTemplates", "resourcePolicies")
        made = tuple(f"{kind}.aggregatedList" for kind in kinds)
        return made if self.backend == "gce" else ("ListNodes", "ListQueuedResources")

    def stockout(self, zone: str = ZONE) -> Refused:
        return worlds.stockout(zone) if self.backend == "tpu-api" else gce_base.stockout("fake-project", zone)

    def quota(self, limit: str, where: str) -> Refused:
        return worlds.quota(limit, where) if self.backend == "tpu-api" else gce_base.quota(limit, where)

    def none_left(self, moment: str, zone: str = ZONE) -> Fault:
        """A stock-out of a zone: "before", "inside" the request's operation, or in the "making" afterwards."""
        call, when = (self.make, "inside") if moment == "making" else (self.create, moment)
        return Fault(call, self.stockout(zone), zone, when, 10**6)  # pyright: ignore[reportArgumentType]


GCE = Kind("gce", "gce", "v6e-8", "instances.insert", "instances.insert", "instances.get", "instances.delete")
GROUPS = "instanceGroupManagers"
SLICE = Kind("slice", "gce", "v6e-16", f"{GROUPS}.insert", "instances.insert", f"{GROUPS}.get", f"{GROUPS}.delete")
TPU_API = Kind(
    "tpu-api", "tpu-api", "v6e-8", "CreateQueuedResource", "Provision", "GetQueuedResource", "DeleteQueuedResource"
)
KINDS = (GCE, SLICE, TPU_API)
EACH = (GCE, pytest.param(SLICE, marks=pytest.mark.slow), TPU_API)
"""For a fixture."""


@dataclass
class Watched(World):
    """A world that notes when somebody has two machines of a name, and does something at a call.

    Attributes:
        at: what is done at a call, by its number from 1, before it is answered.
        on: what is done once after a call of a name was answered.
        endless: the operation of a call in a zone that never ends.
        struck: the faults that have happened, by their moment and call.
        twice: the machines of every moment at which there were two.
    """

    at: dict[int, Callable[[], object]] = field(default_factory=dict)
    on: dict[str, Callable[[], object]] = field(default_factory=dict)
    twice: list[list[tuple[str, str]]] = field(default_factory=list)
    endless: tuple[str, str] = ("", "")

    struck: list[str] = field(default_factory=list)

    def _due(self, name, zone, moment):
        if fault := super()._due(name, zone, moment):
            self.struck.append(f"{moment} {name} in {zone or 'all zones'}: {fault.error or 'cut'}")
        return fault

    def operation(self, call, zone, finish, **about):
        begun = super().operation(call, zone, finish, **about)
        if (call, zone) == self.endless:
            begun.polls = 10**9
        return begun

    def call(self, service, name, zone, changes, answer):
        with self.lock:
            if act := self.at.pop(len(self.calls) + 1, None):
                act()
            try:
                return super().call(service, name, zone, changes, answer)
            finally:
                if act := self.on.pop(name, None):
                    act()
                mine = self.alive()
                if len({stack for stack, _ in mine}) < len(mine):
                    self.twice.append(mine)

    def alive(self, owner: str = ME) -> list[tuple[str, str]]:
        """The stack and the place of every machine of somebody's that costs money, or will."""
        found = {(labels[STACK], place) for labels, place in self._labelled() if labels.get(OWNER) == owner}
        return sorted(found)

    def _labelled(self) -> Iterator[tuple[Mapping[str, str], str]]:
        for key, one in self.table("gce.instances").items():
            if one["status"] not in ENDING:
                yield one.get("labels", {}), key.partition("/")[0]
        for key, one in self.table("gce.groups").items():
            if not one["_deleting"]:
                yield labels_in(one.get("description", "")), key.partition("/")[0]
        for name, one in self.table("tpu.queuedResources").items():
            if one.state not in ENDING:
                yield one.data["tpu"]["nodeSpec"][0]["node"].get("labels", {}), name.split("/")[3]
        for name, one in self.table("tpu.nodes").items():
            if not one.request and one.data["state"] not in ENDING:
                yield one.data.get("labels", {}), name.split("/")[3]

    @contextmanager
    def pressing(self, number: int) -> Iterator[None]:
        """Press Ctrl-C during a call, which is answered once it was heard."""
        heard = threading.Event()

        def hear(signum, frame):
            heard.set()
            raise KeyboardInterrupt

        def strike():
            os.kill(os.getpid(), signal.SIGINT)
            assert heard.wait(10)

        before = signal.signal(signal.SIGINT, hear)
        self.at[number] = strike
        try:
            yield
        finally:
            self.at.pop(number, None)
            signal.signal(signal.SIGINT, before)


class Hosts:
    """Hosts that are noted, and cannot be logged into."""

    def __init__(self):
        self.up: list[str] = []

    def boot(self, instance, worker, metadata):
        self.up.append(instance)
        return "127.0.0.1", 22

    def halt(self, instance):
        if instance in self.up:
            self.up.remove(instance)


def _ours(labels: Mapping[str, str], name: str) -> bool:
    return (labels.get(OWNER), labels.get(STACK)) == (ME, name)


@dataclass
class Place:
    """A fake cloud, one kind of machine in it, and what `up` and `down` told."""

    kind: Kind
    world: Watched
    hosts: Hosts
    tpu: Tpu
    cloud: project.Cloud
    said: list[str]

    @property
    def backend(self) -> Backend:
        return self.cloud.backend(self.kind.backend)

    @property
    def record(self) -> Record:
        return self.cloud.records.read(NAME)

    def up(self, *zones: str, rate: float | None = 1.0, **more) -> Machine:
        """By default in `ZONE`, else in `NEXT`."""
        rates = dict.fromkeys(zones or (ZONE, NEXT), rate)
        return reconcile.up(self.cloud, self.kind.spec(**more), rates, SCRIPT, KEY)

    def down(self) -> list[Machine]:
        return reconcile.down(self.cloud, NAME)

    def made(self, zone: str = ZONE, **more) -> Machine:
        """A machine that somebody else made, ready: without a record here."""
        operation = self.backend.create(self.kind.spec(**more), zone, SCRIPT, KEY)
        return self.until(operation, zone, more.get("name", NAME))

    def until(self, operation: Operation, zone: str = ZONE, name: str = NAME) -> Machine:
        """The machine once it is ready."""
        for _ in range(100):
            machine = self.backend.get(name, zone)
            if operation.done() and machine and machine.state is State.READY:
                return machine
        raise AssertionError("it was never ready")

    def preempt(self, name: str = NAME) -> bool:
        """Take a machine of ours back, if there is one."""
        with self.world.lock:
            for full, node in self.world.table("tpu.nodes").items():
                if _ours(node.data.get("labels", {}), name) and node.data["state"] not in ENDING:
                    self.tpu.preempt(full)
                    return True
            for key, one in self.world.table("gce.instances").items():
                if _ours(one.get("labels", {}), name) and one["status"] not in ENDING:
                    gce.Instances(gce_base.Compute(self.world)).stopped(key, one, "instances.preempted")
                    return True
        return False

    def patient(self, **more) -> None:
        """Wait otherwise than by default."""
        self.cloud = replace(self.cloud, waits=replace(self.cloud.waits, **more))

    def elsewhere(self, folder: Path) -> None:
        """From now on on another computer, which has records of its own."""
        self.cloud = replace(self.cloud, records=_records(self.world.project, folder))

    def changes(self, *, zone: str = "") -> list[str]:
        """The names of the calls that changed something."""
        return [call.name for call in self.world.changes() if zone in ("", call.zone)]

    def settle(self) -> None:
        """Let every operation come to its end, as time would: the fakes' go on by being asked for."""
        compute = gce_base.Compute(self.world)
        with self.world.lock:
            for operation in list(self.world.operations.values()):
                while not (compute.poll(operation) if "fail" in operation.about else operation.poll()):
                    pass


@contextmanager
def cloud(kind: Kind, folder: Path, *, grpc: bool = True) -> Iterator[Place]:
    """A fake cloud with nothing in it, whose records lie in a folder.

    Args:
        grpc: how the Cloud TPU API is spoken; by REST otherwise.
    """
    world, said = Watched(hosts=(hosts := Hosts())), list[str]()
    tpu = Tpu(world)
    with ExitStack() as stack:
        server = stack.enter_context(Server(world, [*gce.routes(world), *tpu_rest.routes(tpu)]))
        environment = {FAKE: server.address}
        if grpc:
            environment[FAKE_GRPC] = stack.enter_context(GrpcServer(tpu)).address
        stack.enter_context(patch.dict("os.environ", environment))
        if not grpc:
            os.environ.pop(FAKE_GRPC, None)
        clients = Clients(world.project)
        stack.callback(clients.tpu.transport.close)
        waits = replace(QUICK, now=clients.now)
        backends = (Gce(clients), TpuApi(clients))
        yield Place(
            kind, world, hosts, tpu,
            project.Cloud(backends, _records(world.project, folder), ME, said.append, waits), said,
        )  # fmt: skip


def _records(project: str, folder: Path) -> Records:
    with patch.dict("os.environ", {"XDG_STATE_HOME": str(folder)}):
        return Records(project)


def vanish(place: Place) -> None:
    """Take the machine away as if it had never been."""
    with place.world.lock:
        if place.world.table("tpu.nodes"):
            place.tpu.vanish(NAME)
        for key, one in list(place.world.table("gce.instances").items()):
            place.hosts.halt(one["name"])
            del place.world.table("gce.instances")[key]
