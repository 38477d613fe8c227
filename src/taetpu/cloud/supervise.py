"""Keep a job training on machines that may be taken away: make one, start the job, follow it, make another.

The job keeps its results in a bucket and continues from there, so any call here can be repeated. What has been used of
the limits is not kept: a command given again counts from the machine that exists.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from taetpu.cloud import provision
from taetpu.cloud.gcloud import CloudError, NoCapacity, NoQuota, OutcomeUnknown, Preempted
from taetpu.cloud.machines import Machine
from taetpu.cloud.settings import Settings


class Lost(CloudError):
    """A machine was taken away, or does not do what it should."""

    exit_code = 3


class Job(Protocol):
    """What is done on a machine. Every call may be repeated, on the same machine or another."""

    def start(self, machine: Machine) -> None:
        """Bring what the job needs and start it; one that is running is left running. Raises `Lost`."""
        ...

    def follow(self, machine: Machine) -> int:
        """Print its log until it ends; the largest exit code of all hosts. Raises `Lost`."""
        ...

    def progress(self) -> object:
        """Return a value that changes when more results have been stored."""
        ...


@dataclass(frozen=True)
class Limits:
    """How long to go on.

    Attributes:
        hours: of machines together; the worst case of the cost follows from it.
        losses: machines that may be lost.
        idle: losses in a row without progress.
        patience: hours to wait for capacity after a machine was lost.
        shortest: hours for which another machine is still made.
    """

    hours: float
    losses: int = 20
    idle: int = 3
    patience: float = 12.0
    shortest: float = 0.1


def supervise(
    make: Callable[[float], Machine], job: Job, limits: Limits, settings: Settings, tell: provision.Tell
) -> int:
    """Keep a job training until it ends; its exit code. The last machine is left to the caller.

    Args:
        make: returns a machine that may run for so many hours.

    Raises:
        Lost: a limit was reached.
        CloudError: no machine can be had, or the job cannot start.
    """
    used, losses, idle, seen = 0.0, 0, 0, job.progress()
    try:
        machine = make(limits.hours)
    except Preempted as error:
        tell(error.problem.splitlines()[-1])
        machine = _make_again(make, limits, used, settings, tell)
    while True:
        began, since = time.monotonic(), time.time()
        try:
            job.start(machine)
            return job.follow(machine)
        except Lost as error:
            used += (time.monotonic() - began) / 3600
            reason = find_loss_reason(machine, since, settings) or error.problem
            tell(f"{machine.name} in {machine.zone} is lost: {reason}")
        provision.delete(machine, settings, tell)
        losses, stored = losses + 1, job.progress()
        idle, seen = 0 if stored != seen else idle + 1, stored
        _check_limits(limits, used, losses, idle, reason)
        machine = _make_again(make, limits, used, settings, tell)


def find_loss_reason(machine: Machine, since: float, settings: Settings) -> str:
    """Return why the API calls a machine lost; "" where it is still ready.

    Raises:
        CloudError: it was deleted on purpose, by `tpu down` since a time, or by somebody else.
    """
    if provision.was_deleted_since(machine.name, since):
        raise CloudError(f"{machine.name} was deleted by `taetpu tpu down`")
    if there := provision.find_with_retries(machine, settings):
        return "" if there[0].state in ("ready", "starting", "queued") else there[0].detail
    if user := provision.find_deleter(machine):
        again = "The same command makes another and continues from what is stored."
        raise Lost(f"{machine.name} in {machine.zone} was deleted by {user}", remedy=again)
    return "it is gone"


def _make_again(
    make: Callable[[float], Machine], limits: Limits, used: float, settings: Settings, tell: provision.Tell
) -> Machine:
    """Make another machine, waiting where no zone has one: the quota of a deleted machine is freed after a while."""
    end, pause = time.monotonic() + limits.patience * 3600, 6 * settings.poll_seconds
    while True:
        try:
            return make(limits.hours - used)
        except (NoCapacity, NoQuota, OutcomeUnknown) as error:
            if time.monotonic() > end:
                raise
            idle = "" if isinstance(error, OutcomeUnknown) else ", nothing is running"
            tell(f"{error.problem.splitlines()[-1]}; trying again in {pause:.0f} s{idle}")
        time.sleep(pause)
        pause = min(2 * pause, 60 * settings.poll_seconds)


def _check_limits(limits: Limits, used: float, losses: int, idle: int, reason: str) -> None:
    again = "The same command continues from what is stored."
    if losses > limits.losses:
        raise Lost(f"gave up after {losses} machines were lost; the last: {reason}", remedy=again)
    if idle >= limits.idle:
        problem = f"gave up: {idle} machines in a row were lost before anything was stored; the last: {reason}"
        raise Lost(problem, remedy="Store checkpoints more often (train.checkpoint), or do without --spot.")
    if limits.hours - used < limits.shortest:
        raise Lost(f"gave up: the limit of {limits.hours:g} h is used up; the last loss: {reason}", remedy=again)
