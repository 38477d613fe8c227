"""The fake Cloud TPU API behind either of its faces, and Google's own client towards it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from taetpu.cloud.backends.tpu_api import TpuApi
from taetpu.cloud.clients import FAKE, FAKE_GRPC, Clients
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.tpu import Tpu
from taetpu.cloud.fakes.tpu_grpc import GrpcServer
from taetpu.cloud.fakes.tpu_rest import routes
from taetpu.cloud.fakes.world import World
from taetpu.cloud.spec import Spec
from taetpu.core.chips import resolve

FACES = ("grpc", "rest")
ZONES = {
    "us-central2-b": ["v4-8", "v4-16"],
    "us-east5-b": ["v6e-1", "v6e-8", "v6e-16"],
    "us-west4-a": ["v5litepod-8", "v5litepod-16", "v6e-8"],
}
ZONE = "us-east5-b"
KEY = "ssh-ed25519 AAAAC3Nz laptop"


class Booted:
    """Hosts that are noted, and cannot be logged into."""

    def __init__(self):
        self.up: dict[str, dict[str, str]] = {}
        self.halted: list[str] = []

    def boot(self, instance, worker, metadata):
        self.up[instance] = dict(metadata) | {"worker": str(worker)}
        return "127.0.0.1", 2200 + worker

    def halt(self, instance):
        self.up.pop(instance, None)
        self.halted.append(instance)


@dataclass
class Place:
    """A fake cloud and the backend that talks to it."""

    world: World
    tpu: Tpu
    api: TpuApi
    clients: Clients
    address: str

    @property
    def hosts(self) -> Booted:
        hosts = self.world.hosts
        assert isinstance(hosts, Booted)
        return hosts

    def machine(self, name="lab", zone=ZONE):
        """The machine as the backend sees it, which must be there."""
        found = self.api.get(name, zone)
        assert found is not None
        return found

    def until(self, state, name="lab", zone=ZONE):
        """Ask until the machine is in a state; it moves on by being asked."""
        for _ in range(20):
            if (found := self.machine(name, zone)).state is state:
                return found
        raise AssertionError(f"{name} is not {state} but {found.state}: {found.detail}")

    def settle(self):
        """Let every operation come to its end, as time would."""
        for operation in list(self.world.operations.values()):
            while not operation.poll():
                pass

    def changes(self):
        return [call.name for call in self.world.changes()]


@contextmanager
def cloud(face: str, **options) -> Iterator[Place]:
    """A fake cloud; `face` is what the client of the Cloud TPU API speaks."""
    world = World(hosts=Booted())
    tpu = Tpu(world, {zone: list(types) for zone, types in ZONES.items()}, **options)
    with ExitStack() as stack:
        server = stack.enter_context(Server(world, routes(tpu)))
        environment = {FAKE: server.address}
        if face == "grpc":
            environment[FAKE_GRPC] = stack.enter_context(GrpcServer(tpu)).address
        stack.enter_context(patch.dict("os.environ", environment))
        clients = Clients(world.project)
        stack.callback(clients.tpu.transport.close)
        yield Place(world, tpu, TpuApi(clients), clients, server.address)


def spec(name="lab", kind="v6e-8", provisioning="spot", **more) -> Spec:
    """What is asked for."""
    return Spec(name, resolve(kind), "tpu-api", provisioning, owner="ada", **more)


def finished(operation) -> None:
    """Ask until an operation has ended well."""
    for _ in range(20):
        if operation.done():
            return
    raise AssertionError("the operation has not ended")
