"""`up` and `down` are killed at calls that reach Google, and repeated.

Afterwards there is exactly one machine, made once, or none. Calls before the first change leave nothing behind: the
command is killed at several of them in turn before it is repeated to its end.
"""

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.cloud.commands import CREATES, DOWN, TABLES, UP, ZONE, start, succeed
from tests.fake_google.cloud import FakeGoogle
from tests.fake_google.hosts import parents
from tests.fake_google.world import Call, Cut, Moment

from taetpu.cloud import gcloud, lifecycle, zone_rates
from taetpu.cloud.machine_api import Spec
from taetpu.cloud.settings import read_settings
from taetpu.core.chips import parse_slice

pytestmark = pytest.mark.slow
CASES = [
    pytest.param("tpu-api", False, id="some"),
    *(pytest.param(api, True, id=f"{api}-every", marks=pytest.mark.nightly) for api in ("tpu-api", "gce")),
]
"""An API, and whether to kill the command at every call instead of at the most different ones."""


class Killer:
    """Kills a process at its n-th call.

    Args:
        changing: count from the first call that changes something, not from the first of all: how often the state is
            read before that differs from time to time.
        way: `before` and `after`: with its gcloud, before the call is answered, or when what it asks for is done.
            `alone`: without its gcloud, which goes on.
    """

    def __init__(self, cloud: FakeGoogle, number: int, way: str, *, changing: bool):
        self.cloud, self.number, self.way, self.seen = cloud, number, way, 0
        self.counting = not changing
        self.process: subprocess.Popen[str] | None = None
        self.struck: Call | None = None

    def __call__(self, call: Call, moment: Moment) -> None:
        if call.service == "fake" or self.struck or not self.process:
            return
        self.counting = self.counting or call.changes
        self.seen += self.counting and moment == "before"
        if self.seen < self.number or moment != ("after" if self.way == "after" else "before"):
            return
        self.struck = call
        below = [pid for pid, parent in parents().items() if parent == self.process.pid]
        self.process.kill()
        if self.way != "alone":
            for pid in below:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            raise Cut


def strike(
    cloud: FakeGoogle, words: Sequence[str], number: int, way: str = "before", *, changing: bool = False
) -> Call | None:
    """Run a command that is killed at its n-th call; return the call, or None if the command ended before."""
    killer = Killer(cloud, number, way, changing=changing)
    with cloud.world.lock:
        killer.process = start(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cloud.world.watch = killer
    code = killer.process.wait()
    cloud.world.watch = lambda call, moment: None
    assert code == (-signal.SIGKILL if killer.struck else 0)
    return killer.struck


@pytest.mark.parametrize(("api", "every"), CASES)
def test_up_after_a_kill_makes_one_machine(google: FakeGoogle, api: str, every: bool) -> None:
    succeed(*UP[api])
    before = before_changes(google)
    for number in range(1, before + 1) if every else (before,):
        clear(google)
        assert strike(google, UP[api], number)
        assert google.left() == []
    finish_up(google, api)
    for way in ("before", "after", "alone") if every else ("after",):
        struck = strike(google, UP[api], 1, way, changing=True)
        assert struck
        assert struck.name == CREATES[api]
        finish_up(google, api)
    number = 2
    while strike(google, UP[api], number, changing=True):
        finish_up(google, api)
        number += 1 if every else 5
    finish_up(google, api)
    assert number > 2


def before_changes(cloud: FakeGoogle) -> int:
    """Return the number of calls before the first that changed something."""
    number = [call.changes for call in cloud.world.calls if call.service != "fake"].index(True)
    assert number > 2
    return number


def finish_up(cloud: FakeGoogle, api: str) -> None:
    """Repeat `up` and check that exactly one machine exists and was made once; then delete it."""
    succeed(*UP[api])
    assert names(cloud, api) == ["box"]
    assert cloud.hosts.booted == ["box"]
    assert json.loads(succeed("tpu", "list", "--json"))[0]["state"] == "ready"
    clear(cloud)


@pytest.mark.parametrize(("api", "every"), CASES)
def test_down_after_a_kill_deletes_the_machine(google: FakeGoogle, api: str, every: bool) -> None:
    make(google, api)
    google.world.calls.clear()
    succeed(*DOWN)
    before = before_changes(google)
    make(google, api)
    for number in range(1, before + 1) if every else (before,):
        assert strike(google, DOWN, number)
        assert names(google, api) == ["box"]
    for way in ("before", "after", "alone") if every else ("after",):
        make(google, api)
        struck = strike(google, DOWN, 1, way, changing=True)
        assert struck
        finish_down(google)
    number = 2
    make(google, api)
    while strike(google, DOWN, number, changing=True):
        finish_down(google)
        make(google, api)
        number += 1 if every else 5
    assert google.left() == []
    assert number > 2


def test_down_waits_for_the_gcloud_of_an_up_that_was_killed(google: FakeGoogle) -> None:
    """The machine is listed only later: until then, `down` must not report that none exists."""
    make(google, "gce")
    table = google.world.table(TABLES["gce"])
    asked_for = dict(table)
    table.clear()
    with lifecycle.name_lock("box", fcntl.LOCK_SH):  # as gcloud holds it while it runs
        process = start(DOWN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        waiting = process.stdout.readline()
        assert "waiting" in waiting
        assert waiting.endswith("command for box\n")
        table.update(asked_for)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert "deleted box" in said
    assert google.left() == []


def finish_down(cloud: FakeGoogle) -> None:
    """Repeat `down` and check that nothing is left."""
    succeed(*DOWN)
    assert cloud.left() == []


def make(cloud: FakeGoogle, api: str) -> None:
    """Make the machine, unless it exists, without waiting for its hosts."""
    if not names(cloud, api):
        tpu = parse_slice("v6e-8")
        spec = Spec("box", tpu, api, "me", 4.0, zone_rates.runtime_for(tpu, api))
        settings = read_settings()
        gcloud.use_project(settings.project)
        lifecycle.make(spec, [ZONE], settings, lambda line: None)


def names(cloud: FakeGoogle, api: str) -> list[str]:
    """Return the names of existing machines, each with its request."""

    def listed(table: str) -> list[str]:
        keys = cloud.world.table(table)
        return sorted(key[-1] if isinstance(key, tuple) else key.rpartition("/")[2] for key in keys)

    if api == "tpu-api":
        assert listed("tpu.queuedResources") == listed("tpu.nodes")
    return listed(TABLES[api])


def clear(cloud: FakeGoogle) -> None:
    """Remove all machines from the fake."""
    cloud.hosts.close()
    cloud.hosts.booted.clear()
    for name in list(cloud.world.resources):
        if name.startswith(("tpu.", "compute.")):
            cloud.world.table(name).clear()
