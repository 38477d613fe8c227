"""Create or find machines, and delete them completely, so that nothing continues to cost money.

Calls can be repeated at any time and from any computer, independently of the outcome of earlier calls. Names are
deterministic, and the state is read from Google before every change and after every command whose outcome is unknown.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from taetpu.cloud import names_and_labels
from taetpu.cloud.deletion_rights import check_can_delete_itself
from taetpu.cloud.gcloud import (
    CloudError,
    Command,
    NoCapacity,
    NoQuota,
    NotAllowed,
    OutcomeUnknown,
    Preempted,
    change,
    command,
    failure,
    program,
    read,
)
from taetpu.cloud.machine_api import Machine, Spec, check_reached, create_command, delete_command, find, list_machines
from taetpu.cloud.settings import Settings
from taetpu.cloud.ssh import forget, public_key, state_folder
from taetpu.cloud.startup import startup_script
from taetpu.core import atomic_files
from taetpu.core.errors import UserError

Tell = Callable[[str], None]


def find_existing(spec: Spec) -> Machine | None:
    """Return the machine with the name in a spec, or None if no such machine exists or it is lost or being deleted.

    Raises:
        CloudError: if the machine has another owner, differs from the spec or is stopped, or if several have the name.
    """
    machines = _find_usable(spec.name)
    if not machines:
        return None
    check_one(machines)
    machine = machines[0]
    if machine.owner != spec.owner:
        problem = f"{spec.name} in {machine.zone} belongs to {machine.owner or 'an unknown owner'}"
        raise CloudError(problem, remedy="Choose another name.")
    if machine.labels.get(names_and_labels.SPEC) != spec.identity:
        problem = f"{spec.name} exists in {machine.zone} as a {machine.type} with other settings"
        raise CloudError(problem, remedy=f"Delete it with `taetpu tpu down {spec.name}`, or choose another name.")
    check_started(machine)
    return machine


def _find_usable(name: str) -> list[Machine]:
    """Return the machines with a name that are neither lost nor being deleted."""
    return [machine for machine in find(name) if machine.state not in ("lost", "deleting")]


def check_started(machine: Machine) -> None:
    """Raise `CloudError` if a machine is stopped. It would not become ready, and its disk may contain data."""
    if machine.state == "stopped":
        problem = f"{machine.name} in {machine.zone} is stopped ({machine.detail})"
        remedy = f"Start it in the console, or delete it with `taetpu tpu down {machine.name}`."
        raise CloudError(problem, remedy=remedy)


def check_one(machines: Sequence[Machine]) -> None:
    """Raise `CloudError` if several machines have the same name, e.g. if two computers created them at once."""
    if len(machines) > 1:
        zones = ", ".join(machine.zone for machine in machines)
        problem = f"{machines[0].name} exists {len(machines)} times: in {zones}"
        raise CloudError(problem, remedy=f"Delete yours with `taetpu tpu down {machines[0].name}`.")


def make(
    spec: Spec, zones: Sequence[str], settings: Settings, tell: Tell, prepare: Callable[[Machine], object] | None = None
) -> Machine:
    """Return a ready machine for a spec: the existing machine, or a new one in the first zone with capacity.

    If `prepare` fails, a machine made by this call is deleted, because it is unused and its timer may not run. What
    failed requests leave behind, such as queued resources, is also deleted. Calls with the same name on one computer
    wait for each other. If another computer makes a machine with this name at the same time, the machine that was
    requested first is kept.

    Raises:
        NoCapacity: if no zone has capacity.
        NoQuota: if the project has no quota in any zone.
        OutcomeUnknown: if the machine's state cannot be read, so that the machine may exist.
        CloudError: if Google refuses the request, or `find_existing` fails.
        UserError: if OpenSSH or rsync is not installed.
    """
    for needed in ("ssh", "ssh-keygen", "rsync"):  # before anything costs money
        program(needed)
    with _exclusive_lock(f"{spec.name}.making", tell, f"waiting for another `taetpu tpu up` of {spec.name}"):
        await_changes(spec.name, tell)
        check_can_delete_itself(spec, settings.project)
        existing = find_existing(spec)
        machine = _make(existing, spec, zones, settings, tell)
        try:
            if prepare:
                prepare(machine)
        except UserError as error:
            if existing is None:
                error.problem += f"\n{discard(machine, settings, tell)}"
            raise
        return machine


def _make(existing: Machine | None, spec: Spec, zones: Sequence[str], settings: Settings, tell: Tell) -> Machine:
    start, refusals = time.time(), list[CloudError]()
    for zone in dict.fromkeys([existing.zone, *zones] if existing else zones):
        if was_deleted_since(spec.name, start):
            raise CloudError(f"{spec.name} was deleted by `taetpu tpu down`")
        try:
            machine = wait_ready(existing or _create(spec, zone, settings, tell), settings, tell)
        except OutcomeUnknown:
            raise
        except CloudError as refusal:
            tell(f"{zone}: {refusal.problem.strip().splitlines()[-1]}")
            _delete_lost(spec, zone, settings, tell)
            if not isinstance(refusal, NoCapacity | NoQuota):
                raise
            existing = None
            refusals.append(refusal)
            continue
        return machine if existing else keep_first(machine, settings, tell)
    raise next((refusal for refusal in refusals if isinstance(refusal, NoCapacity)), refusals[0])


def keep_first(machine: Machine, settings: Settings, tell: Tell) -> Machine:
    """Keep the machine with this name and owner that was requested first, and delete the others.

    Several machines exist if a request that seemed to be refused was granted later, or if another computer created a
    machine with the same name. The kept machine is returned once it is ready.
    """
    same = [other for other in _find_usable(machine.name) if other.owner == machine.owner]
    first, *others = sorted(same or [machine], key=lambda other: (other.created, other.zone))
    for other in others:
        delete(other, settings, tell)
    return machine if first.zone == machine.zone else wait_ready(first, settings, tell)


def creation_command(spec: Spec, zone: str, settings: Settings) -> Command:
    """Write a machine's startup script to the state folder, and return the command that creates the machine."""
    file = _state_file("startup", f"{spec.name}.{zone}.sh")
    atomic_files.write_file(file, startup_script(spec, zone, settings).encode(), replace=True)
    return create_command(spec, zone, file, public_key())


def _create(spec: Spec, zone: str, settings: Settings, tell: Tell) -> Machine:
    """Request a machine and return it when it is listed.

    If a request gets no answer, the state is read. If neither the machine nor its operation is found, the request did
    not arrive, and it is repeated with the same name.
    """
    _delete_lost(spec, zone, settings, tell)  # a lost queued resource occupies its name and quota
    tell(f"creating {spec.name} ({spec.tpu.name}) in {zone}")
    line, previous = creation_command(spec, zone, settings), _last_operation(spec, zone)
    unknown: CloudError | None = None
    running = False
    for _ in poll(settings, settings.unknown_minutes):
        try:
            if not running:
                _change(spec.name, line)
        except OutcomeUnknown as error:
            tell(f"no answer from Google; checking whether {spec.name} exists")
            unknown = error
        except CloudError:
            if not (there := select_owned(find(spec.name, zone, api=spec.api), spec.owner)):
                raise
            return there[0]  # an earlier request, or a request by another call, was granted
        try:
            if there := select_owned(find(spec.name, zone, api=spec.api), spec.owner):
                return there[0]
            operation = _last_operation(spec, zone)
        except OutcomeUnknown as error:
            unknown, running = error, True  # read the state again before the next change
            continue
        running = operation != previous and operation.get("status") != "DONE"
        if operation != previous and (errors := operation.get("error", {}).get("errors")):
            raise failure(line, 1, json.dumps(errors))
    problem = f"{spec.name} was requested in {zone} and is not listed, so it may still appear and cost money"
    raise OutcomeUnknown(problem, remedy=f"Run `taetpu tpu down {spec.name}` to delete what may exist.") from unknown


def operation_command(kind: str, name: str, zone: str) -> Command:
    """Return the command that reads the newest operation of a kind (`insert` or `delete`) on an instance."""
    return command(
        "compute", "operations", "list", zones=zone, sort_by="~insertTime", limit=1,
        filter=f"operationType={kind} AND targetLink~/{name}$",
    )  # fmt: skip


def _last_operation(spec: Spec, zone: str) -> Mapping[str, Any]:
    """Return the newest Compute Engine operation that creates a machine, or {} if no such operation exists.

    The result is also {} for the TPU API. That API reports failures in the machine's state.
    """
    operations = read(operation_command("insert", spec.name, zone)) if spec.api == "gce" else None
    return operations[0] if operations else {}


def _delete_lost(spec: Spec, zone: str, settings: Settings, tell: Tell) -> None:
    """Delete what a refused request or a preempted machine of the owner left in a zone, such as a queued resource."""
    for left in find(spec.name, zone, api=spec.api):
        if left.state in ("lost", "deleting") and left.owner == spec.owner:
            delete(left, settings, tell)


def wait_ready(machine: Machine, settings: Settings, tell: Tell) -> Machine:
    """Wait until the API reports a machine as ready, and return it.

    A machine may be queued for as long as its request is valid.

    Raises:
        NoCapacity: if the zone has no capacity, or the machine was preempted.
        NoQuota: if the project has no quota in the region.
        CloudError: if the machine was refused for another reason, was stopped or was deleted.
    """
    last, start = "", time.time()
    while True:
        if machine.state == "ready":
            return machine
        check_started(machine)
        if machine.state == "lost":
            reason = failure(delete_command(machine), 1, machine.detail)
            kind = type(reason) if isinstance(reason, NoCapacity | NoQuota | NotAllowed) else CloudError
            if machine.detail.startswith(("SUSPEND", "PREEMPTED")):
                kind = Preempted
            raise kind(f"{machine.name} in {machine.zone} was not created: {machine.detail}", remedy=reason.remedy)
        if machine.detail != last:
            tell(f"{machine.name} in {machine.zone}: {machine.detail}")
            last = machine.detail
        time.sleep(settings.poll_seconds)
        there = find_with_retries(machine, settings)
        if not there:
            if was_deleted_since(machine.name, start):
                raise CloudError(f"{machine.name} was deleted by `taetpu tpu down`")
            if machine.api == "gce":  # Compute Engine deletes an instance that it cannot start
                raise NoCapacity(f"{machine.name} disappeared from {machine.zone} before it was ready")
            raise CloudError(f"{machine.name} in {machine.zone} was deleted by somebody else")
        machine = there[0]


def delete(machine: Machine, settings: Settings, tell: Tell) -> None:
    """Delete a machine if it exists, and wait until it is no longer listed.

    Raises:
        CloudError: if the machine has no owner label, or Google refuses to delete it.
        OutcomeUnknown: if the machine is still listed after `unknown_minutes`.
    """
    if not machine.owner:
        problem = f"{machine.name} in {machine.zone} has no label {names_and_labels.OWNER}, so taetpu did not create it"
        raise CloudError(problem, remedy="Delete it in the console if it is yours.")
    tell(f"deleting {machine.name} in {machine.zone}")
    last: CloudError | None = None
    for _ in poll(settings, settings.unknown_minutes):
        try:
            there = find(machine.name, machine.zone, api=machine.api)
            if not there:
                tell(f"deleted {machine.name} in {machine.zone}")
                return
            for other in there:
                if other.state != "deleting":
                    _change(other.name, delete_command(other))
        except NotAllowed as error:
            error.problem = f"{machine.name} in {machine.zone} was not deleted and may cost money\n{error.problem}"
            raise
        except CloudError as error:  # includes "not found" and "another operation is running"
            last = error
    problem = f"{machine.name} in {machine.zone} is still listed and may cost money"
    raise OutcomeUnknown(f"{problem}\n{last.problem if last else ''}", remedy="Run `taetpu tpu down` again.") from last


def discard(machine: Machine, settings: Settings, tell: Tell) -> str:
    """Delete an unusable machine, and return the outcome as text for an error message."""
    try:
        delete(machine, settings, tell)
    except CloudError as error:
        return error.problem
    return f"{machine.name} was deleted"


def down(name: str, owner: str, settings: Settings, tell: Tell) -> list[Machine]:
    """Delete an owner's machines with the given name in all zones, and return the machines that existed.

    Raises:
        CloudError: if machines have this name but all of them belong to other owners.
        OutcomeUnknown: if a zone did not answer, or a machine is still listed.
    """
    await_changes(name, tell)
    unreachable: list[str] = []
    atomic_files.write_file(
        _state_file("deleted", name), str(time.time()).encode(), replace=True
    )  # ends a running `up`
    there = select_owned(find(name, unreachable=unreachable), owner)
    delete_all(there, settings, tell)
    check_reached(unreachable)
    forget(name, settings.project)
    return there


def was_deleted_since(name: str, start: float) -> bool:
    """Return whether `down` ran for a machine on this computer after `start` (seconds since 1970)."""
    with suppress(OSError, ValueError):
        return float(_state_file("deleted", name).read_text(encoding="utf-8")) > start
    return False


def find_deleter(machine: Machine) -> str:
    """Return who deleted a machine that is no longer listed, or "" if the machine was preempted.

    A preempted TPU API machine keeps its queued resource. A preempted Compute Engine instance is deleted by "system":
    https://cloud.google.com/compute/docs/instances/preemptible#detecting_if_instances_were_preempted.
    """
    if machine.api == "tpu-api":
        expired = (names_and_labels.hours_left(machine.labels) or 0) < 0
        return "its timer" if expired else "somebody, or by its timer when it was idle"
    newest = next(iter(read(operation_command("delete", machine.name, machine.zone)) or []), {})
    user = newest.get("user", "")
    if not user or user.startswith("system") or not machine.created:
        return ""
    deleted, created = (datetime.fromisoformat(text) for text in (newest["insertTime"], machine.created))
    return user if deleted > created else ""


def _state_file(kind: str, name: str) -> Path:
    """Return the path of a machine's file of the given kind in this computer's state folder."""
    return state_folder() / kind / os.environ.get("CLOUDSDK_CORE_PROJECT", "no-project") / name


def select_owned(machines: Sequence[Machine], owner: str) -> list[Machine]:
    """Return the owner's machines among `machines`. Raise `CloudError` if all of them belong to other owners."""
    mine = [machine for machine in machines if machine.owner == owner]
    if machines and not mine:
        first = machines[0]
        problem = f"{first.name} in {first.zone} belongs to {first.owner or 'an unknown owner'}"
        raise CloudError(problem, remedy="Ask its owner to delete it, or choose another name.")
    return mine


def describe_remaining(name: str) -> str:
    """Return a line for error messages about machines with the given name that exist or may exist.

    The line is "" if no machine exists.
    """
    unreachable: list[str] = []
    try:
        places = [machine.zone for machine in find(name, unreachable=unreachable) if machine.state != "deleting"]
    except CloudError:
        return f"\n{describe_possible(name)}"
    if places:
        return f"\n{name} in {', '.join(places)} still exists and costs money; delete it with `taetpu tpu down {name}`"
    return f"\n{describe_possible(name)} (no answer from {', '.join(unreachable)})" if unreachable else ""


def describe_possible(name: str) -> str:
    """Return the message about a machine that may exist."""
    return (
        f"{name} may exist or appear later, and cost money; "
        f"repeat the command to continue, or delete the machine with `taetpu tpu down {name}`"
    )


def delete_all(machines: Iterable[Machine], settings: Settings, tell: Tell) -> None:
    """Delete machines, and continue after errors. All errors are printed.

    Raises:
        CloudError: if a machine could not be deleted; the first error is raised.
    """
    errors: list[CloudError] = []
    for machine in machines:
        try:
            delete(machine, settings, tell)
        except CloudError as error:
            tell(error.problem)
            errors.append(error)
    if errors:
        raise errors[0]


def list_expired(owner: str, unreachable: list[str]) -> list[Machine]:
    """Return an owner's machines that still exist after their deletion deadline, for example because a timer failed.

    Args:
        owner: owner in the machines' labels.
        unreachable: list to which zones that did not answer are appended.
    """
    mine = [machine for machine in list_machines(unreachable=unreachable) if machine.owner == owner]
    return [machine for machine in mine if (names_and_labels.hours_left(machine.labels) or 0) < 0]


@contextmanager
def name_lock(name: str, operation: int) -> Iterator[int]:
    """Hold this computer's lock on a machine's name, shared or exclusive, and yield the lock's file descriptor."""
    path = _state_file("changes", name)
    with atomic_files.explain_os_error("write", path):
        atomic_files.make_folder(path.parent)
        file = path.open("w")
    with file:
        fcntl.flock(file, operation)
        yield file.fileno()


def _change(name: str, line: Command) -> None:
    """Run a command that changes a machine. gcloud holds the lock on the name even if this process is killed."""
    with name_lock(name, fcntl.LOCK_SH) as lock:
        change(line, lock)


def await_changes(name: str, tell: Tell) -> None:
    """Wait for gcloud commands that a killed process left running, so that their effects are visible."""
    with _exclusive_lock(name, tell, f"waiting for an earlier gcloud command for {name}"):
        pass


@contextmanager
def _exclusive_lock(name: str, tell: Tell, waiting: str) -> Iterator[None]:
    """Hold the lock on a name exclusively, and print a message if another process holds the lock."""
    with ExitStack() as lock:
        try:
            lock.enter_context(name_lock(name, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            tell(waiting)
            lock.enter_context(name_lock(name, fcntl.LOCK_EX))
        yield


def poll(settings: Settings, minutes: float) -> Iterator[None]:
    """Yield immediately, then every `poll_seconds`, and a last time after `minutes` have passed."""
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        yield
        time.sleep(settings.poll_seconds)
    yield


def find_with_retries(machine: Machine, settings: Settings) -> list[Machine]:
    """Return the result of `find` for a machine, and retry for `unknown_minutes` if no answer arrives."""
    for _ in poll(settings, settings.unknown_minutes):
        with suppress(OutcomeUnknown):
            return find(machine.name, machine.zone, api=machine.api)
    return find(machine.name, machine.zone, api=machine.api)
