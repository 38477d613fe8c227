"""Fixtures of a cloud that is not there: one world, and one server for the services that a test needs."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cloud.machines import skip_without_machines

from taetpu.cloud import ssh
from taetpu.cloud.clients import FAKE, Clients
from taetpu.cloud.fakes import everything, storage
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.world import World
from taetpu.core.scratch import scratch
from taetpu.store.gcs import _opened

TAKEN = "someone-elses"
BUCKET = "studies"
FOREIGN = ("TAETPU_BUCKET", "TAETPU_ZONES", "TAETPU_REGION", "GOOGLE_APPLICATION_CREDENTIALS")
"""Variables of who runs the tests, which would hold in them."""


def unclosed(request: pytest.FixtureRequest) -> None:
    """Google's library lets go of a connection without closing it when a download on it is refused."""
    request.node.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
    unraisable = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    request.node.add_marker(pytest.mark.filterwarnings(unraisable))


def let_go() -> None:
    """Nothing that this process knows of a bucket outlives the test."""
    _opened.cache_clear()
    scratch.cache_clear()
    with warnings.catch_warnings(action="ignore"):
        gc.collect()
    gc.freeze()  # what is left stays: looking through it again takes longer than most tests


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bucket_server(world: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Cloud Storage, where the bucket `TAKEN` belongs to others; this process and those that it starts go there."""
    unclosed(request)
    with Server(world, storage.routes(world, [TAKEN])) as server:
        for name in FOREIGN:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(FAKE, server.address)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        monkeypatch.setenv("TAETPU_PROJECT", world.project)
        monkeypatch.setenv("TAETPU_OWNER", "me")
        yield server
    let_go()


@pytest.fixture
def gs_root(world: World, bucket_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in an empty bucket, `gs://studies/root`."""
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    Clients(world.project).storage.bucket(BUCKET).create(location="us-east5")
    world.calls.clear()
    return f"gs://{BUCKET}/root"


@pytest.fixture
def fake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[everything.FakeCloud]:
    """All of a cloud, with machines that really boot and an empty bucket; this process and those it starts go there."""
    skip_without_machines()
    unclosed(request)
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    with everything.running(tmp_path / "fake-cloud") as cloud:
        for name, value in {**cloud.environment(), "TAETPU_OWNER": "me"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
        Clients(cloud.world.project).storage.bucket(BUCKET).create(location="us-east5")
        cloud.world.calls.clear()
        yield cloud
        ssh.forget("*")
    let_go()
