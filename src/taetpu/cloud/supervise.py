"""A job on a machine that may be taken away at any time: made, begun, followed, made again, until the job has ended.

What a job has done so far lies in a bucket, not on the machine: begun again, it goes on from there. Nothing here knows
what the job is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from taetpu.cloud.backends.base import Machine, State
from taetpu.cloud.errors import CloudError, Transient, Unknown
from taetpu.cloud.reconcile import Cloud, down


class Lost(CloudError):
    """The machine does not answer, or not as it should; what it is by the API's word is another question."""

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
        """Show what it says until it ends; its exit code, the largest of all workers. Raises `Lost`."""
        ...


@dataclass(frozen=True)
class Budget:
    """How often a machine is made again.

    Attributes:
        recoveries: in all.
        idle: of them in a row, between which nothing was added to the results.
        reconnects: to a machine that is ready by the API's word and does not answer, before it is given up.
        pause: seconds before the first of these; twice as long before each that follows.
    """

    recoveries: int = 20
    idle: int = 3
    reconnects: int = 6
    pause: float = 5.0


def supervise(
    cloud: Cloud, up: Callable[[], Machine], remote: Remote, progress: Callable[[], object], budget: Budget
) -> int:
    """Keep a job going until it ends; its exit code. The machine is left as it is then.

    Args:
        up: makes the machine or finds it.
        progress: something that differs once more has been stored.

    Raises:
        Lost: the budget is used up.
        CloudError: no machine can be had.
    """
    recoveries = idle = 0
    seen: object = None
    while True:
        machine = up()
        try:
            remote.prepare(machine)
            remote.begin(machine)
            return _followed(cloud, remote, machine, budget)
        except Lost as error:
            recoveries += 1
            now = progress()
            idle, seen = (idle + 1 if now == seen else 0), now
            cloud.tell(f"{machine.name} in {machine.zone} is lost: {error.problem}")
            _spend(recoveries, idle, budget, error)
        down(cloud, machine.stack)  # also one that is ready by the API's word: it does not answer, or is ill


def _spend(recoveries: int, idle: int, budget: Budget, error: Lost) -> None:
    if recoveries > budget.recoveries:
        raise Lost(f"given up after {budget.recoveries} machines were lost; the last: {error.problem}") from error
    if idle >= budget.idle:
        problem = f"given up: {idle} machines in a row were lost before anything was added to the results"
        raise Lost(problem, remedy="let it store more often (train.checkpoint), or take it on demand") from error


def _followed(cloud: Cloud, remote: Remote, machine: Machine, budget: Budget) -> int:
    """Follow the job, also over lost connections, while the machine is there by the API's word.

    Raises:
        Lost: it is gone, or does not answer although it should.
    """
    misses, pause = 0, budget.pause
    while True:
        try:
            return remote.follow(machine)
        except Lost as error:
            state = _state(cloud, machine)
            if state is not State.READY:
                raise Lost(f"it is {state.value if state else 'gone'} ({error.problem})") from error
            misses += 1
            if misses > budget.reconnects:
                problem = f"it is ready by the API's word, and has not answered {misses} times"
                raise Lost(f"{problem} ({error.problem})") from error
            cloud.tell(f"the connection to {machine.name} is lost; trying again")
            cloud.waits.sleep(min(pause, 60.0))
            pause *= 2


def _state(cloud: Cloud, machine: Machine) -> State | None:
    """What the API says of a machine; READY where it does not answer: a machine is not given up for that."""
    try:
        found = cloud.backend(machine.backend).get(machine.name, machine.zone)
    except (Transient, Unknown):
        return State.READY
    return found.state if found else None
