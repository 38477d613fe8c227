"""A fake cloud that is only looked at: quotas, prices, a project and its networks; and a backend without a network."""

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from taetpu.cloud.backends.base import Machine, State
from taetpu.cloud.clients import Clients
from taetpu.cloud.errors import CloudError, Conflict, Stockout, Transient, Unknown
from taetpu.cloud.fakes import gce, networks, prices, projects, quotas, tpu_rest
from taetpu.cloud.fakes.networks import Networks
from taetpu.cloud.fakes.projects import Project
from taetpu.cloud.fakes.server import Request, Route, Server
from taetpu.cloud.fakes.tpu import Tpu
from taetpu.cloud.fakes.world import Cut, Refused, World
from taetpu.cloud.spec import BackendName, Spec
from taetpu.core.chips import Slice


@dataclass
class Looked:
    """What a test sets, and the clients that look at it."""

    world: World
    clients: Clients
    address: str
    infos: list
    skus: list
    project: Project
    networks: Networks
    buckets: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looked]:
    """A server of everything that is looked up, with no quota, price or machine in it."""
    world, infos, skus, project, own = World(), [], [], Project(), Networks()
    buckets: dict[str, str] = {}

    def bucket(request: Request) -> dict[str, str]:
        name = request.parts["name"]
        if name not in buckets:
            raise Refused(5, "The specified bucket does not exist.", "notFound")
        if not buckets[name]:
            raise Refused(7, "you@here does not have storage.buckets.get access", "forbidden")
        return {"kind": "storage#bucket", "name": name, "location": buckets[name]}

    routes = [
        *quotas.routes(world, infos),
        *prices.routes(world, skus),
        *projects.routes(world, project),
        *networks.routes(world, own),
        Route("storage", "buckets.get", "GET", r"/storage/v1/b/(?P<name>[^/]+)", bucket),
        *gce.routes(world),
        *tpu_rest.routes(Tpu(world)),
    ]
    with Server(world, routes) as server:
        monkeypatch.setenv("TAETPU_FAKE_CLOUD", server.address)
        monkeypatch.delenv("TAETPU_FAKE_CLOUD_GRPC", raising=False)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
        yield Looked(world, Clients(world.project), server.address, infos, skus, project, own, buckets)


def programs(folder: Path, **texts: str) -> None:
    """Programs of a few lines of shell, to stand on the path."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh, rsync and gcloud are there, and quick."""
    programs(
        tmp_path / "bin", ssh="echo OpenSSH_9.2 >&2", rsync="echo 'rsync  version 3'; echo more", gcloud="echo SDK 5"
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


@dataclass
class Memory:
    """A backend that keeps machines in a world's table; the world's faults strike its calls `create`, `get`, `delete`.

    Attributes:
        press_at: the call, counted from 1, during which Ctrl-C is pressed.
    """

    world: World
    name: BackendName
    listed: list[str]
    fate: State = State.READY
    press_at: int = 0
    count: int = 0
    specs: list[Spec] = field(default_factory=list)
    startups: list[str] = field(default_factory=list)

    def zones(self, tpu: Slice) -> list[str]:
        return self._call("zones", "", False, lambda: sorted(self.listed))

    def create(self, spec: Spec, zone: str, startup: str, ssh_key: str) -> "Asked":
        def make() -> Asked:
            if self._key(spec.stack, zone) in self._there:
                raise Conflict(f"{spec.stack} is there")
            self.specs.append(spec)
            self.startups.append(startup)
            kept = Machine(spec.stack, zone, self.name, spec.tpu.name, State.CREATING, labels=spec.labels(), spot=True)
            self._there[self._key(spec.stack, zone)] = kept
            become = replace(kept, state=self.fate, detail=self.fate.name)
            return Asked(self, zone, "create", lambda: self._there.update({self._key(spec.stack, zone): become}))

        return self._call("create", zone, True, make)

    def get(self, name: str, zone: str) -> Machine | None:
        return self._call("get", zone, False, lambda: self._there.get(self._key(name, zone)))

    def delete(self, name: str, zone: str) -> "Asked":
        gone = Asked(self, zone, "delete", lambda: self._there.pop(self._key(name, zone), None))
        return self._call("delete", zone, True, lambda: gone)

    def parts(self) -> Sequence[str]:
        return []

    def list(self) -> Sequence[Machine]:
        return self._call("list", "", False, lambda: [*self._there.values()])

    @property
    def _there(self) -> dict[str, Machine]:
        return self.world.table(f"{self.name} machines")

    def _key(self, name: str, zone: str) -> str:
        return f"{zone}/{name}"

    def _call(self, name: str, zone: str, changes: bool, answer):
        self.count += 1
        if self.count == self.press_at:
            os.kill(os.getpid(), signal.SIGINT)
        try:
            return self.world.call(self.name, name, zone, changes, answer)
        except Cut:
            raise Unknown(f"{zone} gave no answer") from None
        except Refused as refused:
            raise _error(refused) from None


class Asked:
    """An operation of `Memory`, done when it is asked for the second time."""

    def __init__(self, backend: Memory, zone: str, call: str, finish):
        self.pending = backend.world.operation(call, zone, finish)

    def done(self) -> bool:
        over = self.pending.poll()
        if over and self.pending.error:
            raise _error(self.pending.error)
        return over


def _error(refused: Refused) -> CloudError:
    kind = {8: Stockout, 14: Transient}.get(refused.code, CloudError)
    return kind(refused.message)
