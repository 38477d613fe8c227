"""Machines of the fake cloud for tests: real sshd, real rsync, real processes."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from taetpu.cloud import ssh, ssh_config, vm
from taetpu.cloud.backends.base import Machine, State, Worker
from taetpu.cloud.fakes.hosts import LoopbackHosts, executable
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.world import World
from taetpu.cloud.project import Waits
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import Spec
from taetpu.core.chips import resolve

SETTINGS = Settings(project="fake-project", owner="me")
ZONE = "us-central1-a"


def skip_without_machines() -> None:
    """Machines of the fake cloud cannot boot everywhere, see tests/SKIPPED.md."""
    if not (executable("sshd") and shutil.which("rsync") and Path("/proc/self/environ").exists()):
        pytest.skip("no OpenSSH server or no rsync is installed, or this is not Linux")


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHosts]:
    """Machines that boot when they are asked to, and a fake cloud that tells where they are."""
    skip_without_machines()
    found = LoopbackHosts(tmp_path / "hosts")
    with Server(World(hosts=found), found.routes()) as server:
        monkeypatch.setenv("TAETPU_FAKE_CLOUD", server.address)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        yield found
        ssh.forget("*")
        found.close()


Boot = Callable[..., ssh.Slice]


@pytest.fixture
def boot(hosts: LoopbackHosts) -> Boot:
    """`boot(workers=1, stack="t", startup="", created="")`: the hosts of a machine that has just been made."""

    def made(workers: int = 1, stack: str = "t", startup: str = "", created: str = "") -> ssh.Slice:
        metadata = {"ssh-keys": f"taetpu:{ssh_config.public_key()}", "startup-script": startup, "zone": ZONE}
        names = [f"{stack}-w{number}" for number in range(workers)]
        for number, name in enumerate(names):
            hosts.boot(name, number, metadata)
        there = tuple(Worker("127.0.0.1", instance=name) for name in names)
        machine = Machine(stack, ZONE, "gce", "v6e-8", State.READY, workers=there, created=created)
        return ssh.Slice.of(machine, "taetpu", SETTINGS)

    return made


def until(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for something to hold."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.05)


SPEC = Spec("t", resolve("v6e-8"), "gce", owner="me")
QUICK = Waits(poll=0.02, ready=30.0)


def of(workers: int) -> Spec:
    """A spec of so many hosts."""
    return replace(SPEC, tpu=resolve(f"v4-{8 * workers}"))


@pytest.fixture
def ready(boot: Boot, hosts: LoopbackHosts) -> Boot:
    """`ready(workers=1) -> Slice`: hosts on which jobs can run; the package is not brought there."""

    def made(workers: int = 1) -> ssh.Slice:
        spec = replace(of(workers), idle_minutes=None)
        slice = boot(workers, startup=vm.startup(spec, SETTINGS))
        machines = [hosts.find(worker.instance) for worker in slice.workers]
        until(lambda: all(machine and (machine.private / "ready").exists() for machine in machines))
        return slice

    return made
