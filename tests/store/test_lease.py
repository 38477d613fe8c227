"""Claims in a bucket have one holder, end with it, and expire by the server's clock."""

import json
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.fake_google.world import Fault, Refused, World

from taetpu.core.errors import UserError
from taetpu.store import lease
from taetpu.store.backend import open_store
from taetpu.store.gcs import GcsStore
from taetpu.store.gcs_client import BucketError, StorageUnavailable

Start = Callable[..., subprocess.Popen[str]]
LOCK = "studies/root/s/lock"


@pytest.fixture
def store(gs_root: str) -> GcsStore:
    opened = open_store(gs_root)
    assert isinstance(opened, GcsStore)
    return opened


@pytest.fixture
def held(store: GcsStore) -> lease.Lease:
    """Return a lease that is not acquired yet."""
    return made(store)


def made(store: GcsStore, host: str = "here") -> lease.Lease:
    about: dict[str, str | int] = {"pid": 1, "host": host, "user": "me", "since": "2026-01-01T00:00:00+00:00"}
    return lease.Lease(lambda: store.bucket.blob("root/s/lock"), store.root / "s/lock", store.retry, about)


def set_holder(world: World, **about: str) -> None:
    """Change the lease's description of its holder."""
    found = world.table("storage.objects")[LOCK]
    data = json.loads(found.data) | {"host": "tpu-vm", **about}
    world.table("storage.objects")[LOCK] = replace(found, data=json.dumps(data).encode())


HOLDS = """
import sys, time
from taetpu.store.backend import open_store
with open_store(sys.argv[1]).claim("s/lock"):
    print("mine", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def killed(gs_root: str, start: Start, world: World) -> None:
    """Leave a lease whose holder, on another machine, was killed."""
    holder = start(HOLDS, gs_root)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    holder.kill()
    holder.communicate()
    set_holder(world)


def test_lease_of_a_killed_process_expires_by_the_clock_of_the_server(store: GcsStore, killed: None, world: World):
    world.skew = lease.LEASE_SECONDS - 20
    with (
        pytest.raises(UserError, match=r"held by pid \d+ on tpu-vm \(user .*last renewed 4\d s ago") as caught,
        store.claim("s/lock"),
    ):
        pass
    assert caught.value.file == store.where("s/lock")
    assert "its claim expires" in str(caught.value)
    world.skew = lease.LEASE_SECONDS + 1
    with store.claim("s/lock"):
        assert json.loads(store.read("s/lock"))["host"] != "tpu-vm"
    assert not GcsStore(store.root).exists("s/lock")


def test_local_clocks_do_not_matter(store: GcsStore, killed: None, monkeypatch: pytest.MonkeyPatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 10 * lease.LEASE_SECONDS)  # the fake's too: both then agree
    with store.claim("s/lock"):
        pass


def test_renewed_lease_does_not_expire(store: GcsStore, world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.02)
    with store.claim("s/lock"):
        first = world.table("storage.objects")[LOCK].generation
        world.skew = lease.LEASE_SECONDS + 5  # as if so much time had passed
        until(lambda: world.table("storage.objects")[LOCK].generation > first)
        with pytest.raises(UserError, match="last renewed 0 s ago"), GcsStore(store.root).claim("s/lock"):
            pass
    assert LOCK not in world.table("storage.objects")


def test_lease_is_held_if_the_response_was_lost(store: GcsStore, world: World):
    world.faults.append(Fault("objects.insert", None, moment="after"))
    with store.claim("s/lock"):
        store.write("s/a", b"mine")
    assert LOCK not in world.table("storage.objects")


def test_expired_lease_is_taken_over_if_the_response_was_lost(store: GcsStore, killed: None, world: World):
    world.skew = lease.LEASE_SECONDS + 1
    world.faults.append(Fault("objects.insert", None, moment="after", skip=0))
    world.faults.append(Fault("objects.insert", None, moment="after", skip=1))
    with store.claim("s/lock"):
        store.write("s/a", b"mine")


def test_lease_is_renewed_if_the_response_was_lost(held: lease.Lease, world: World):
    held.acquire()
    world.faults.append(Fault("objects.insert", None, moment="after"))
    with pytest.raises(Exception, match="Connection"):
        held.renew(None)
    held.renew(None)
    held.check()
    assert held.generation == world.table("storage.objects")[LOCK].generation


def test_disconnected_holder_writes_nothing_after_a_takeover(
    store: GcsStore, world: World, monkeypatch: pytest.MonkeyPatch
):
    """For example, a laptop wakes up after another process has taken over its lease."""
    clock = [0.0]
    monkeypatch.setattr(lease, "awake_seconds", lambda: clock[0])
    with store.claim("s/lock"):
        store.write("s/a", b"1")
        world.skew = lease.LEASE_SECONDS + 1
        set_holder(world, token="other")
        made(store, "another-vm").acquire()
        clock[0] = lease.LEASE_SECONDS + 1
        for change in (lambda: store.write("s/b", b"2"), lambda: store.delete("s/a"), lambda: store.save_folder("s/c")):
            with pytest.raises(UserError, match=r"lost its claim: .* pid 1 on another-vm .* taken .*over"):
                change()
        store.write("t/b", b"2")  # another study's
    assert store.list("s") == ["s/a", "s/lock"]
    assert json.loads(store.read("s/lock"))["host"] == "another-vm"  # it is not let go by who has lost it


def test_disconnected_holder_continues_without_a_takeover(store: GcsStore, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(lease, "awake_seconds", lambda: clock[0])
    with store.claim("s/lock"):
        clock[0] = 10 * lease.LEASE_SECONDS
        store.write("s/b", b"2")
    assert store.list("s") == ["s/b"]


@pytest.mark.slow
def test_holder_without_a_connection_does_not_write(store: GcsStore, world: World, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(lease, "awake_seconds", lambda: clock[0])
    with store.claim("s/lock"):
        clock[0] = lease.CHECK_SECONDS + 1
        world.faults.append(Fault("*", Refused(14, "gone"), times=10**6))
        with pytest.raises(StorageUnavailable, match=r"cannot renew .* gs://studies/root/s/lock"):
            store.write("s/b", b"2")
        world.faults.clear()
        store.write("s/b", b"2")


def test_deleted_lease_is_lost(held: lease.Lease, store: GcsStore):
    held.acquire()
    store.delete("s/lock")
    held.renew(None)
    with pytest.raises(UserError, match="deleted its lease"):
        held.check()


def test_one_of_several_concurrent_processes_takes_an_expired_lease(store: GcsStore, killed: None, world: World):
    world.skew = lease.LEASE_SECONDS + 1
    got, refused, together = [], [], threading.Barrier(6)

    def claim() -> None:
        mine = made(store)
        together.wait()
        try:
            mine.acquire()
        except UserError as error:
            refused.append(error.problem)
        else:
            got.append(mine)

    threads = [threading.Thread(target=claim) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 5)
    assert all("is held by" in problem for problem in refused)


def test_foreign_content_counts_as_an_unknown_holder(store: GcsStore):
    store.write("s/lock", b"what is this")
    with (
        pytest.raises(UserError, match="just started, last renewed 0 s ago"),
        store.claim("s/lock"),
    ):
        pass


def test_missing_permission_to_claim_is_reported(store: GcsStore, world: World):
    world.faults.append(Fault("objects.insert", Refused(7, "storage.objects.create denied")))
    with (
        pytest.raises(BucketError, match=r"cannot claim gs://studies/root/s/lock: storage\.objects\.create denied"),
        store.claim("s/lock"),
    ):
        pass
    assert world.table("storage.objects") == {}


@pytest.mark.slow
def test_lease_that_cannot_be_deleted_expires(store: GcsStore, world: World):
    with store.claim("s/lock"):
        world.faults.append(Fault("*", Refused(14, "gone"), times=10**6))
    world.faults.clear()
    set_holder(world)
    world.skew = lease.LEASE_SECONDS + 1
    with GcsStore(store.root).claim("s/lock"):
        pass


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)
