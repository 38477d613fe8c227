"""Fixtures of the fake Google Cloud: Cloud Storage alone, or all of it with machines that boot."""

import gc
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fake_google import storage
from tests.fake_google.cloud import FakeGoogle, running
from tests.fake_google.hosts import executable
from tests.fake_google.server import Server
from tests.fake_google.world import World

from taetpu.core.tempdir import process_folder
from taetpu.store import gcs_client
from taetpu.store.gcs import open_bucket

TAKEN = "someone-elses"
BUCKET = "studies"
FOREIGN = ("TAETPU_BUCKET", "TAETPU_ZONES", "TAETPU_REGION", "GOOGLE_APPLICATION_CREDENTIALS")
"""The user's variables that would affect the tests."""


def ignore_unclosed() -> None:
    """Google's library lets go of a connection without closing it when a download on it is refused.

    Until the test ends, where pytest puts its filters back. (Its marks are read before a test's fixtures are made.)
    """
    warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
    warnings.filterwarnings("ignore", "Exception ignored in. <socket", pytest.PytestUnraisableExceptionWarning)


def forget_buckets() -> None:
    """Clear this process's caches of buckets after the test."""
    open_bucket.cache_clear()
    process_folder.cache_clear()
    with warnings.catch_warnings(action="ignore"):
        gc.collect()
    gc.freeze()  # what is left stays: looking through it again takes longer than most tests


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bucket_server(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Direct this process and its children to a fake Cloud Storage, in which another owner has the bucket `TAKEN`."""
    ignore_unclosed()
    with Server(world, storage.routes(world, [TAKEN])) as server:
        for name in FOREIGN:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
        monkeypatch.setenv("TAETPU_STORAGE_PATIENCE", "2")
        monkeypatch.setattr(gcs_client, "RETRY_SECONDS", 2.0)
        yield server
    forget_buckets()


@pytest.fixture
def gs_root(world: World, bucket_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a folder in an empty bucket, `gs://studies/root`."""
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    make_bucket(world)
    return f"gs://{BUCKET}/root"


@contextmanager
def google_cloud(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    """Run the fake cloud, with machines that boot and an empty bucket, for this process and its children."""
    if not (shutil.which("gcloud") and executable("sshd") and shutil.which("rsync")):
        pytest.skip("gcloud, OpenSSH's server or rsync is not installed")
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)
    with running(folder / "google") as cloud:
        state = {"XDG_STATE_HOME": str(folder / "state"), "TAETPU_CACHE": str(folder / "cache")}
        for name, value in {**cloud.environment(), **state, "TAETPU_OWNER": "me"}.items():
            monkeypatch.setenv(name, value)
        make_bucket(cloud.world)
        yield cloud
    forget_buckets()


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    """Return a fake cloud for one test; see `google_cloud`."""
    ignore_unclosed()
    with google_cloud(tmp_path, monkeypatch) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def shared_google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGoogle]:
    """Return a fake cloud for all tests of a module, which must not change it."""
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        google_cloud(tmp_path_factory.mktemp("shared"), monkeypatch) as cloud,
    ):
        yield cloud


def make_bucket(world: World) -> None:
    """Make the empty bucket `studies`."""
    gcs_client.storage_client().bucket(BUCKET).create(location="us-east5")
    world.calls.clear()
