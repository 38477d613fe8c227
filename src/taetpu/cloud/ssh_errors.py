"""How a command on a TPU's host ended, and what is wrong where it did not end well: with the connection, with the
host's disk, or with the command itself.
"""

from dataclasses import dataclass

from taetpu.cloud.errors import CloudError, Conflict, Permission, Transient

NO_CONNECTION = 255
"""ssh's own exit code."""


class Unreachable(Transient):
    """A host does not answer. It may be starting, gone, or behind a firewall."""


class Hung(Transient):
    """A host took the command and did not answer in time."""


class OtherKey(Conflict):
    """A host has another key than it had: it is another machine, or somebody stands between."""


class KeyRefused(Permission):
    """A host does not take our key."""


class DiskFull(CloudError):
    """A host's disk has no room left."""


class CommandFailed(CloudError):
    """The command ran, and failed by its own word."""

    exit_code = 3


@dataclass(frozen=True)
class Done:
    """A command that has ended, or was not waited for any longer.

    Attributes:
        place: the host in words.
        rc: its exit code; 255 is ssh's own; None: it had not ended in time.
    """

    worker: int
    place: str
    rc: int | None
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        return self.rc == 0

    @property
    def reached(self) -> bool:
        return self.rc not in (None, NO_CONNECTION)


def refusal(done: Done, doing: str) -> CloudError | None:
    """What is wrong; None if nothing is.

    Args:
        doing: what the command was for: "start the job".
    """
    if done.ok:
        return None
    if done.rc is None:
        problem = f"{done.place} took the command to {doing} and gave no answer in time"
        return Hung(problem, remedy="it may be overloaded or about to be preempted: `taetpu tpu status` asks again")
    if done.rc == NO_CONNECTION:
        return unreachable(done, doing)
    if "No space left on device" in done.err:
        problem = f"the disk of {done.place} is full, so that it cannot {doing}"
        return DiskFull(problem, remedy="`taetpu tpu clean` removes old jobs; `taetpu tpu ssh` looks at the rest")
    last = done.err.strip().splitlines()[-1:] or done.out.strip().splitlines()[-1:] or ["it said nothing"]
    return CommandFailed(f"{done.place} could not {doing} (exit code {done.rc}): {last[0]}")


def unreachable(done: Done, doing: str) -> CloudError:
    """Why there is no connection, by what ssh says."""
    said = " ".join(done.err.split())
    if "HOST IDENTIFICATION HAS CHANGED" in said or "Host key verification failed" in said:
        problem = f"{done.place} has another host key than before: it is another machine, or somebody stands between"
        remedy = "if it was made again, `taetpu tpu up` looks it up anew; else do not connect"
        return OtherKey(problem, remedy=remedy)
    if "Permission denied" in said:
        problem = f"{done.place} does not take the key of taetpu: it was made from another computer or account"
        remedy = "use the computer that made it, or `taetpu tpu down` and `up` from here"
        return KeyRefused(problem, remedy=remedy)
    told = f": {said[-300:]}" if said else ""
    problem = f"{done.place} does not answer, so that nothing can {doing} there{told}"
    remedy = "`taetpu tpu status` looks it up anew; `taetpu doctor` looks at IAP and the firewall"
    return Unreachable(problem, remedy=remedy)
