"""A job on a machine that may be taken away at any time: made, begun, followed, made again, until the job has ended.

What a job has done so far lies in a bucket, not on the machine: begun again, it goes on from there. Nothing here knows
what the job is.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from taetpu.cloud.backends.base import Machine
from taetpu.cloud.errors import CloudError, Quota, Stockout, Transient, Unknown
from taetpu.cloud.reconcile import Cloud, down, lost


class Lost(CloudError):
    """The machine does not answer, or not as it should; what it is by the API's word is another question."""

    exit_code = 3


class Gone(Lost):
    """What ran on the machine is at its end, or about to be, whatever the API says of the machine."""


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


@dataclass(frozen=True)
class Budget:
    """How often a machine is made again.

    Attributes:
        recoveries: in all.
        idle: of them in a row, between which nothing was added to the results.
        hours: of machines in all, from when each was ready; their cost is bounded by it.
        least: hours for which another one is worth making.
        reconnects: in a row, to a machine that is ready by the API's word and does not answer, before it is given up.
        lasting: seconds after which a connection that ends was a good one.
        capacity: seconds to wait in all until a zone has a machine again in place of one that was lost.
    """

    recoveries: int = 20
    idle: int = 3
    hours: float = 4.0
    least: float = 0.25
    reconnects: int = 6
    lasting: float = 300.0
    capacity: float = 12 * 3600.0


def supervise(
    cloud: Cloud, up: Callable[[float], Machine], remote: Remote, progress: Callable[[], Hashable], budget: Budget
) -> int:
    """Keep a job going until it ends; its exit code. The machine is left as it is then; one that was lost is removed.

    Args:
        up: makes the machine or finds it; is told for how many hours it may be kept.
        progress: something that differs once more has been stored.

    Raises:
        Lost: the budget is used up.
        CloudError: no machine can be had.
    """
    recoveries, idle, used, seen = 0, 0, 0.0, progress()
    machine = up(budget.hours)
    while True:
        began = cloud.waits.now()
        try:
            remote.prepare(machine)
            remote.begin(machine)
            return _followed(cloud, remote, machine, budget)
        except Lost as error:
            cloud.tell(f"{machine.name} in {machine.zone} is lost: {error.problem}")
            down(cloud, machine.stack)  # also one that is ready by the API's word: it does not answer, or is ill
            recoveries, now = recoveries + 1, progress()
            idle, seen = (idle + 1 if now == seen else 0), now
            used += (cloud.waits.now() - began) / 3600
            _spend(recoveries, idle, used, budget, error)
        machine = _another(cloud, up, budget, used)


def _spend(recoveries: int, idle: int, used: float, budget: Budget, error: Lost) -> None:
    last = f"; the last: {error.problem}"
    if recoveries > budget.recoveries:
        raise Lost(f"given up after {recoveries} machines were lost{last}") from error
    if idle >= budget.idle:
        problem = f"given up: {idle} machines in a row were lost before anything was added to the results{last}"
        remedy = "let it store more often (train.checkpoint), or take it on demand; the same command goes on"
        raise Lost(problem, remedy=remedy) from error
    if budget.hours - used < budget.least:
        problem = f"given up: the {budget.hours:g} h that it may take are over{last}"
        raise Lost(problem, remedy="the same command goes on from what is stored; --max-hours gives it longer")


def _another(cloud: Cloud, up: Callable[[float], Machine], budget: Budget, used: float) -> Machine:
    """A machine in place of one that was lost; where no zone has any at the moment, they are asked again.

    Raises:
        Stockout: none had any for too long.
    """
    waited, pause = 0.0, 12 * cloud.waits.poll
    while True:
        try:
            return up(budget.hours - used)
        except (Quota, Stockout) as error:  # quota, too: what was deleted a moment ago may count yet
            if waited >= budget.capacity:
                raise
            cloud.tell(f"{error.problem}; nothing runs meanwhile, and it is asked for again")
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
