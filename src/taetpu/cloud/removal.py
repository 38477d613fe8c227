"""The end of machines: asked for side by side, and waited for until nothing is left of any."""

from collections.abc import Sequence
from contextlib import suppress

from taetpu.cloud.backends.base import Machine, Operation
from taetpu.cloud.errors import CloudError, Conflict, NotFound, Transient, Unknown
from taetpu.cloud.project import Cloud

UNCLEAR = (Transient, Unknown, Conflict)
"""What says nothing of whether a machine goes: it is asked again. One that is being made may refuse for a while."""


def remove(cloud: Cloud, doomed: Sequence[Machine]) -> None:
    """Delete machines and wait until they are gone; their records say so.

    Raises:
        CloudError: some are still there, all of which are named. The same call goes on.
    """
    left: list[tuple[Machine, CloudError | None]] = []
    for machine, operation, problem in [(machine, *_asked(cloud, machine)) for machine in doomed]:
        try:
            if problem is None and _gone(cloud, machine, operation):
                cloud.tell(f"{machine.name} in {machine.zone} is gone")
                record = cloud.records.read(machine.stack)
                cloud.records.write(record.gone(machine.zone, cloud.waits.now()))
                continue
        except CloudError as error:
            problem = error
        left.append((machine, problem))
    if left:
        raise _still_there(left)


def _asked(cloud: Cloud, machine: Machine) -> tuple[Operation | None, CloudError | None]:
    """Ask for a machine's end: what came of it, or why it is refused; neither where there was no clear answer."""
    try:
        return cloud.backend(machine.backend).delete(machine.name, machine.zone), None
    except UNCLEAR:
        return None, None
    except CloudError as error:
        return None, error


def _gone(cloud: Cloud, machine: Machine, operation: Operation | None) -> bool:
    """Whether a machine is gone before all patience is; its end is asked for again where there was no answer."""
    backend = cloud.backend(machine.backend)
    for _ in cloud.waits.until(cloud.waits.ready):
        with suppress(*UNCLEAR, NotFound):
            if operation is None:
                operation = backend.delete(machine.name, machine.zone)
            if operation.done() and backend.get(machine.name, machine.zone) is None:
                return True
    return False


def _still_there(left: Sequence[tuple[Machine, CloudError | None]]) -> CloudError:
    places = ", ".join(f"{machine.name} in {machine.zone} ({machine.detail})" for machine, _ in left)
    problem = f"still there, and may cost money: {places}"
    if first := next((problem for _, problem in left if problem), None):
        return type(first)(f"{problem}; {first.problem}", remedy=first.remedy)
    return Unknown(problem, remedy="give the same command again, or delete it in the console")
