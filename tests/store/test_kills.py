"""Killed processes leave old or new contents, release their claims, and their unfinished files are removed."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.suites import by_default

from taetpu.core.atomic_files import UNFINISHED
from taetpu.core.errors import UserError
from taetpu.store.backend import LocalStore, Store
from taetpu.store.lease import LEASE_SECONDS

Start = Callable[..., subprocess.Popen[str]]

DIES_AT_A_MOMENT = """
import os, signal, sys
from taetpu.store.backend import open_store
store, moment, seen = open_store(sys.argv[1]), int(sys.argv[2]), 0
for key in ("s/state", "s/pack/a", "s/pack/b"):
    store.write(key, b"old" * 1000)
def die(event, arguments):
    global seen
    if event == "open" or event.startswith(("os.", "fcntl.", "shutil.")):
        seen += 1
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
store.write("s/state", b"new" * 1000, replace=True)
store.write("s/once", b"new" * 1000)
store.delete("s/pack")
"""


@pytest.mark.slow
def test_contents_are_old_or_new_after_a_kill_before_any_system_call(tmp_path: Path, start: Start):
    """One process dies before its first open, lock, link, rename or removal, another before its second, and so on."""
    seen, leftovers = set(), 0
    for moment in range(1, 100):
        store = LocalStore(tmp_path / str(moment))
        process = start(DIES_AT_A_MOMENT, store.root, moment)
        said = process.communicate()[0]
        keys = store.list("")
        state = store.read("s/state")[:3]
        for key in keys:
            assert store.read(key) in (b"old" * 1000, b"new" * 1000)
        seen.add((state, *keys))
        leftovers += len(list(store.root.rglob(UNFINISHED + "*")))
        with store.claim("s/lock"):
            assert not list(store.root.rglob(UNFINISHED + "*"))
        assert store.list("s") == sorted([*keys, "s/lock"])
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said
    packs = ("s/pack/a", "s/pack/b")
    assert seen == {
        (b"old", *packs, "s/state"),
        (b"new", *packs, "s/state"),
        (b"new", "s/once", *packs, "s/state"),
        (b"new", "s/once", "s/state"),
    }
    assert leftovers > 3, "no kill fell into the middle of anything"


WRITES_FOREVER = """
import itertools, sys
from taetpu.store.backend import open_store
store = open_store(sys.argv[1])
for n in itertools.count():
    store.write("s/state", b"%8d" % n * 250_000, replace=True)
    store.write(f"s/once/{n}", b"%8d" % n * 1000)
    print(n, flush=True)
"""


@pytest.mark.parametrize("delay", by_default([0.001, 0.004, 0.013], 0.004))
def test_contents_are_old_or_new_after_a_kill_during_a_large_write(store: Store, root: str, start: Start, delay: float):
    process = start(WRITES_FOREVER, root)
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    time.sleep(delay)
    process.kill()
    said = process.communicate()[0].split()
    confirmed = int(said[-1]) if said else 0
    state = store.read("s/state")
    assert state == state[:8] * 250_000
    assert int(state[:8]) in (confirmed, confirmed + 1)
    for key in store.list("s/once"):
        assert store.read(key) == b"%8d" % int(key.rpartition("/")[2]) * 1000
    assert {f"s/once/{n}" for n in range(confirmed + 1)} <= set(store.list("s/once"))


HOLDS = """
import sys, time
from taetpu.core.errors import UserError
from taetpu.store.backend import open_store
try:
    with open_store(sys.argv[1]).claim("s/lock"):
        print("mine", flush=True)
        time.sleep(60 if sys.argv[2] == "wait" else 0)
except UserError as error:
    print(error.problem)
"""


@pytest.mark.slow
def test_claim_names_its_holder_and_ends_with_it(store: Store, root: str, start: Start, request: pytest.FixtureRequest):
    holder = start(HOLDS, root, "wait")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "mine\n"
    with pytest.raises(UserError) as caught, store.claim("s/lock"):
        pass
    assert f"held by pid {holder.pid} on {socket.gethostname()} (user " in caught.value.problem
    assert ") since 20" in caught.value.problem
    assert store.where("s/lock") in str(caught.value)
    assert f"held by pid {holder.pid} on" in start(HOLDS, root, "go").communicate()[0]
    holder.kill()
    holder.communicate()
    if root.startswith("gs://"):  # a lease expires
        request.getfixturevalue("world").skew = LEASE_SECONDS + 1
    with store.claim("s/lock"):
        assert f"held by pid {os.getpid()} on" in start(HOLDS, root, "go").communicate()[0]
    assert start(HOLDS, root, "go").communicate()[0] == "mine\n"


def test_error_releases_a_claim(store: Store):
    with pytest.raises(ZeroDivisionError), store.claim("s/lock"):
        _ = 1 / 0
    with store.claim("s/lock"):
        pass


def test_claim_holds_within_a_process_and_only_for_its_key(store: Store):
    with store.claim("s/lock"):
        with pytest.raises(UserError, match=f"pid {os.getpid()}"), store.claim("s/lock"):
            pass
        with store.claim("t/lock"):
            pass


WAITS_BEFORE_LINKING = """
import os, sys, time
from taetpu.store.backend import open_store
def wait(event, arguments):
    if event == "os.link":
        print("writing", flush=True)
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
sys.addaudithook(wait)
open_store(sys.argv[1]).write("s/report", b"whole")
"""


def test_claim_keeps_unfinished_files_of_running_processes(local: LocalStore, start: Start, tmp_path: Path):
    """Only files of dead processes are removed, since another process may write a report at the same time."""
    writer = start(WAITS_BEFORE_LINKING, local.root, tmp_path / "go")
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    with local.claim("s/lock"):
        assert local.list("s") == ["s/lock"]
    (tmp_path / "go").touch()
    assert (writer.communicate()[0], writer.returncode) == ("", 0)
    assert local.read("s/report") == b"whole"
