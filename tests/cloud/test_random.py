"""Commands in any order with faults at any call: nothing left, nothing twice, nothing of a neighbour's touched.

A seed is a story: `up`, a job that is preempted, `down`, `gc` and dry runs, each while up to three things go wrong. A
service that fails tells no lies: it does not say that something is not there which is, nor that it made what it did
not make.
"""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.cloud.reconciling import FAR, GCE, KINDS, ME, NAME, NEXT, SLICE, TPU_API, ZONE, Place, cloud

from taetpu.cli import tpu as commands
from taetpu.cloud import reconcile
from taetpu.cloud.backends.base import Backend, Machine, State
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.supervise import Budget, Lost, supervise
from taetpu.core.errors import UserError

STEPS = 6
"""Of a job, and commands of a story."""
OTHER = "us-east1-d"

BUSY = Refused(14, "The service is currently unavailable.")
BROKEN = Refused(13, "internal error")
MANY = Refused(8, "Too many requests per minute.", "rateLimitExceeded")
DENIED = Refused(7, "Required 'compute.instances.create' permission for 'projects/p'", "forbidden")
SIGNED_OUT = Refused(16, "Request had invalid authentication credentials.")
INVALID = Refused(3, "Invalid value for field 'disks'.", "invalid")
TAKEN = Refused(6, "The resource already exists", "alreadyExists")
GONE = Refused(5, "The resource was not found", "notFound")
NOT_READY = Refused(9, "The resource is not ready", "resourceNotReady")
CLOSED = Refused(7, f"Permission denied on 'locations/{ZONE}' (or it may not exist).", "LOCATION_POLICY_VIOLATED",
                 {"location": ZONE})  # fmt: skip
SILENT = (None, BUSY, BROKEN, MANY)

GROUP = "instanceGroupManagers"
QUESTIONS = {
    GCE: ("instances.get", "instances.aggregatedList", "zoneOperations.get"),
    SLICE: (f"{GROUP}.get", f"{GROUP}.aggregatedList", f"{GROUP}.listManagedInstances", "instances.list",
            "zoneOperations.get", "regionOperations.get", "instanceTemplates.get", "resourcePolicies.aggregatedList"),
    TPU_API: ("GetQueuedResource", "GetNode", "GetOperation", "ListNodes", "ListQueuedResources"),
}  # fmt: skip
CREATES = {
    GCE: ("instances.insert",),
    SLICE: (f"{GROUP}.insert", "instanceTemplates.insert", "resourcePolicies.insert"),
    TPU_API: ("CreateQueuedResource",),
}
DELETES = {
    GCE: ("instances.delete",),
    SLICE: (f"{GROUP}.delete", "instanceTemplates.delete", "resourcePolicies.delete"),
    TPU_API: ("DeleteQueuedResource",),
}


STUDY = "counting"


class Killed(BaseException):
    """The command's process is gone, from one line to the next."""


class Mortal:
    """A backend, before and after each of whose calls the process may be killed."""

    def __init__(self, backend: Backend, may_die: Callable[[], None]):
        self.backend, self.may_die = backend, may_die

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        return (lambda *asked: self.called(found, *asked)) if callable(found) else found

    def called(self, method: Callable[..., Any], *asked: Any) -> Any:
        self.may_die()
        answer = method(*asked)
        self.may_die()
        return answer


class Story:
    """What happens in one cloud. Everything is drawn from one seed."""

    def __init__(self, place: Place, seed: int):
        self.place, self.draw = place, random.Random(seed)
        self.ahead, self.death, self.log = 0.0, 0, list[str]()
        place.made(FAR, owner="bob")
        place.made(ZONE, name="other", hours=100.0)
        place.world.twice.clear()
        self.neighbours = self.others()
        backends = [Mortal(backend, self.may_die) for backend in place.cloud.backends]
        place.cloud = replace(place.cloud, tell=self.told, backends=backends)
        place.patient(
            poll=0.0, settle=0.03, ready=0.4, queue=0.1, sleep=self.pause, now=lambda: time.time() + self.ahead
        )

    def others(self) -> tuple[object, ...]:
        """What is not the story's own: somebody else's machine of the same name, and another one of ours."""
        left = [name for name in self.place.world.left() if "other" in name or FAR.rpartition("-")[0] in name]
        return left, self.place.world.alive("bob"), [one for one in self.place.world.alive() if one[0] != NAME]

    def told(self, line: str) -> None:
        self.log.append(line)
        self.may_die()

    def pause(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.001))
        self.may_die()

    def may_die(self) -> None:
        self.death -= 1
        if self.death == 0:
            raise Killed

    def fault(self) -> Fault:
        """Something that goes wrong at a call of this backend."""
        kind, draw = self.place.kind, self.draw
        zone = draw.choice((ZONE, "*", "*", "*"))
        full = [kind.stockout(ZONE), kind.quota("TPUS_PER_FAMILY", "us-east5")]
        what = draw.choices(("outage", "question", "delete", "making", "create"), (1, 3, 4, 4, 6))[0]
        moment, error = "before", None
        if what == "outage":
            return Fault("*", draw.choice((None, BUSY)), times=draw.randrange(5, 40), skip=draw.randrange(20))
        if what == "question":
            call, zone, error = draw.choice(QUESTIONS[kind]), "*", draw.choice((*SILENT, *SILENT, DENIED, SIGNED_OUT))
        elif what == "delete":
            call, moment = draw.choice(DELETES[kind]), draw.choice(("before", "inside", "after"))
            refusals = {"before": (*SILENT, NOT_READY, DENIED), "inside": (BROKEN, NOT_READY), "after": (*SILENT, GONE)}
            error = draw.choice(refusals[moment])
        elif what == "making":
            call, moment, error = kind.make, "inside", draw.choice((*full, BROKEN))
        else:
            call, moment = draw.choice(CREATES[kind]), draw.choice(("before", "inside", "after"))
            final = [*full, DENIED, INVALID]
            refusals = {"before": (*SILENT, *final, SIGNED_OUT, TAKEN, CLOSED), "inside": (*final, BROKEN)}
            error = draw.choice((*SILENT, TAKEN) if moment == "after" else refusals[moment])
        times = draw.choice((1, 1, 1, 2, 4, 1000 if moment == "inside" else 3))
        return Fault(call, error, zone, moment, times, skip=draw.choice((0, 0, 0, 0, 1, 3)))

    def go(self) -> None:
        """All of the story, and its end without faults."""
        moves = (self.up, self.up, self.up, self.run, self.run, self.down, self.gc, self.dry_run, self.lose)
        for _ in range(STEPS):
            move, world = self.draw.choice(moves), self.place.world
            world.faults = [self.fault() for _ in range(self.draw.choice((0, 1, 2, 3, 4, 5)))]
            self.log.append(f"-- {move.__name__}")
            world.struck = self.log
            if self.draw.random() < 0.25:
                world.at[len(world.calls) + self.draw.randrange(1, 30)] = self.lose
            self.death = self.draw.randrange(1, 30) if self.draw.random() < 0.2 else 0
            try:
                move()
            except UserError as error:
                self.log.append(f"{type(error).__name__}: {error}")
            except Killed:
                self.log.append("killed")
            self.death = 0
            world.at.clear()
            world.faults = []
            self.check()
        self.place.down()
        self.check()
        assert self.place.world.alive() == [("other", ZONE)]
        assert self.mine() == []
        assert (self.place.record.zones, self.place.record.identity) == ((), {})

    def mine(self) -> list[str]:
        """Whatever is there that the story made."""
        return [name for name in self.place.world.left() if name not in self.neighbours[0]]

    def check(self) -> None:
        """What must hold after every command, however it ended."""
        self.place.settle()
        assert self.place.world.twice == [], "a machine was made twice"
        assert self.others() == self.neighbours, "a neighbour's machine was touched"
        there = {zone for stack, zone in self.place.world.alive() if stack == NAME}
        there |= {zone_of(name) for name in self.mine()}
        assert there <= {*self.place.record.zones}, f"what no record knows of is in {self.mine()}"

    def wanted(self, study: str = "") -> Machine:
        zones = self.draw.sample((ZONE, NEXT, OTHER), self.draw.randrange(1, 4))
        zones[:0] = [FAR] if self.draw.random() < 0.15 else []  # where somebody else has the name
        more = {"disk_gb": 300} if self.draw.random() < 0.15 else {}
        return self.place.up(*zones, provisioning="spot", study=study, **more)

    def up(self) -> None:
        machine = self.wanted()
        self.log.append(f"made in {machine.zone}")
        lost = self.place.world.alive() != sorted([(NAME, machine.zone), ("other", ZONE)])
        assert machine.state is State.READY
        assert not lost or "lost" in self.log[-30:], "what is said to be ready is there"
        assert self.place.record.zones[-1] == machine.zone
        assert self.place.record.since is not None

    def down(self) -> None:
        self.place.down()
        self.place.settle()
        assert self.mine() == [], "down has said that it is done"
        assert self.place.record.zones == ()

    def gc(self) -> None:
        """A day later."""
        self.ahead = 24 * 3600.0
        try:
            doomed = reconcile.expired(self.place.cloud.machines(), ME, self.place.cloud.waits.now())
            reconcile.collect(self.place.cloud, doomed)
        finally:
            self.ahead = 0.0

    def dry_run(self) -> None:
        before = self.place.changes()
        tpu = self.place.kind.tpu
        command: Callable[[], object] = self.draw.choice((
            lambda: commands.up(NAME, tpu, [ZONE], self.place.kind.backend, dry_run=True, yes=True),
            lambda: commands.down(NAME, dry_run=True, yes=True),
            lambda: commands.gc(dry_run=True, yes=True),
        ))  # fmt: skip
        record = self.place.record
        try:
            command()
        finally:
            assert self.place.changes() == before, "a dry run has changed something"
            assert self.place.record == record

    def lose(self) -> None:
        """Take the machine away, if there is one."""
        if self.place.preempt():
            self.log.append("lost")

    def run(self) -> None:
        """A job of some steps over as many machines as it takes, and the end of the last one."""
        job = Job(self)
        budget = Budget(recoveries=8, idle=3)

        def up(_: float) -> Machine:
            return self.wanted(STUDY)

        code = supervise(self.place.cloud, up, job, lambda: str(len(job.stored)), budget, NAME, STUDY)
        assert (code, job.stored) == (0, list(range(STEPS)))
        self.down()


def zone_of(name: str) -> str:
    """The zone that something is in, by the name of a fake's resource; of a region's part the one that it is for."""
    if "/locations/" in name:
        return name.split("/locations/")[1].split("/")[0]
    place, _, own = name.partition(": ")[2].partition("/")
    return f"{place}-{own.rpartition('-')[2]}" if name.startswith(("gce.policies", "gce.templates")) else place


class Job:
    """Steps on a machine, each stored as it is done, which go on where the last one was stored."""

    def __init__(self, story: Story):
        self.story, self.stored = story, list[int]()

    def prepare(self, machine: Machine) -> None:
        self.reach(machine)

    def begin(self, machine: Machine) -> None:
        self.reach(machine)

    def follow(self, machine: Machine) -> int:
        while len(self.stored) < STEPS:
            if self.story.draw.random() < 0.15:
                self.story.lose()
            if self.story.draw.random() < 0.1:
                raise Lost("the connection broke off")
            self.reach(machine)
            self.stored.append(len(self.stored))
        return 0

    def ended(self) -> bool:
        return len(self.stored) >= STEPS

    def reach(self, machine: Machine) -> None:
        if (machine.stack, machine.zone) not in self.story.place.world.alive():
            raise Lost("it does not answer")


def told(seed: int, folder, monkeypatch) -> None:
    kind = KINDS[seed % len(KINDS)]
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setenv("TAETPU_CACHE", str(folder / "cache"))
    monkeypatch.setenv("TAETPU_OWNER", ME)
    monkeypatch.setenv("TAETPU_PROJECT", "fake-project")
    monkeypatch.chdir(folder)
    with cloud(kind, folder, grpc=seed // len(KINDS) % 2 == 0) as place:
        story = Story(place, seed)
        try:
            story.go()
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), f"seed {seed}, {kind.name}", *story.log[-40:]])) from error


@pytest.mark.parametrize("seed", range(30))
def test_whatever_goes_wrong(seed, tmp_path, monkeypatch):
    told(seed, tmp_path, monkeypatch)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(30, 330))
def test_whatever_else_goes_wrong(seed, tmp_path, monkeypatch):
    told(seed, tmp_path, monkeypatch)
