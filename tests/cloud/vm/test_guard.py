"""The guard of a real machine of the fakes: it deletes what the API calls the machine, and nothing too early."""

import json
import os
import subprocess
import time
from dataclasses import dataclass, field, replace

import pytest
from tests.cloud.machines import SETTINGS, ZONE, of, until
from tests.cloud.test_jobs import read, shell

from taetpu.cloud import jobs, ssh, vm
from taetpu.cloud.fakes.hosts import LoopbackHosts, Trouble
from taetpu.cloud.fakes.server import Request, Route, Server
from taetpu.cloud.fakes.world import Fault, Refused, World
from taetpu.cloud.vm.machine import guard, neighbours, processes
from taetpu.cloud.vm.machine.guard import Guard
from taetpu.cloud.vm.machine.neighbours import Neighbours


@dataclass
class Api:
    """A stand-in for both APIs' calls that the guard makes: what there is by path, and what was deleted of it."""

    world: World
    there: dict[str, dict] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def routes(self) -> list[Route]:
        path = r"/(?:v2|compute/v1)/projects/.*"
        return [Route("api", "get", "GET", path, self.get), Route("api", "delete", "DELETE", path, self.delete)]

    def get(self, request: Request) -> dict:
        self.tokens.add(request.headers.get("authorization", ""))
        if request.path not in self.there:
            raise Refused(5, f"no {request.path}")
        return self.there[request.path]

    def delete(self, request: Request) -> dict:
        self.get(request)
        force = f"?force={request.query['force']}" if "force" in request.query else ""
        self.gone.append(request.path + force)
        del self.there[request.path]
        return {}


@pytest.fixture
def api(hosts: LoopbackHosts, monkeypatch):
    world = World(hosts=hosts)
    found = Api(world)
    with Server(world, [*hosts.routes(), *found.routes()]) as server:
        monkeypatch.setenv("TAETPU_FAKE_CLOUD", server.address)
        yield found


NODE = f"/v2/projects/fake-project/locations/{ZONE}/nodes/t"
REQUEST = f"/v2/projects/fake-project/locations/{ZONE}/queuedResources/t"
INSTANCE = f"/compute/v1/projects/fake-project/zones/{ZONE}/instances/t-w0"
NEVER = {"hours": 100.0, "idle_minutes": None}


def guarded(boot, workers=1, **changed):
    """A machine with a guard of these limits; idle minutes may be a part of one here."""
    return boot(workers, startup=vm.startup(replace(of(workers), **{**NEVER, **changed}), SETTINGS))


def log(hosts, instance="t-w0"):
    path = hosts.find(instance).private / "guard.log"
    return path.read_text() if path.exists() else ""


def watching(hosts, instance="t-w0"):
    until(lambda: "on guard" in log(hosts, instance))


def test_when_its_hours_are_over_an_instance_deletes_itself(boot, hosts, api):
    api.there[INSTANCE] = {}
    begun = time.time()
    guarded(boot, backend="gce", hours=2 / 3600)
    until(lambda: api.gone)
    assert time.time() - begun >= 1  # a first boot is noted in whole seconds
    assert api.gone == [INSTANCE]
    assert api.tokens == {"Bearer fake-token"}
    assert "deleting itself: its time is over" in log(hosts)


def test_a_node_goes_with_its_queued_resource_by_force(boot, hosts, api):
    api.there |= {NODE: {}, REQUEST: {}}
    guarded(boot, backend="tpu-api", hours=0.0)
    until(lambda: api.gone)
    assert api.gone == [f"{REQUEST}?force=true"]


@pytest.mark.slow
def test_a_node_without_a_queued_resource_goes_alone(boot, hosts, api):
    api.there[NODE] = {}
    guarded(boot, backend="tpu-api", hours=0.0)
    until(lambda: api.gone)
    assert api.gone == [NODE]


def test_an_instance_of_a_group_goes_with_the_group_which_would_make_it_again(boot, hosts, api):
    group = f"projects/1234/zones/{ZONE}/instanceGroupManagers/t"
    api.there |= {INSTANCE: {}, f"/compute/v1/{group}": {}}
    real = hosts.boot
    hosts.boot = lambda name, worker, metadata: real(name, worker, metadata | {"created-by": group})
    guarded(boot, backend="gce", hours=0.0)
    until(lambda: api.gone)
    assert api.gone == [f"/compute/v1/{group}"]


def test_it_retries_until_it_is_gone(boot, hosts, api):
    api.there[INSTANCE] = {}
    refusals = [Refused(7, "Permission denied"), Refused(14, "try again"), None]
    api.world.faults += [Fault("delete", error) for error in refusals]
    guarded(boot, backend="gce", hours=0.0)
    until(lambda: api.gone)
    assert [call.name for call in api.world.calls].count("delete") >= 4
    assert "cannot delete itself, and tries again: DELETE" in log(hosts)
    assert "403" in log(hosts)


@pytest.fixture
def within(boot, hosts, monkeypatch):
    """`within(**limits) -> Guard`: the guard of a machine on which none runs, in this process, so that a test decides
    when it looks.
    """

    def made(**changed) -> Guard:
        slice = boot(startup=vm.startup(of(1), SETTINGS).replace("setsid -f", ": "))
        until(lambda: slice.run(0, ["sh", "-c", vm.LOOK]).ok)
        slice.close()
        machine = hosts.find("t-w0")
        monkeypatch.setenv(processes.MARK, machine.mark)
        monkeypatch.setenv("GCE_METADATA_HOST", machine.metadata.address)
        monkeypatch.setattr(guard, "PRIVATE", str(machine.private))
        facts = {"stack": "t", "project": "fake-project", "backend": "gce", "hosts": 1, **NEVER, **changed}
        return Guard(facts, str(machine.home))

    return made


@pytest.mark.slow
def test_a_machine_that_nobody_uses_goes(boot, hosts, api):
    api.there[INSTANCE] = {}
    guarded(boot, backend="gce", idle_minutes=1.0 / 60)
    until(lambda: api.gone)
    assert "nobody has used it for" in log(hosts)


def settled(found: Guard) -> float:
    """When somebody did something last, once nobody does anything any more."""
    now = time.time()
    found.activity.look(now)
    found.activity.look(now + 3600)
    return found.activity.last


def test_nothing_is_idleness_after_the_minutes(within):
    activity = within().activity
    last = activity.last
    for minutes in range(10):
        activity.look(last + 60 * minutes)
    assert activity.last == last
    assert not activity.quiet(last + 599, 10)
    assert activity.quiet(last + 600, 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        "while :; do :; done",
        "while :; do echo line; sleep 0.05; done",
        "while :; do date >checkpoint.new; mv checkpoint.new checkpoint; sleep 0.05; done",
    ],
    ids=["processor", "log", "checkpoint"],
)
def test_a_job_that_does_something_is_no_idleness(within, work):
    found = within()
    name = jobs.start(known(), shell(work))
    for _ in range(2):  # not by its beginning alone
        settled(found)
        before = found.activity.last

        def moved(since: float = before) -> bool:
            found.activity.look(time.time())
            return found.activity.last > since

        until(moved)
    assert found.activity.working
    jobs.stop(known(), name, grace=0)
    found.activity.look(time.time())
    assert not found.activity.working


def known() -> ssh.Slice:
    found = ssh.Slice.known("t", SETTINGS)
    assert found is not None
    return found


def test_a_process_that_lives_and_does_nothing_gets_four_times_as_long(within):
    found = within()
    jobs.start(known(), shell("sleep 600"))
    known().close()
    last = settled(found)
    assert found.activity.working
    assert not found.activity.quiet(last + 39 * 60, 10)
    assert found.activity.quiet(last + 40 * 60, 10)


def test_a_login_is_no_idleness_and_a_shell_that_waits_is(within, hosts):
    found = within()
    settled(found)
    before = found.activity.last
    login = subprocess.Popen([*known().ssh(0), "echo here; read never"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with login:
        assert login.stdout.readline() == b"here\n"
        found.activity.look(time.time())
        assert found.activity.last > before
        last = settled(found)
        assert not found.activity.working
        assert found.activity.quiet(last + 600, 10)
        login.kill()


def test_who_holds_the_tpu_is_at_work(within, hosts, monkeypatch):
    found = within()
    device = hosts.find("t-w0").private / "dev" / "accel0"
    device.parent.mkdir()
    device.touch()
    monkeypatch.setattr(processes, "DEVICES", (str(device),))
    monkeypatch.setattr(processes.holders, "__defaults__", ((str(device),),))
    hold = "import sys, time; held = open(sys.argv[1]); print('holds', flush=True); time.sleep(600)"
    environment = {**os.environ, processes.MARK: hosts.find("t-w0").mark}
    command = ["python3", "-c", hold, str(device)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as holder:  # nobody's job or login
        assert holder.stdout.readline() == b"holds\n"
        found.activity.look(time.time())
        assert found.activity.working
        holder.kill()


def test_what_cannot_be_known_is_no_idleness(within, hosts):
    found = within()
    last = found.activity.last
    broken = hosts.find("t-w0").home / ".taetpu" / "jobs" / "x"
    broken.mkdir(parents=True)
    (broken / "job.json").write_text("{}")
    (broken / "pid").write_text('{"no": "number"}')
    found.activity.look(last + 3600)
    assert found.activity.last == last + 3600
    assert "so somebody is" in log(hosts)


def test_no_worker_goes_for_idleness_before_all_are_idle(tmp_path):
    idle = {0: True, 1: True}
    hosts = [Neighbours(2, str(tmp_path / "home"), lambda number=number: idle[number]) for number in range(2)]
    for number, host in enumerate(hosts):
        (tmp_path / str(number)).mkdir()
        host.serve(str(tmp_path / str(number)))
    assert not hosts[0].idle()  # nobody has introduced them
    told = tmp_path / "home" / ".taetpu" / "neighbours.json"
    told.parent.mkdir(parents=True)
    addresses = [f"127.0.0.1:{(tmp_path / str(number) / 'port').read_text()}" for number in range(2)]
    told.write_text(json.dumps(addresses))
    assert all(host.idle() for host in hosts)
    idle[1] = False
    assert not any(host.idle() for host in hosts)
    idle[1] = True
    told.write_text(json.dumps([addresses[0], "127.0.0.1:9"]))  # nobody answers there
    assert not hosts[0].idle()


@pytest.mark.slow
def test_workers_are_introduced_to_each_other(boot, hosts):
    slice = guarded(boot, 2, backend="tpu-api", idle_minutes=600)
    until(lambda: all((hosts.find(f"t-w{number}").private / "port").exists() for number in range(2)))
    vm._introduce(slice)
    told = [json.loads((hosts.find(f"t-w{n}").home / ".taetpu/neighbours.json").read_text()) for n in range(2)]
    assert told[0] == told[1]
    assert len(set(told[0])) == 2
    assert [neighbours._says_idle(address) for address in told[0]] == [False, False]


STEPS = """
import json, os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
step = json.load(open("checkpoint"))["step"] if os.path.exists("checkpoint") else 0
print("from", step, flush=True)
while not stop:
    step += 1
    time.sleep(0.02)
print("saving", step, flush=True)
with open("checkpoint.new", "w") as file:
    file.write('{"step": ')
    file.flush()
    time.sleep(float(sys.argv[1]))
    file.write(f"{step}}}")
os.replace("checkpoint.new", "checkpoint")
print("saved", step, flush=True)
"""


def test_a_job_is_told_that_its_machine_is_preempted_and_saves(boot, hosts):
    slice = guarded(boot)
    until(lambda: slice.run(0, ["sh", "-c", vm.LOOK]).ok)
    name = jobs.start(slice, jobs.Asked([["python3", "-c", STEPS, "0.1"]]))
    until(lambda: read(slice, name))
    hosts.notice("t-w0")
    lines = read(slice, name, follow=True)
    assert lines[-1].startswith("saved ")
    told = jobs.job(slice, name)[0]
    assert (told["state"], told["rc"], told["preempted"]) == ("ended", 0, True)
    assert f"SIGTERM to {name}" in log(hosts)


@pytest.mark.slow
def test_preempted_in_the_middle_of_a_checkpoint_the_one_before_is_whole(boot, hosts):
    slice = guarded(boot)
    until(lambda: slice.run(0, ["sh", "-c", vm.LOOK]).ok)
    home = hosts.find("t-w0").home
    (home / "checkpoint").write_text('{"step": 7}')
    name = jobs.start(slice, jobs.Asked([["python3", "-c", STEPS, "60"]]))
    until(lambda: read(slice, name) == ["from 7"])
    hosts.notice("t-w0")
    until(lambda: (home / "checkpoint.new").exists() and (home / "checkpoint.new").read_text())
    hosts.halt("t-w0")
    assert json.loads((home / "checkpoint").read_text()) == {"step": 7}
    assert (home / "checkpoint.new").read_text() == '{"step": '


@pytest.mark.slow
def test_the_guard_begins_though_the_rest_of_the_script_fails(boot, hosts, api):
    api.there[INSTANCE] = {}
    script = vm.startup(replace(of(1), backend="gce", idle_minutes=None, hours=0.0), SETTINGS)
    broken = script.replace("date -u +%Y", 'failed "no luck"; date -u +%Y')
    assert broken != script
    hosts.troubles["*"] = Trouble(script=broken)
    boot()
    until(lambda: api.gone)
    assert (hosts.find("t-w0").private / "failed").read_text() == "no luck\n"
