"""A job on a machine that may be taken away at any time: made, begun, followed, made again, until the job has ended.

What a job has done so far lies in a bucket, not on the machine: begun again, it goes on from there. Nothing here knows
what the job is.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from taetpu.cloud.backends.base import OVER, Machine, State
from taetpu.cloud.cost import LEAST, Before
from taetpu.cloud.errors import CloudError, Quota, Stockout, Transient, Unknown
from taetpu.cloud.project import Cloud
from taetpu.cloud.reconcile import down, lost
from taetpu.cloud.spec import Spec
from taetpu.cloud.state import Used

Result = TypeVar("Result")


class Lost(CloudError):
    """The machine does not answer, or not as it should; what it is by the API's word is another question."""

    exit_code = 3


class Gone(Lost):
    """What ran on the machine is at its end, or about to be, whatever the API says of the machine."""


class Kept(CloudError):
    """The machine does not answer, and is not the study's to be made anew."""

    exit_code = 3


class Remote(Protocol):
    """What is done on a machine. Every call may be given again, on the same machine or a new one."""

    def prepare(self, machine: Machine) -> None:
        """Bring everything there that the job needs. Raises `Lost`."""
        ...

    def begin(self, machine: Machine) -> None:
        """Begin the job on every worker or none; one that runs already goes on. Raises `Lost`."""
        ...

    def follow(self, machine: Machine) -> int:
        """Show what it says until it ends; its exit code, the largest of all workers. Raises `Lost`, `Gone`."""
        ...

    def ended(self) -> bool:
        """Whether all that it is for is done and stored, so that no machine is needed."""
        ...


@dataclass(frozen=True)
class Budget:
    """How often a machine is made again, and how patiently; `recoveries`, `idle` and `hours` are of a study from its
    first machine to its end, however often the command is given.

    Attributes:
        recoveries: in all.
        idle: of them in a row, between which nothing was added to the results.
        hours: of machines in all, from when each was ready; their cost is bounded by it.
        least: hours for which another one is worth making.
        reconnects: in a row, to a machine that is ready by the API's word and does not answer, before it is given up.
        lasting: seconds after which a connection that ends was a good one.
        patience: seconds to wait in all until a zone has a machine again in place of one that was lost, or until Google
            answers again.
    """

    recoveries: int = 20
    idle: int = 3
    hours: float = 4.0
    least: float = LEAST
    reconnects: int = 6
    lasting: float = 300.0
    patience: float = 12 * 3600.0

    @property
    def shortest(self) -> float:
        """Hours below which no machine is made."""
        return min(self.least, self.hours)


def supervise(
    cloud: Cloud,
    up: Callable[[float], Machine],
    remote: Remote,
    progress: Callable[[], str],
    budget: Budget,
    stack: str,
    study: str,
) -> int:
    """Keep a job going until it ends; its exit code. The machine is left as it is then; one that was lost is removed.

    The first machine of a study is asked for once; one in place of another patiently, also by the call that comes back.
    A machine that was not made for the study is only removed when it is gone for good by the API's word. What is used
    of the budget stays noted in the stack's record: the same call goes on with what is left of it.

    Args:
        up: makes the machine or finds it; is told for how many hours it may be kept.
        progress: something that differs once more has been stored.
        stack, study: the names of the machine, and of what it is for, as labels have them.

    Raises:
        Lost: the budget is used up.
        Kept: the machine does not answer and is not the study's.
        CloudError: no machine can be had.
    """
    used = _begun(cloud, stack, study, progress, budget)
    hours = max(budget.shortest, budget.hours - used.hours)
    had_one = used.lost > 0 or used.hours > 0  # else its user is there to decide what to do where there is none
    machine = _another(cloud, up, hours, budget) if had_one else up(hours)
    while True:
        try:
            remote.prepare(machine)
            remote.begin(machine)
            code = _followed(cloud, remote, machine, budget)
        except Lost as error:
            if not isinstance(error, Gone) and _was_cut_off(cloud, machine, budget):
                continue
            cloud.tell(f"{machine.name} in {machine.zone} is lost: {error.problem}")
            if _patiently(cloud, remote.ended, budget, (Transient, Unknown)):  # e.g. deleted by who followed it, too
                note(cloud, stack, None)
                return 0
            if machine.study != study:
                _check_gone(cloud, machine, error)
            # Also one that is ready by the API's word: it does not answer, or is ill.
            _patiently(cloud, lambda: down(cloud, stack, again=True), budget, (Transient, Unknown))
            used = _counted(cloud, stack, _patiently(cloud, progress, budget, (Transient, Unknown)))
            _spend(cloud, used, budget, stack, error)
        else:
            note(cloud, stack, None)
            return code
        machine = _another(cloud, up, budget.hours - used.hours, budget)


def _another(cloud: Cloud, up: Callable[[float], Machine], hours: float, budget: Budget) -> Machine:
    """A machine in place of one that was lost, however long it takes until there is one."""
    # Quota, too: what was deleted a moment ago may count yet.
    return _patiently(cloud, lambda: up(hours), budget, (Quota, Stockout, Transient, Unknown))


def before(cloud: Cloud, spec: Spec, budget: Budget) -> Before:
    """What the study of a spec has used of its hours and dollars, with the machine that is there.

    Raises:
        Lost: they are too few, and no machine is there.
    """
    used = cloud.records.read(spec.stack).used_at(cloud.waits.now())
    if used is None or used.study != spec.study:
        return Before()
    if all(machine.state in OVER for machine in cloud.of(spec.stack)):
        _check_hours(budget, used, spec.stack)
    return Before(used.hours, used.usd)


def _begun(cloud: Cloud, stack: str, study: str, progress: Callable[[], str], budget: Budget) -> Used:
    """What the study has used until now, with a machine that was lost while nobody looked.

    Raises:
        Lost: nothing is left of the budget, and no machine is there.
    """
    used = cloud.records.read(stack).used
    if used is None or used.study != study:
        used = Used(study, cloud.waits.now(), seen=progress())
        note(cloud, stack, used)
    if all(machine.state in OVER for machine in cloud.of(stack)):
        before = used.lost
        down(cloud, stack, again=True)
        used = cloud.records.read(stack).used or used
        used = _counted(cloud, stack, progress()) if used.lost > before else used
        _check_hours(budget, used, stack)
    return used


def _counted(cloud: Cloud, stack: str, now: str) -> Used:
    """What is used once another machine is lost and the results are as they are now."""
    used = cloud.records.read(stack).used
    assert used
    used = replace(used, idle=used.idle + 1 if now == used.seen else 0, seen=now)
    note(cloud, stack, used)
    return used


def note(cloud: Cloud, stack: str, used: Used | None) -> None:
    """Write down what a study has used; None: it has ended."""
    record = cloud.records.read(stack)
    if record.used != used:
        cloud.records.write(replace(record, used=used))


def _spend(cloud: Cloud, used: Used, budget: Budget, stack: str, error: Lost) -> None:
    last = f"; the last: {error.problem}"
    problem = remedy = None
    if used.lost > budget.recoveries:
        problem = f"given up after {used.lost} machines were lost{last}"
    elif used.idle >= budget.idle:
        problem = f"given up: {used.idle} machines in a row were lost before anything was added to the results{last}"
        remedy = "let it store more often (train.checkpoint), or take it on demand; the same command goes on"
    if problem:
        note(cloud, stack, replace(used, lost=0, idle=0))  # who gives it again has seen this; the hours stay used
        raise Lost(problem, remedy=remedy) from error
    _check_hours(budget, used, stack, last)


def _check_hours(budget: Budget, used: Used, stack: str, last: str = "") -> None:
    """Raises `Lost` where too little is left of the hours for a machine."""
    if budget.hours - used.hours < budget.shortest:
        problem = f"given up: the {budget.hours:g} h that it may take are over{last}"
        remedy = "the same command goes on from what is stored with a longer --max-hours"
        raise Lost(problem, remedy=f"{remedy}; `taetpu tpu down {stack}` counts anew")


def _check_gone(cloud: Cloud, machine: Machine, error: Lost) -> None:
    """Whether a machine that was not made for the study may be made anew: it is gone for good by the API's word, which
    may know of a preemption only some time after the machine.

    Raises:
        Kept: it is not.
    """
    found = None
    for _ in cloud.waits.until(cloud.waits.settle):
        with suppress(Transient, Unknown):
            found = cloud.backend(machine.backend).get(machine.name, machine.zone)
            if found is None or found.state in (State.LOST, State.DELETING):
                cloud.tell(f"{machine.name} is gone for good ({found.detail if found else 'gone'}): it is made anew")
                return
    state = f" ({found.detail or found.state})" if found else ""
    problem = f"{machine.name} was not made for this study, so it is left as it is{state}: {error.problem}"
    remedy = f"`taetpu tpu status {machine.name}` looks at it; `taetpu tpu down {machine.name}`, or leave --tpu out"
    raise Kept(problem, remedy=f"{remedy}; the same command goes on") from error


def _was_cut_off(cloud: Cloud, machine: Machine, budget: Budget) -> bool:
    """Whether the machine is there after all: nobody answered, which was this computer's connection.

    Raises:
        Transient, Unknown: nobody answers for too long.
    """
    asked = 0

    def look() -> str:
        nonlocal asked
        asked += 1
        return lost(cloud, machine)

    return not _patiently(cloud, look, budget, (Transient, Unknown)) and asked > 1


def _patiently(cloud: Cloud, call: Callable[[], Result], budget: Budget, again: tuple[type[CloudError], ...]) -> Result:
    """What a call gives, which is given again after longer and longer pauses while it fails so.

    Raises:
        CloudError: it still does after all patience, or it fails otherwise.
    """
    waited, pause = 0.0, 12 * cloud.waits.poll
    while True:
        try:
            return call()
        except again as error:
            if waited >= budget.patience:
                raise
            none = isinstance(error, Quota | Stockout)
            then = "nothing runs meanwhile, and it is asked for again" if none else "nothing is given up: trying again"
            cloud.tell(f"{error.problem}; {then}")
            cloud.waits.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, 120 * cloud.waits.poll)


def _followed(cloud: Cloud, remote: Remote, machine: Machine, budget: Budget) -> int:
    """Follow the job, also over lost connections, while the machine is there by the API's word.

    Raises:
        Lost: it is gone, or does not answer although it should.
    """
    misses, pause = 0, cloud.waits.poll
    while True:
        began = time.monotonic()
        try:
            return remote.follow(machine)
        except Gone:
            raise
        except Lost as error:
            if time.monotonic() - began > budget.lasting:
                misses, pause = 0, cloud.waits.poll
            try:
                problem = lost(cloud, machine)
            except (Transient, Unknown):  # a machine is not given up because we are cut off
                cloud.tell(f"neither {machine.name} nor Google answers; trying again")
            else:
                if problem:
                    raise Lost(f"it is {problem} ({error.problem})") from error
                misses += 1
                if misses > budget.reconnects:
                    problem = f"it is ready by the API's word, and has not answered {misses} times"
                    raise Lost(f"{problem} ({error.problem})") from error
                cloud.tell(f"the connection to {machine.name} is lost; trying again")
            cloud.waits.sleep(pause)
            pause = min(2 * pause, 12 * cloud.waits.poll)
