"""A fake Compute Engine for a test, its hosts recorded, and the backend that asks it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from taetpu.cloud.backends.base import Machine, Operation, State
from taetpu.cloud.backends.gce import Gce
from taetpu.cloud.clients import FAKE, Clients
from taetpu.cloud.fakes import gce
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.world import World
from taetpu.cloud.spec import Spec
from taetpu.core.chips import resolve

ZONE = "us-east5-b"
KEY = "ssh-ed25519 AAAAC3Nza you@laptop"
SPEC = Spec("my-tpu", resolve("v6e-8"), "gce", owner="me", runtime="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e")
SLICE = replace(SPEC, tpu=resolve("v6e-16"))
"""Four hosts."""


@dataclass
class Recorded:
    """Hosts that nobody can log into, and what became of them."""

    booted: list[tuple[str, int, Mapping[str, str]]] = field(default_factory=list)
    halted: list[str] = field(default_factory=list)

    def boot(self, instance: str, worker: int, metadata: Mapping[str, str]) -> tuple[str, int]:
        self.booted.append((instance, worker, dict(metadata)))
        return f"127.0.0.{len(self.booted)}", 22

    def halt(self, instance: str) -> None:
        self.halted.append(instance)


@dataclass
class Cloud:
    world: World
    hosts: Recorded
    gce: Gce

    def create(self, spec: Spec = SPEC, zone: str = ZONE) -> Operation:
        return self.gce.create(spec, zone, "#!/bin/sh\necho hello\n", KEY)

    def ready(self, spec: Spec = SPEC, zone: str = ZONE) -> Machine:
        """A machine that runs."""
        operation = self.create(spec, zone)
        for _ in range(50):
            machine = self.gce.get(spec.stack, zone)
            if operation.done() and machine and machine.state is State.READY:
                return machine
        raise AssertionError(f"not ready after 50 questions: {machine}")

    def remove(self, name: str = "my-tpu", zone: str = ZONE) -> None:
        finish(self.gce.delete(name, zone))

    def body(self, name: str = "my-tpu", zone: str = ZONE) -> dict:
        """An instance as it was asked for."""
        return self.world.table("gce.instances")[f"{zone}/{name}"]


@pytest.fixture
def compute(monkeypatch):
    hosts = Recorded()
    world = World(hosts=hosts)
    with Server(world, gce.routes(world)) as server:
        monkeypatch.setenv(FAKE, server.address)
        yield Cloud(world, hosts, Gce(Clients(world.project)))


def finish(operation: Operation, most: int = 50) -> int:
    """Ask an operation until it is done; how often that took."""
    for asked in range(1, most + 1):
        if operation.done():
            return asked
    raise AssertionError(f"not done after {most} questions")
