"""Keep a job training on preemptible machines: create a machine, start and follow the job, and replace lost machines.

The job stores its results in a bucket and resumes from them, so every function in this module can be called again.
Limits apply to one command. If a command is repeated, its limits start again from zero.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from taetpu.cloud import lifecycle
from taetpu.cloud.gcloud import CloudError, NoCapacity, NoQuota, OutcomeUnknown, Preempted
from taetpu.cloud.machine_api import Machine
from taetpu.cloud.settings import Settings


class Lost(CloudError):
    """A machine was preempted, or does not respond."""

    exit_code = 3


class Job(Protocol):
    """A job on a machine. Every method may be called again, on the same machine or on another machine."""

    def start(self, machine: Machine) -> None:
        """Copy the files that the job needs and start the job, unless it is running. Raises `Lost`."""
        ...

    def follow(self, machine: Machine) -> int:
        """Print the job's log until the job ends, and return the largest exit code of all hosts. Raises `Lost`."""
        ...

    def progress(self) -> object:
        """Return a value that changes when new results are stored."""
        ...


@dataclass(frozen=True)
class Limits:
    """Limits of `supervise`.

    Attributes:
        hours: maximum total hours of all machines. This limits the cost.
        losses: maximum number of lost machines.
        idle: number of consecutive lost machines without new results after which `supervise` gives up.
        patience: maximum hours of waiting for capacity after a loss.
        shortest: minimum number of remaining hours for which another machine is made.
    """

    hours: float
    losses: int = 20
    idle: int = 3
    patience: float = 12.0
    shortest: float = 0.1


def supervise(
    make: Callable[[float], Machine], job: Job, limits: Limits, settings: Settings, tell: lifecycle.Tell
) -> int:
    """Keep a job training until it ends, and return its exit code. The caller deletes the last machine.

    Args:
        make: function that returns a machine, given its maximum hours.
        job: the job.
        limits: limits at which to give up.
        settings: the cloud settings.
        tell: function that prints a message.

    Raises:
        Lost: if a limit is reached.
        CloudError: if no machine is available, or the job cannot start.
    """
    used, losses, idle, last = 0.0, 0, 0, job.progress()
    try:
        machine = make(limits.hours)
    except Preempted as error:
        tell(error.problem.splitlines()[-1])
        machine = _make_again(make, limits, used, settings, tell)
    while True:
        start, since = time.monotonic(), time.time()
        try:
            job.start(machine)
            return job.follow(machine)
        except Lost as error:
            used += (time.monotonic() - start) / 3600
            reason = find_loss_reason(machine, since, settings) or error.problem
            tell(f"{machine.name} in {machine.zone} is lost: {reason}")
        lifecycle.delete(machine, settings, tell)
        losses, stored = losses + 1, job.progress()
        idle, last = 0 if stored != last else idle + 1, stored
        _check_limits(limits, used, losses, idle, reason)
        machine = _make_again(make, limits, used, settings, tell)


def find_loss_reason(machine: Machine, since: float, settings: Settings) -> str:
    """Return why a machine is lost according to the API, or "" if the API still reports the machine as ready.

    Raises:
        CloudError: if the machine was deleted by `tpu down` after `since`, by its timer, or by a user.
    """
    if lifecycle.was_deleted_since(machine.name, since):
        raise CloudError(f"{machine.name} was deleted by `taetpu tpu down`")
    if machines := lifecycle.find_with_retries(machine, settings):
        return "" if machines[0].state in ("ready", "starting", "queued") else machines[0].detail
    if user := lifecycle.find_deleter(machine):
        remedy = "Repeat the command to create another machine and resume."
        raise Lost(f"{machine.name} in {machine.zone} was deleted by {user}", remedy=remedy)
    return "it no longer exists"


def _make_again(
    make: Callable[[float], Machine], limits: Limits, used: float, settings: Settings, tell: lifecycle.Tell
) -> Machine:
    """Make another machine, and wait for capacity or quota if necessary.

    The quota of a deleted machine becomes available only after some time.
    """
    end, pause = time.monotonic() + limits.patience * 3600, 6 * settings.poll_seconds
    while True:
        try:
            return make(limits.hours - used)
        except (NoCapacity, NoQuota, OutcomeUnknown) as error:
            if time.monotonic() > end:
                raise
            idle = "" if isinstance(error, OutcomeUnknown) else " (no machine is running)"
            tell(f"{error.problem.splitlines()[-1]}; trying again in {pause:.0f} s{idle}")
        time.sleep(pause)
        pause = min(2 * pause, 60 * settings.poll_seconds)


def _check_limits(limits: Limits, used: float, losses: int, idle: int, reason: str) -> None:
    again = "Repeat the command to resume from the stored results."
    if losses > limits.losses:
        raise Lost(f"gave up after {losses} machines were lost; reason for the last one: {reason}", remedy=again)
    if idle >= limits.idle:
        problem = f"gave up because {idle} machines in a row were lost before they stored new results; "
        problem += f"reason for the last one: {reason}"
        raise Lost(problem, remedy="Store checkpoints more often (train.checkpoint), or omit --spot.")
    if limits.hours - used < limits.shortest:
        problem = f"gave up because the machines have used the limit of {limits.hours:g} h; "
        raise Lost(f"{problem}the last one was lost: {reason}", remedy=again)
