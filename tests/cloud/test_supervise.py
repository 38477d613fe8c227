"""A job on machines that go away: by a remote that does what a test says, on the fake Cloud TPU API."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from tests.cloud.tpu_faces import KEY, ZONE, Place, cloud, spec

from taetpu.cloud import project, reconcile
from taetpu.cloud.backends.base import Machine
from taetpu.cloud.errors import Permission, Stockout, Transient
from taetpu.cloud.fakes.world import Fault, Refused, stockout
from taetpu.cloud.state import Records
from taetpu.cloud.supervise import Budget, Gone, Kept, Lost, supervise

OTHER = "us-west4-a"
STUDY = "a-study"
CREATE = "CreateQueuedResource"
Step = Callable[["Job"], int | None]


@dataclass
class Job:
    """A remote whose `follow` does what the next step of a list says, and a clock that only its sleeps move.

    Attributes:
        stored: what the job has added to its results.
        seen: machines that it was prepared on, by the name of their first host.
        begun: how often it was begun.
    """

    place: Place
    steps: list[Step]
    preparing: list[Step] = field(default_factory=list)
    stored: int = 0
    clock: float = 1e9
    seen: list[str] = field(default_factory=list)
    begun: int = 0
    said: list[str] = field(default_factory=list)
    hours: list[float] = field(default_factory=list)
    waking: Callable[[float], object] = lambda seconds: None
    done: bool = False

    def prepare(self, machine: Machine) -> None:
        self.seen.append(machine.workers[0].instance)
        if self.preparing:
            self.preparing.pop(0)(self)

    def begin(self, machine: Machine) -> None:
        self.begun += 1

    def follow(self, machine: Machine) -> int:
        code = self.steps.pop(0)(self)
        assert code is not None, "a step gives a code or raises"
        return code

    def ended(self) -> bool:
        return self.done

    def sleep(self, seconds: float) -> None:
        self.clock += seconds
        self.waking(seconds)

    def progress(self) -> str:
        return str(self.stored)

    @property
    def cloud(self) -> project.Cloud:
        waits = project.Waits(poll=5.0, settle=0.2, ready=10.0, queue=0.3, sleep=self.sleep, now=lambda: self.clock)
        return project.Cloud((self.place.api,), Records(self.place.world.project), "ada", self.said.append, waits)

    def run(self, budget: Budget | None = None, zones: tuple[str, ...] = (ZONE, OTHER)) -> int:
        there = self.cloud

        def up(hours: float) -> Machine:
            self.hours.append(hours)
            asked = spec(hours=hours, study=STUDY)
            return reconcile.up(there, asked, dict.fromkeys(zones, 1.0), "#!/bin/sh\n", KEY)

        return supervise(there, up, self, self.progress, budget or Budget(), "lab", STUDY)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Iterator[Place]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with cloud("grpc") as made:
        yield made


def ends(code: int) -> Step:
    return lambda job: code


def preempted(job: Job) -> None:
    """Taken away after an hour in which something was stored."""
    job.clock += 3600
    job.stored += 1
    job.place.tpu.preempt("lab")
    raise Lost("ssh broke off")


def silent(job: Job) -> None:
    raise Lost("ssh broke off")


def gone(job: Job) -> None:
    raise Gone("it is being preempted")


def test_a_machine_that_goes_once_all_is_done_is_not_made_anew(place):
    """Another command has followed the job, too, and deletes the machine."""

    def deleted(job: Job) -> None:
        job.done = True
        reconcile.down(job.cloud, "lab")
        raise Lost("ssh broke off")

    job = Job(place, [deleted])
    assert job.run() == 0
    assert (len(job.seen), place.hosts.up) == (1, {})
    assert job.cloud.records.read("lab").used is None


def test_a_job_that_ends_keeps_its_code_and_its_machine(place):
    for code in (0, 3, 2):
        assert Job(place, [ends(code)]).run() == code
    assert list(place.hosts.up)
    assert place.changes() == [CREATE]


def test_a_preempted_machine_is_deleted_and_made_again(place):
    job = Job(place, [preempted, preempted, ends(0)])
    assert job.run() == 0
    assert len(set(job.seen)) == job.begun == 3
    assert list(place.hosts.up) == job.seen[2:]
    assert place.changes() == [CREATE, "DeleteQueuedResource", CREATE, "DeleteQueuedResource", CREATE]
    assert [line for line in job.said if "is lost" in line] == [
        f"lab in {ZONE} is lost: it is SUSPENDED by SERVICE (ssh broke off)"
    ] * 2
    assert job.hours == pytest.approx([4, 3, 2], abs=0.01), "the hours are those of all machines together"


def test_a_machine_that_has_vanished_is_lost(place):
    def vanished(job: Job) -> None:
        place.tpu.vanish("lab")
        raise Lost("ssh broke off")

    job = Job(place, [vanished, ends(0)])
    assert job.run() == 0
    assert len(set(job.seen)) == 2


def test_a_connection_is_made_again_while_the_machine_is_there(place):
    began: list[float] = []

    def first(job: Job) -> None:
        began.append(job.clock)
        silent(job)

    job = Job(place, [first, *[silent] * 5, ends(0)])
    assert job.run() == 0
    assert (len(job.seen), job.begun) == (1, 1), "the job is neither prepared nor begun again"
    assert job.said.count("the connection to lab is lost; trying again") == 6
    assert job.clock - began[0] == 5 + 10 + 20 + 40 + 60 + 60, "with longer and longer pauses, to a minute"


def test_a_machine_that_is_ready_and_never_answers_is_replaced(place):
    job = Job(place, [silent] * 7 + [ends(0)])
    assert job.run() == 0
    assert len(set(job.seen)) == 2
    assert len(place.hosts.up) == 1
    told = "it is ready by the API's word, and has not answered 7 times (ssh broke off)"
    assert f"lab in {ZONE} is lost: {told}" in job.said


def test_good_connections_that_end_are_not_counted(place):
    """A laptop that loses its network now and then: the job goes on for hours between."""
    job = Job(place, [silent] * 20 + [ends(0)])
    assert job.run(Budget(lasting=0.0)) == 0
    assert len(job.seen) == 1


@pytest.mark.slow
def test_a_machine_is_not_given_up_because_nobody_answers_here(place):
    """Neither ssh nor the API: it is this computer that is cut off."""

    def offline(job: Job) -> None:
        place.world.faults.append(Fault("GetQueuedResource", Refused(14, "no network"), times=10**6))
        raise Lost("ssh broke off")

    def still(job: Job) -> None:
        raise Lost("ssh broke off")

    def online(job: Job) -> int:
        place.world.faults.clear()
        return 0

    job = Job(place, [offline, *[still] * 10, online])
    assert job.run() == 0
    assert len(job.seen) == 1
    assert job.said.count("neither lab nor Google answers; trying again") == 11


def test_what_is_gone_is_not_asked_for_again(place):
    """A machine that has told of its preemption is ready by the API's word for half a minute yet."""
    job = Job(place, [gone, ends(0)])
    assert job.run() == 0
    assert len(set(job.seen)) == 2
    assert f"lab in {ZONE} is lost: it is being preempted" in job.said


def test_a_machine_lost_while_it_is_prepared_is_replaced(place):
    job = Job(place, [ends(0)], preparing=[preempted])
    assert job.run() == 0
    assert (len(set(job.seen)), job.begun) == (2, 1)


def test_the_next_zone_is_tried_where_the_first_has_none_any_more(place):
    def stocked_out(job: Job) -> None:
        place.world.faults.append(Fault(CREATE, stockout(ZONE), ZONE, times=10**6))
        preempted(job)

    job = Job(place, [stocked_out, ends(0)])
    assert job.run() == 0
    assert all(OTHER in name for name in place.world.left())


def test_where_no_zone_has_one_any_more_they_are_asked_again(place):
    def stocked_out(job: Job) -> None:
        place.world.faults.append(Fault(CREATE, stockout(ZONE), times=5))
        preempted(job)

    job = Job(place, [stocked_out, ends(0)])
    assert job.run() == 0
    (line, other) = [line for line in job.said if "nothing runs meanwhile" in line]
    assert line.startswith("no zone gave a v6e-8 (spot): us-east5-b: ")
    assert other == line
    assert job.hours == pytest.approx([4, 3, 3, 3], abs=0.01), "waiting for a machine is not counted"


def test_waiting_for_a_machine_has_an_end(place):
    def stocked_out(job: Job) -> None:
        place.world.faults.append(Fault(CREATE, stockout(ZONE), times=10**6))
        preempted(job)

    job = Job(place, [stocked_out, ends(0)])
    with pytest.raises(Stockout, match="no zone gave a v6e-8"):
        job.run(Budget(patience=3600.0))
    assert 1e9 + 2 * 3600 <= job.clock < 1e9 + 3 * 3600
    assert place.world.left() == []


def test_the_first_machine_is_not_waited_for(place):
    place.world.faults.append(Fault(CREATE, stockout(ZONE), times=10**6))
    with pytest.raises(Stockout):
        Job(place, []).run()
    assert place.world.left() == []


@pytest.mark.parametrize(
    ("budget", "told", "remedy", "made"),
    [
        (
            Budget(recoveries=1, hours=100),
            "given up after 2 machines were lost; the last: it is SUSPENDED by SERVICE (ssh broke off)",
            None,
            2,
        ),
        (
            Budget(hours=2.1),
            "given up: the 2.1 h that it may take are over; the last: it is SUSPENDED by SERVICE (ssh broke off)",
            "the same command goes on from what is stored with a longer --max-hours; `taetpu tpu down lab` counts anew",
            2,
        ),
    ],
    ids=["recoveries", "hours"],
)
def test_a_budget_that_is_used_up_leaves_no_machine(place, budget, told, remedy, made):
    job = Job(place, [preempted] * 9)
    with pytest.raises(Lost) as given_up:
        job.run(budget)
    assert (given_up.value.problem, given_up.value.remedy, given_up.value.exit_code) == (told, remedy, 3)
    assert len(set(job.seen)) == made
    assert (place.world.left(), place.hosts.up) == ([], {})


def test_machines_that_add_nothing_are_given_up_and_removed(place):
    job = Job(place, [gone] * 9)
    with pytest.raises(Lost) as given_up:
        job.run()
    told = "given up: 3 machines in a row were lost before anything was added to the results"
    assert given_up.value.problem == f"{told}; the last: it is being preempted"
    assert given_up.value.remedy == (
        "let it store more often (train.checkpoint), or take it on demand; the same command goes on"
    )
    assert len(set(job.seen)) == 3
    assert (place.world.left(), place.hosts.up) == ([], {})


def test_idle_machines_are_counted_in_a_row(place):
    job = Job(place, [gone, gone, preempted, gone, gone, ends(0)])
    assert job.run() == 0
    assert len(set(job.seen)) == 6


def test_leaving_leaves_the_machine(place):
    def left(job: Job) -> None:
        raise KeyboardInterrupt

    job = Job(place, [left])
    with pytest.raises(KeyboardInterrupt):
        job.run()
    assert list(place.hosts.up) == job.seen
    again = Job(place, [ends(0)])
    assert again.run() == 0
    assert again.seen == job.seen, "the same machine is found"


def left(job: Job) -> None:
    raise KeyboardInterrupt


def leave(job: Job, budget: Budget | None = None) -> Job:
    """Run a job that is left, and give another one that goes on where and when it was."""
    with pytest.raises(KeyboardInterrupt):
        job.run(budget)
    return Job(job.place, [], stored=job.stored, clock=job.clock)


def test_hours_that_were_used_before_it_was_left_stay_used(place):
    again = leave(Job(place, [preempted, left]))
    again.steps = [preempted, ends(0)]
    assert again.run() == 0
    assert again.hours == pytest.approx([3, 2], abs=0.01)
    after = Job(place, [ends(0)], clock=again.clock)
    assert after.run() == 0
    assert after.hours == [4], "the study has ended: the next time it counts anew"


def test_a_machine_that_was_lost_while_nobody_looked_is_counted(place):
    again = leave(Job(place, [left]))
    place.tpu.preempt("lab")
    again.clock += 3 * 3600
    last = leave(again_left(again))
    assert again.hours == pytest.approx([1], abs=0.01)
    place.tpu.preempt("lab")
    last.clock += 2 * 3600
    made = place.changes().count(CREATE)
    with pytest.raises(Lost, match="given up: the 4 h that it may take are over"):
        last.run()
    assert (last.hours, place.changes().count(CREATE), place.world.left()) == ([], made, [])
    longer = leave(again_left(Job(place, [], clock=last.clock)), Budget(hours=8))
    reconcile.down(longer.cloud, "lab")
    anew = Job(place, [ends(0)], clock=longer.clock)
    assert anew.run() == 0
    assert anew.hours == [4], "`down` has ended it"


@pytest.mark.parametrize("looked", [True, False], ids=["it saw the loss", "nobody saw the loss"])
def test_a_study_that_had_a_machine_is_given_another_patiently_when_the_command_is_given_again(place, looked):
    def stocked_out(times: int) -> None:
        place.world.faults.append(Fault(CREATE, stockout(ZONE), times=times))

    def given_up(job: Job) -> None:
        stocked_out(10**6)
        preempted(job)

    if looked:
        first = Job(place, [given_up])
        with pytest.raises(Stockout):
            first.run(Budget(patience=60.0))
        place.world.faults.clear()
        again = Job(place, [], stored=first.stored, clock=first.clock)
    else:
        again = leave(Job(place, [left]))
        place.tpu.preempt("lab")
        again.clock += 3600
    stocked_out(5)
    again.steps = [ends(0)]
    assert again.run() == 0
    assert len([line for line in again.said if "nothing runs meanwhile" in line]) == 2


def again_left(job: Job) -> Job:
    job.steps = [left]
    return job


def test_machines_that_add_nothing_are_counted_however_often_it_is_left(place):
    again = leave(Job(place, [gone, gone, left]))
    again.steps = [gone, ends(0)]
    with pytest.raises(Lost, match="3 machines in a row were lost before anything was added"):
        again.run()
    after = Job(place, [gone, ends(0)], clock=again.clock)
    assert after.run() == 0, "who gives it again has been told"


def test_lost_machines_are_counted_however_often_it_is_left(place):
    again = leave(Job(place, [preempted, left]), Budget(recoveries=1, hours=100))
    again.steps = [preempted, ends(0)]
    with pytest.raises(Lost, match="given up after 2 machines were lost"):
        again.run(Budget(recoveries=1, hours=100))


OFFLINE = Refused(14, "no network")


def until_patient(job: Job) -> None:
    """The network is back in the second long pause."""
    job.waking = lambda seconds: job.place.world.faults.clear() if seconds >= 120 else None


@pytest.mark.parametrize("call", ["ListNodes", "ListQueuedResources", CREATE])
def test_an_outage_while_a_machine_is_made_again_ends_nothing(place, call):
    def cut_off(job: Job) -> None:
        job.place.tpu.preempt("lab")
        job.clock, job.stored = job.clock + 3600, 1
        place.world.faults.append(Fault(call, OFFLINE, times=10**6))
        until_patient(job)
        raise Gone("the study was killed there")

    job = Job(place, [cut_off, ends(0)])
    assert job.run() == 0
    assert len(set(job.seen)) == 2
    assert len(place.hosts.up) == 1
    assert any("nothing is given up: trying again" in line for line in job.said)


def test_results_that_cannot_be_looked_at_end_nothing(place):
    failing = [Transient("Cloud Storage does not answer")] * 2

    class Cut(Job):
        def progress(self) -> str:
            if self.begun and failing:
                raise failing.pop()
            return super().progress()

    job = Cut(place, [preempted, ends(0)])
    assert job.run() == 0
    assert (failing, len(set(job.seen))) == ([], 2)


def test_what_is_refused_for_good_ends_it_at_once(place):
    def forbidden(job: Job) -> None:
        place.world.faults.append(Fault(CREATE, Refused(7, "Permission 'tpu.nodes.create' denied"), times=10**6))
        preempted(job)

    job = Job(place, [forbidden, ends(0)])
    with pytest.raises(Permission):
        job.run()
    assert place.changes().count(CREATE) == 2


@pytest.mark.slow
def test_an_outage_has_an_end(place):
    def cut_off(job: Job) -> None:
        place.world.faults.append(Fault("ListNodes", OFFLINE, times=10**6))
        raise Gone("the study was killed there")

    job = Job(place, [cut_off])
    with pytest.raises(Transient):
        job.run(Budget(patience=3600.0))
    assert 1e9 + 3600 <= job.clock < 1e9 + 3 * 3600


def test_a_machine_is_not_given_up_because_we_are_cut_off_while_it_is_prepared(place):
    def cut_off(job: Job) -> None:
        place.world.faults.append(Fault("GetQueuedResource", OFFLINE, times=10**6))
        until_patient(job)
        raise Lost("ssh broke off")

    job = Job(place, [ends(0)], preparing=[cut_off])
    assert job.run() == 0
    assert (len(job.seen), len(set(job.seen))) == (2, 1), "prepared again, on the same machine"
    assert place.changes() == [CREATE]


@pytest.fixture
def own(place) -> Machine:
    """A machine that its user made, for no study."""
    return reconcile.up(Job(place, []).cloud, spec(), {ZONE: 1.0}, "#!/bin/sh\n", KEY)


def test_a_machine_of_its_user_that_does_not_answer_is_left_alone(place, own):
    job = Job(place, [silent] * 7)
    with pytest.raises(Kept) as stopped:
        job.run()
    assert stopped.value.problem.startswith("lab was not made for this study, so it is left as it is (READY): ")
    assert "`taetpu tpu down lab`, or leave --tpu out" in (stopped.value.remedy or "")
    assert place.changes() == [CREATE]
    assert list(place.hosts.up) == [own.workers[0].instance]


def test_a_machine_of_its_user_is_made_anew_once_it_is_gone_for_good(place, own):
    job = Job(place, [preempted, ends(0)])
    assert job.run() == 0
    assert "lab is gone for good (SUSPENDED by SERVICE): it is made anew" in job.said
    assert (own.study, place.machine().study) == ("", STUDY)
    assert place.machine().spec == own.spec, "what a machine is for makes it no other one"
