"""Make a machine or find the one that exists; delete machines so that nothing is left that costs money.

Both can be repeated at any time, from anywhere, whatever became of an earlier call: names are deterministic, the state
is read from Google before every change, and after a command whose outcome is unknown it is read again.
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

from taetpu.cloud import labels
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
from taetpu.cloud.machines import Machine, Spec, check_reached, create_command, delete_command, find, list_machines
from taetpu.cloud.settings import Settings
from taetpu.cloud.ssh import forget, public_key, state_folder
from taetpu.cloud.startup import startup_script
from taetpu.core import disk
from taetpu.core.errors import UserError

Tell = Callable[[str], None]

DELETERS = ("roles/tpu.admin", "roles/editor", "roles/owner")
"""Predefined roles that may delete a queued resource."""


def find_existing(spec: Spec) -> Machine | None:
    """Return the machine of a spec's name that is not lost; None where there is none.

    Raises:
        CloudError: a machine of this name belongs to somebody else, or differs from the spec.
    """
    there = [one for one in find(spec.name) if one.state not in ("lost", "deleting")]
    if not there:
        return None
    check_one(there)
    machine = there[0]
    if machine.owner != spec.owner:
        problem = f"{spec.name} in {machine.zone} belongs to {machine.owner or 'nobody that taetpu knows'}"
        raise CloudError(problem, remedy="Choose another name.")
    if machine.labels.get(labels.SPEC) != spec.identity:
        problem = f"{spec.name} exists in {machine.zone} with other settings: it is a {machine.type}"
        raise CloudError(problem, remedy=f"`taetpu tpu down {spec.name}` deletes it; or choose another name.")
    check_started(machine)
    return machine


def check_started(machine: Machine) -> None:
    """Raise `CloudError` where somebody stopped a machine: it never becomes ready, and its disk may hold something."""
    if machine.state == "stopped":
        problem = f"{machine.name} in {machine.zone} is stopped ({machine.detail})"
        raise CloudError(problem, remedy=f"Start it in the console, or `taetpu tpu down {machine.name}`.")


def check_one(machines: Sequence[Machine]) -> None:
    """Raise `CloudError` where several machines have one name: two computers may have made them at the same time."""
    if len(machines) > 1:
        problem = f"{machines[0].name} exists {len(machines)} times: in {', '.join(one.zone for one in machines)}"
        raise CloudError(problem, remedy=f"`taetpu tpu down {machines[0].name}` deletes yours.")


def make(
    spec: Spec, zones: Sequence[str], settings: Settings, tell: Tell, prepare: Callable[[Machine], object] | None = None
) -> Machine:
    """Return the machine of a spec in state ready: the one that exists, else one made in the first zone that has it.

    Where it cannot be prepared, it is deleted if this call made it: nobody has used it, and whether its timer runs is
    not known. What an attempt leaves behind that is not a running machine is deleted. Calls for one name on one
    computer wait for each other. Where another computer makes a machine of this name at the same time, the one
    requested first is kept.

    Raises:
        NoCapacity: no zone has one.
        NoQuota: the project may not have one in any zone.
        OutcomeUnknown: whether it was made could not be found out; it may exist.
        CloudError: Google refused it, or `find_existing` does.
        UserError: OpenSSH or rsync is not installed.
    """
    for needed in ("ssh", "ssh-keygen", "rsync"):  # before anything costs money
        program(needed)
    with _exclusive_lock(f"{spec.name}.making", tell, f"waiting for another `taetpu tpu up` of {spec.name}"):
        await_changes(spec.name, tell)
        check_can_delete_itself(spec, settings.project)
        there = find_existing(spec)
        machine = _make(there, spec, zones, settings, tell)
        try:
            if prepare:
                prepare(machine)
        except UserError as error:
            if there is None:
                error.problem += f"\n{discard(machine, settings, tell)}"
            raise
        return machine


def _make(there: Machine | None, spec: Spec, zones: Sequence[str], settings: Settings, tell: Tell) -> Machine:
    began, refusals = time.time(), list[CloudError]()
    for zone in dict.fromkeys([there.zone, *zones] if there else zones):
        if was_deleted_since(spec.name, began):
            raise CloudError(f"{spec.name} was deleted by `taetpu tpu down`")
        try:
            machine = wait_ready(there or _create(spec, zone, settings, tell), settings, tell)
        except OutcomeUnknown:
            raise
        except CloudError as refusal:
            tell(f"{zone}: {_last_line(refusal)}")
            _delete_lost(spec, zone, settings, tell)
            if not isinstance(refusal, NoCapacity | NoQuota):
                raise
            there = None
            refusals.append(refusal)
            continue
        return machine if there else keep_first(machine, settings, tell)
    raise next((one for one in refusals if isinstance(one, NoCapacity)), refusals[0])


def keep_first(made: Machine, settings: Settings, tell: Tell) -> Machine:
    """Return the machine of this name and owner that was requested first, in state ready; delete the others.

    A request that was thought refused may have been granted late, or another computer has made one meanwhile.
    """
    same = [one for one in find(made.name) if one.owner == made.owner and one.state not in ("lost", "deleting")]
    first, *others = sorted(same or [made], key=lambda one: (one.created, one.zone))
    for other in others:
        delete(other, settings, tell)
    return made if first.zone == made.zone else wait_ready(first, settings, tell)


def creation_command(spec: Spec, zone: str, settings: Settings) -> Command:
    """Return the command that creates a machine in a zone. Its startup script is written to the state folder."""
    file = _state_file("startup", f"{spec.name}.{zone}.sh")
    disk.write_file(file, startup_script(spec, zone, settings).encode(), replace=True)
    return create_command(spec, zone, file, public_key())


def _create(spec: Spec, zone: str, settings: Settings, tell: Tell) -> Machine:
    """Ask for a machine; return it once it is listed.

    After a request without an answer the state is read before anything else is done. Where neither the machine nor an
    operation that makes it is found, the request did not arrive, and is repeated under the same name.
    """
    _delete_lost(spec, zone, settings, tell)  # a queued resource keeps its name and quota until it is deleted
    tell(f"creating {spec.name} ({spec.tpu.name}) in {zone}")
    line, before = creation_command(spec, zone, settings), _last_operation(spec, zone)
    unknown: CloudError | None = None
    running = False
    for _ in poll(settings, settings.unknown_minutes):
        try:
            if not running:
                _change(spec.name, line)
        except OutcomeUnknown as error:
            tell(f"no answer from Google: reading whether {spec.name} exists")
            unknown = error
        except CloudError:
            if not (there := select_owned(find(spec.name, zone, api=spec.api), spec.owner)):
                raise
            return there[0]  # it exists: the request before was granted, or another call's was
        try:
            if there := select_owned(find(spec.name, zone, api=spec.api), spec.owner):
                return there[0]
            operation = _last_operation(spec, zone)
        except OutcomeUnknown as error:
            unknown, running = error, True  # nothing is known: read again before anything is changed
            continue
        running = operation != before and operation.get("status") != "DONE"
        if operation != before and (errors := operation.get("error", {}).get("errors")):
            raise failure(line, 1, json.dumps(errors))
    problem = f"{spec.name} was requested in {zone} and is not listed: it may still appear, and cost money"
    raise OutcomeUnknown(problem, remedy=f"`taetpu tpu down {spec.name}` makes sure that nothing is left.") from unknown


def operation_command(kind: str, name: str, zone: str) -> Command:
    """Return the command that reads the newest operation on an instance, of kind `insert` or `delete`."""
    return command(
        "compute", "operations", "list", zones=zone, sort_by="~insertTime", limit=1,
        filter=f"operationType={kind} AND targetLink~/{name}$",
    )  # fmt: skip


def _last_operation(spec: Spec, zone: str) -> Mapping[str, Any]:
    """Compute Engine's newest operation that makes a machine; the TPU API tells of failures in the machine's state."""
    found = read(operation_command("insert", spec.name, zone)) if spec.api == "gce" else None
    return found[0] if found else {}


def _delete_lost(spec: Spec, zone: str, settings: Settings, tell: Tell) -> None:
    """Delete what is left of a machine of this owner that was refused or taken away."""
    for left in find(spec.name, zone, api=spec.api):
        if left.state in ("lost", "deleting") and left.owner == spec.owner:
            delete(left, settings, tell)


def wait_ready(machine: Machine, settings: Settings, tell: Tell) -> Machine:
    """Wait until a machine is ready by the API. It may wait in a queue for as long as its request is valid.

    Raises:
        NoCapacity, NoQuota, CloudError: it was refused or taken away.
    """
    said, began = "", time.time()
    while True:
        if machine.state == "ready":
            return machine
        check_started(machine)
        if machine.state == "lost":
            reason = failure(delete_command(machine), 1, machine.detail)
            kind = type(reason) if isinstance(reason, NoCapacity | NoQuota | NotAllowed) else CloudError
            if machine.detail.startswith(("SUSPEND", "PREEMPTED")):  # taken away as soon as it was given
                kind = Preempted
            raise kind(f"{machine.name} in {machine.zone} was not made: {machine.detail}", remedy=reason.remedy)
        if machine.detail != said:
            tell(f"{machine.name} in {machine.zone}: {machine.detail}")
            said = machine.detail
        time.sleep(settings.poll_seconds)
        there = find_with_retries(machine, settings)
        if not there:
            if was_deleted_since(machine.name, began):
                raise CloudError(f"{machine.name} was deleted by `taetpu tpu down`")
            if machine.api == "gce":  # Compute Engine removes an instance that it could not make
                raise NoCapacity(f"{machine.name} disappeared from {machine.zone} before it was ready")
            raise CloudError(f"{machine.name} in {machine.zone} was deleted by somebody else")
        machine = there[0]


def delete(machine: Machine, settings: Settings, tell: Tell) -> None:
    """Delete a machine and wait until it is no longer listed; nothing there is fine.

    Raises:
        CloudError: it does not belong to anybody that taetpu knows, or Google refuses.
        OutcomeUnknown: it is still listed.
    """
    if not machine.owner:
        problem = f"{machine.name} in {machine.zone} has no label {labels.OWNER}: taetpu did not make it"
        raise CloudError(problem, remedy="Delete it in the console if it is yours.")
    tell(f"deleting {machine.name} in {machine.zone}")
    last: CloudError | None = None
    for _ in poll(settings, settings.unknown_minutes):
        try:
            there = find(machine.name, machine.zone, api=machine.api)
            if not there:
                tell(f"deleted {machine.name} in {machine.zone}")
                return
            for one in there:
                if one.state != "deleting":
                    _change(one.name, delete_command(one))
        except NotAllowed as error:
            error.problem = f"{machine.name} in {machine.zone} was not deleted and may cost money\n{error.problem}"
            raise
        except CloudError as error:  # also "not found", and "busy with another operation"
            last = error
    problem = f"{machine.name} in {machine.zone} is still listed: it may cost money"
    raise OutcomeUnknown(f"{problem}\n{last.problem if last else ''}", remedy="Run `taetpu tpu down` again.") from last


def discard(machine: Machine, settings: Settings, tell: Tell) -> str:
    """Delete a machine that is not usable; what became of it, for the message that says why."""
    try:
        delete(machine, settings, tell)
    except CloudError as error:
        return error.problem
    return f"{machine.name} was deleted"


def down(name: str, owner: str, settings: Settings, tell: Tell) -> list[Machine]:
    """Delete an owner's machines of a name in all zones; those that were there.

    Raises:
        CloudError: all of this name belong to somebody else.
        OutcomeUnknown: a zone did not answer, or a machine is still listed.
    """
    await_changes(name, tell)
    unreachable: list[str] = []
    disk.write_file(_state_file("deleted", name), str(time.time()).encode(), replace=True)  # an `up` that runs ends
    there = select_owned(find(name, unreachable=unreachable), owner)
    delete_all(there, settings, tell)
    check_reached(unreachable)
    forget(name, settings.project)
    return there


def was_deleted_since(name: str, began: float) -> bool:
    """Return whether `down` was given for a machine on this computer after a time, in seconds since 1970."""
    with suppress(OSError, ValueError):
        return float(_state_file("deleted", name).read_text(encoding="utf-8")) > began
    return False


def find_deleter(machine: Machine) -> str:
    """Return who deleted a machine that is no longer listed; "" where it was preempted.

    A preempted TPU API machine keeps its queued resource. A preempted Compute Engine instance is deleted by "system":
    https://cloud.google.com/compute/docs/instances/preemptible#detecting_if_instances_were_preempted.
    """
    if machine.api == "tpu-api":
        over = (labels.hours_left(machine.labels) or 0) < 0
        return "its timer" if over else "somebody, or by its timer when it was idle"
    newest = next(iter(read(operation_command("delete", machine.name, machine.zone)) or []), {})
    user = newest.get("user", "")
    if not user or user.startswith("system") or not machine.created:
        return ""
    asked, made = (datetime.fromisoformat(text) for text in (newest["insertTime"], machine.created))
    return user if asked > made else ""


def _state_file(kind: str, name: str) -> Path:
    """Return the file of a machine of the project in this computer's state folder."""
    return state_folder() / kind / os.environ.get("CLOUDSDK_CORE_PROJECT", "no-project") / name


def select_owned(machines: Sequence[Machine], owner: str) -> list[Machine]:
    """Return the machines of an owner; `CloudError` where there are some and all belong to somebody else."""
    mine = [machine for machine in machines if machine.owner == owner]
    if machines and not mine:
        first = machines[0]
        problem = f"{first.name} in {first.zone} belongs to {first.owner or 'nobody that taetpu knows'}"
        raise CloudError(problem, remedy="Its owner can delete it; another name is free.")
    return mine


def describe_remaining(name: str) -> str:
    """Return a line on machines of a name that exist or may exist, for messages of errors; "" where there are none."""
    unreachable: list[str] = []
    try:
        places = [one.zone for one in find(name, unreachable=unreachable) if one.state != "deleting"]
    except CloudError:
        return f"\n{describe_possible(name)}"
    if places:
        return f"\n{name} in {', '.join(places)} still exists and costs money: `taetpu tpu down {name}` deletes it"
    return f"\n{describe_possible(name)} (no answer from {', '.join(unreachable)})" if unreachable else ""


def describe_possible(name: str) -> str:
    """Return what is said where it is not known whether a machine exists."""
    return (
        f"{name} may exist, or appear later, and cost money: "
        f"the same command continues, `taetpu tpu down {name}` deletes it"
    )


def delete_all(machines: Iterable[Machine], settings: Settings, tell: Tell) -> None:
    """Delete machines, each of them whatever becomes of the others.

    Raises:
        CloudError: some could not be deleted; the first error, with the others printed.
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
    """Return an owner's machines whose latest end has passed: what should have deleted them has failed.

    Args:
        unreachable: zones that did not answer are appended.
    """
    mine = [machine for machine in list_machines(unreachable=unreachable) if machine.owner == owner]
    return [machine for machine in mine if (left := labels.hours_left(machine.labels)) is not None and left < 0]


def check_can_delete_itself(spec: Spec, project: str) -> None:
    """Refuse a TPU API machine whose service account cannot delete it: nothing else ends it for certain.

    Raises:
        NotAllowed: the account lacks the role, or the project's policy cannot be read.
    """
    if spec.api != "tpu-api":
        return
    account = spec.service_account or default_account(project)
    bindings = [row["bindings"] for row in read(policy_command(project, account)) or []]
    roles = [one["role"] for one in bindings if "condition" not in one]  # a condition may not hold at that time
    own = any("tpu.queuedResources.delete" in role_permissions(role) for role in roles)
    if own or any(role in DELETERS for role in roles):
        return
    problem = f"{account} cannot delete queued resources, so {spec.name} could not delete itself at the end of its time"
    unseen = "Roles with a condition, or of a folder or the organisation, do not count."
    raise NotAllowed(problem, remedy=f"{unseen} Grant one: `{grant_command(project, account).shown}`")


def policy_command(project: str, account: str) -> Command:
    """Return the command that reads the roles of a service account in a project."""
    member = f"bindings.members=serviceAccount:{account}"
    return command("projects", "get-iam-policy", project, flatten="bindings[].members", filter=member)


def grant_command(project: str, account: str) -> Command:
    """Return the command that lets a service account delete TPUs."""
    return command("projects", "add-iam-policy-binding", project, member=f"serviceAccount:{account}", role=DELETERS[0])


def role_permissions(role: str) -> Iterable[str]:
    """Return the permissions of a custom role; none for a predefined one, which `DELETERS` covers."""
    parts = role.split("/")
    if len(parts) != 4:
        return ()
    place = {parts[0].removesuffix("s"): parts[1]}
    return (read(command("iam", "roles", "describe", parts[3], **place)) or {}).get("includedPermissions", ())


def default_account(project: str) -> str:
    """Return the service account that machines have where the settings name none."""
    number = read(command("projects", "describe", project))["projectNumber"]
    return f"{number}-compute@developer.gserviceaccount.com"


@contextmanager
def name_lock(name: str, operation: int) -> Iterator[int]:
    """Hold the lock of a machine's name on this computer, shared or alone; its file descriptor."""
    path = _state_file("changes", name)
    with disk.explained("write", path):
        disk.make_folder(path.parent)
        file = path.open("w")
    with file:
        fcntl.flock(file, operation)
        yield file.fileno()


def _change(name: str, line: Command) -> None:
    """Run a command that changes a machine. gcloud holds the name's lock, even where this process is killed."""
    with name_lock(name, fcntl.LOCK_SH) as lock:
        change(line, lock)


def await_changes(name: str, tell: Tell) -> None:
    """Wait for gcloud commands that a killed process left running: what they do must be seen."""
    with _exclusive_lock(name, tell, f"waiting for an earlier gcloud command for {name}"):
        pass


@contextmanager
def _exclusive_lock(name: str, tell: Tell, waiting: str) -> Iterator[None]:
    """Hold a lock alone; a message where another process holds it."""
    with ExitStack() as lock:
        try:
            lock.enter_context(name_lock(name, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            tell(waiting)
            lock.enter_context(name_lock(name, fcntl.LOCK_EX))
        yield


def poll(settings: Settings, minutes: float) -> Iterator[None]:
    """Yield at once, every `poll_seconds`, and a last time after `minutes` have passed."""
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        yield
        time.sleep(settings.poll_seconds)
    yield


def find_with_retries(machine: Machine, settings: Settings) -> list[Machine]:
    """Read a machine again, for `unknown_minutes` while no answer arrives."""
    for _ in poll(settings, settings.unknown_minutes):
        with suppress(OutcomeUnknown):
            return find(machine.name, machine.zone, api=machine.api)
    return find(machine.name, machine.zone, api=machine.api)


def _last_line(error: CloudError) -> str:
    return error.problem.strip().splitlines()[-1]
