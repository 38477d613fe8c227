"""Machines of the fake cloud, ready for jobs, made without the commands."""

import pytest
from tests.cloud.commands import ZONE
from tests.fake_google.cloud import FakeGoogle

from taetpu.cloud import startup
from taetpu.cloud.machine_api import Machine, Spec, Worker
from taetpu.cloud.settings import Settings, read_settings
from taetpu.cloud.ssh import Hosts, public_key
from taetpu.core.chips import parse_slice


@pytest.fixture
def settings(google: FakeGoogle) -> Settings:
    return read_settings()


def boot(google: FakeGoogle, settings: Settings, workers: int) -> Hosts:
    """Start a machine in the fake and prepare it, as `up` does."""
    # The script of the other API does not ask Google for a request, of which there is none here.
    spec = Spec("box", parse_slice("v5e-8"), "gce", "me", 4.0, "r")
    script = startup.startup_script(spec, ZONE, settings)
    metadata = {"startup-script": script, "ssh-keys": f"{settings.user}:{public_key()}"}
    for worker in range(workers):
        google.hosts.boot("box", worker, metadata)
    there = tuple(Worker("127.0.0.1", instance=f"t1v-n-box-w-{number}") for number in range(workers))
    machine = Machine("box", ZONE, "tpu-api", "v5litepod-8", "ready", "READY", {}, there)
    return startup.prepare(machine, settings, lambda line: None)


@pytest.fixture
def hosts(google: FakeGoogle, settings: Settings) -> Hosts:
    """Return the hosts of a machine with one host."""
    return boot(google, settings, 1)


@pytest.fixture
def pair(google: FakeGoogle, settings: Settings) -> Hosts:
    """Return the hosts of a machine with two hosts."""
    return boot(google, settings, 2)
