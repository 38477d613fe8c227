"""Claims on a bucket: one holder, freed by its end whatever that is, judged by the server's clock alone."""

import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fake_google.world import Fault, Refused, World

from taetpu.core import tempdir as scratches
from taetpu.core.errors import UserError
from taetpu.core.tempdir import is_abandoned, process_folder, process_lock, remove_abandoned
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
    """A claim that is about to be taken by hand."""
    return made(store)


def made(store: GcsStore, host: str = "here") -> lease.Lease:
    about: dict[str, str | int] = {"pid": 1, "host": host, "user": "me", "since": "2026-01-01T00:00:00+00:00"}
    return lease.Lease(lambda: store._blob("s/lock"), store._address("s/lock"), store.retry, about)


def from_elsewhere(world: World, **about: str) -> None:
    """The lease as a process of another machine wrote it."""
    from dataclasses import replace

    found = world.table("storage.objects")[LOCK]
    data = json.loads(found.data) | {"boot": "another", "host": "tpu-vm", **about}
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
    """A lease whose holder, on another machine, was killed."""
    holder = start(HOLDS, gs_root)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    holder.kill()
    holder.communicate()
    from_elsewhere(world)


def test_a_killed_holder_elsewhere_is_waited_for_by_the_server_s_clock(store: GcsStore, killed: None, world: World):
    world.skew = lease.LEASE_SECONDS - 20
    with (
        pytest.raises(UserError, match=r"is held by pid \d+ on tpu-vm \(user .*last renewed 4\d s ago") as caught,
        store.claim("s/lock"),
    ):
        pass
    assert caught.value.file == store.where("s/lock")
    assert "if it was killed, in " in str(caught.value)
    world.skew = lease.LEASE_SECONDS + 1
    with store.claim("s/lock"):
        assert json.loads(store.read("s/lock"))["host"] != "tpu-vm"
    assert not GcsStore(store.root).exists("s/lock")


def test_who_is_patient_waits_for_a_holder_that_was_killed(
    store: GcsStore, killed: None, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """As a job does on a machine that was made in place of one which was taken away with the claim in its hands."""
    monkeypatch.setenv(lease.CLAIM_PATIENCE, "120")
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.02)
    asked = [call.name for call in world.calls].count("objects.patch")

    def time_goes_by() -> None:
        until(lambda: [call.name for call in world.calls].count("objects.patch") >= asked + 3)
        world.skew = lease.LEASE_SECONDS + 1

    passing = threading.Thread(target=time_goes_by)
    passing.start()
    with store.claim("s/lock"):
        assert json.loads(store.read("s/lock"))["host"] != "tpu-vm"
    passing.join()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1, "it is said once"
    assert said[0].startswith("waiting for a claim: the study is held by pid ")


def test_patience_has_an_end(store: GcsStore, killed: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(lease.CLAIM_PATIENCE, "0.1")
    monkeypatch.setattr(lease, "POLL_SECONDS", 0.02)
    with pytest.raises(UserError, match="the study is held by pid "), store.claim("s/lock"):
        pass


def test_local_clocks_do_not_matter(store: GcsStore, killed: None, monkeypatch: pytest.MonkeyPatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 10 * lease.LEASE_SECONDS)  # the fake's too: both then agree
    with store.claim("s/lock"):
        pass


def test_a_killed_holder_of_this_machine_is_seen_at_once(
    gs_root: str, store: GcsStore, start: Start, monkeypatch: pytest.MonkeyPatch
):
    holder = start(HOLDS, gs_root)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    with pytest.raises(UserError, match=f"held by pid {holder.pid} on "), store.claim("s/lock"):
        pass
    holder.kill()
    holder.communicate()
    folder = Path(json.loads(store.read("s/lock"))["lock"]).parent
    (folder / "left").mkdir()
    with store.claim("s/lock"):
        assert not (folder / "left").exists()
    assert is_abandoned(folder / "lock")  # so that other claims of it are seen to be free
    monkeypatch.setattr(scratches, "LOCK_KEPT_SECONDS", -1)
    remove_abandoned()
    assert not folder.exists()


def test_every_claim_of_a_killed_process_is_free_at_once(gs_root: str, store: GcsStore, start: Start):
    """The first one that is taken removes what the process left."""
    both = HOLDS.replace('.claim("s/lock"):', '.claim("s/lock"), open_store(sys.argv[1]).claim("s/claims/p"):')
    holder = start(both, gs_root)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    holder.kill()
    holder.communicate()
    with store.claim("s/lock"), store.claim("s/claims/p"):
        pass


def test_renewals_keep_it(store: GcsStore, world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.02)
    with store.claim("s/lock"):
        first = world.table("storage.objects")[LOCK].generation
        world.skew = lease.LEASE_SECONDS + 5  # as if so much time had passed
        until(lambda: world.table("storage.objects")[LOCK].generation > first)
        with pytest.raises(UserError, match="last renewed 0 s ago"), GcsStore(store.root).claim("s/lock"):
            pass
    assert LOCK not in world.table("storage.objects")


def test_a_grant_whose_answer_was_lost_is_a_grant(store: GcsStore, world: World):
    world.faults.append(Fault("objects.insert", None, moment="after"))
    with store.claim("s/lock"):
        store.write("s/a", b"mine")
    assert LOCK not in world.table("storage.objects")


def test_a_takeover_whose_answer_was_lost_is_one(store: GcsStore, killed: None, world: World):
    world.skew = lease.LEASE_SECONDS + 1
    world.faults.append(Fault("objects.insert", None, moment="after", skip=0))
    world.faults.append(Fault("objects.insert", None, moment="after", skip=1))
    with store.claim("s/lock"):
        store.write("s/a", b"mine")


def test_a_renewal_whose_answer_was_lost_keeps_it(held: lease.Lease, world: World):
    held._acquire()
    world.faults.append(Fault("objects.insert", None, moment="after"))
    with pytest.raises(Exception, match="Connection"):
        held._renew(None)
    held._renew(None)
    held.check()
    assert held.generation == world.table("storage.objects")[LOCK].generation


def test_a_holder_that_was_cut_off_writes_nothing_once_another_holds_it(
    store: GcsStore, world: World, monkeypatch: pytest.MonkeyPatch
):
    """A laptop that slept, say: it wakes after its lease was taken over."""
    clock = [0.0]
    monkeypatch.setattr(lease, "_now", lambda: clock[0])
    with store.claim("s/lock"):
        store.write("s/a", b"1")
        world.skew = lease.LEASE_SECONDS + 1
        from_elsewhere(world, token="other")
        made(store, "another-vm")._acquire()
        clock[0] = lease.LEASE_SECONDS + 1
        for change in (lambda: store.write("s/b", b"2"), lambda: store.delete("s/a"), lambda: store.save_folder("s/c")):
            with pytest.raises(UserError, match=r"has lost its claim: .* pid 1 on another-vm .* has taken it over"):
                change()
        store.write("t/b", b"2")  # another study's
    assert store.list("s") == ["s/a", "s/lock"]
    assert json.loads(store.read("s/lock"))["host"] == "another-vm"  # it is not let go by who has lost it


def test_a_holder_that_was_cut_off_goes_on_where_nobody_came(store: GcsStore, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(lease, "_now", lambda: clock[0])
    with store.claim("s/lock"):
        clock[0] = 10 * lease.LEASE_SECONDS
        store.write("s/b", b"2")
    assert store.list("s") == ["s/b"]


def test_a_holder_without_a_connection_does_not_go_on_blindly(
    store: GcsStore, world: World, monkeypatch: pytest.MonkeyPatch
):
    clock = [0.0]
    monkeypatch.setattr(lease, "_now", lambda: clock[0])
    with store.claim("s/lock"):
        clock[0] = lease.CHECK_SECONDS + 1
        world.faults.append(Fault("*", Refused(14, "gone"), times=10**6))
        with pytest.raises(StorageUnavailable, match="cannot renew the claim gs://studies/root/s/lock"):
            store.write("s/b", b"2")
        world.faults.clear()
        store.write("s/b", b"2")


def test_a_lock_that_was_deleted_by_hand_is_lost(held: lease.Lease, store: GcsStore):
    held._acquire()
    store.delete("s/lock")
    held._renew(None)
    with pytest.raises(UserError, match="deleted the lock"):
        held.check()


def test_of_many_at_once_one_gets_it(store: GcsStore, killed: None, world: World):
    world.skew = lease.LEASE_SECONDS + 1
    got, refused, together = [], [], threading.Barrier(6)

    def claim() -> None:
        mine = made(store)
        together.wait()
        try:
            mine._acquire()
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


def test_a_lock_of_something_else_is_held_by_nobody_known(store: GcsStore):
    store.write("s/lock", b"what is this")
    with (
        pytest.raises(UserError, match="held by a process that has just started, last renewed 0 s ago"),
        store.claim("s/lock"),
    ):
        pass


def test_one_may_not_claim(store: GcsStore, world: World):
    world.faults.append(Fault("objects.insert", Refused(7, "storage.objects.create denied")))
    with (
        pytest.raises(BucketError, match=r"cannot claim gs://studies/root/s/lock: storage\.objects\.create denied"),
        store.claim("s/lock"),
    ):
        pass
    assert world.table("storage.objects") == {}


def test_an_end_without_a_connection_leaves_a_lease_that_ends_by_itself(store: GcsStore, world: World):
    with store.claim("s/lock"):
        world.faults.append(Fault("*", Refused(14, "gone"), times=10**6))
    world.faults.clear()
    from_elsewhere(world)
    world.skew = lease.LEASE_SECONDS + 1
    with GcsStore(store.root).claim("s/lock"):
        pass


def test_a_living_process_is_not_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path))
    process_folder.cache_clear()
    assert not is_abandoned(process_lock())
    assert not is_abandoned(tmp_path / "none")
    remove_abandoned()
    assert process_lock().exists()
    process_folder.cache_clear()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)
