"""Make a machine or find the one that exists; delete machines so that nothing is left that costs money.

Both can be repeated at any time, from anywhere, whatever became of an earlier call: names are deterministic, the state
is read from Google before every change, and after a command whose outcome is unknown it is read again.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from taetpu.cloud import labels
from taetpu.cloud.gcloud import (
    CloudError,
    NoCapacity,
    NoQuota,
    NotAllowed,
    OutcomeUnknown,
    change,
    command,
    failure,
    read,
)
from taetpu.cloud.machines import Machine, Spec, create_command, delete_command, find, list_machines
from taetpu.cloud.settings import Settings
from taetpu.cloud.ssh import forget, public_key, state_folder
from taetpu.cloud.startup import startup_script
from taetpu.core import disk

Tell = Callable[[str], None]

DELETERS = ("roles/tpu.admin", "roles/editor", "roles/owner")
"""Predefined roles that may delete a queued resource."""


def existing(spec: Spec) -> Machine | None:
    """The machine of a spec's name that is not lost; None where there is none.

    Raises:
        CloudError: a machine of this name belongs to somebody else, or differs from the spec.
    """
    there = [one for one in find(spec.name) if one.state not in ("lost", "deleting")]
    if not there:
        return None
    machine = there[0]
    if machine.owner != spec.owner:
        problem = f"{spec.name} in {machine.zone} belongs to {machine.owner or 'nobody that taetpu knows'}"
        raise CloudError(problem, remedy="Choose another name.")
    if machine.labels.get(labels.SPEC) != spec.identity:
        problem = f"{spec.name} exists in {machine.zone} with other settings: it is a {machine.type}"
        raise CloudError(problem, remedy=f"`taetpu tpu down {spec.name}` deletes it; or choose another name.")
    if machine.state == "stopped":
        problem = f"{spec.name} in {machine.zone} is stopped"
        raise CloudError(problem, remedy=f"Start it in the console, or `taetpu tpu down {spec.name}`.")
    return machine


def make(spec: Spec, zones: Sequence[str], settings: Settings, tell: Tell) -> Machine:
    """Return the machine of a spec in state ready: the one that exists, else one made in the first zone that has it.

    Raises:
        NoCapacity: no zone has one.
        NoQuota: the project may not have one in any zone.
        OutcomeUnknown: whether it was made could not be found out; it may exist.
        CloudError: Google refused it, or `existing` does.
    """
    check_can_delete_itself(spec, settings.project)
    machine = existing(spec)
    if machine:
        return wait_ready(machine, settings, tell)
    refusals: list[CloudError] = []
    for zone in zones:
        for lost in find(spec.name, zone):  # a queued resource keeps its name and quota until it is deleted
            delete(lost, settings, tell)
        tell(f"creating {spec.name} ({spec.tpu.name}) in {zone}")
        try:
            return wait_ready(_create(spec, zone, settings, tell), settings, tell)
        except (NoCapacity, NoQuota) as refusal:
            tell(f"{zone}: {_last_line(refusal)}")
            refusals.append(refusal)
            for left in find(spec.name, zone):
                delete(left, settings, tell)
    raise next((one for one in refusals if isinstance(one, NoCapacity)), refusals[0])


def creation(spec: Spec, zone: str, settings: Settings):
    """The command that creates a machine in a zone. Its startup script is written to the state folder."""
    file = state_folder() / "startup" / f"{spec.name}.{zone}.sh"
    disk.write_file(file, startup_script(spec, zone, settings).encode(), replace=True)
    return create_command(spec, zone, file, public_key())


def _create(spec: Spec, zone: str, settings: Settings, tell: Tell) -> Machine:
    """Ask for a machine; return it once it is listed. A request without an answer is repeated under the same name."""
    line = creation(spec, zone, settings)
    unknown: OutcomeUnknown | None = None
    for _ in polling(settings, settings.unknown_minutes):
        try:
            change(line)
        except OutcomeUnknown as error:
            tell(f"no answer from Google: reading whether {spec.name} exists")
            unknown = error
        except CloudError:
            if not (there := find(spec.name, zone)):
                raise
            return there[0]  # it exists: the request before was granted, or another call's was
        if there := find(spec.name, zone):
            return there[0]
        if error := _failed_operation(spec, zone):
            raise error
    assert unknown or spec
    problem = f"{spec.name} was requested in {zone} and is not listed: it may still appear, and cost money"
    raise OutcomeUnknown(problem, remedy=f"`taetpu tpu down {spec.name}` makes sure that nothing is left.") from unknown


def _failed_operation(spec: Spec, zone: str) -> CloudError | None:
    """Why Compute Engine did not make an instance, by its last operation; the TPU API tells in the state."""
    if spec.api != "gce":
        return None
    line = command(
        "compute", "operations", "list", zones=zone, sort_by="~insertTime", limit=1,
        filter=f"operationType=insert AND targetLink~/{spec.name}$ AND status=DONE",
    )  # fmt: skip
    for operation in read(line) or []:
        if errors := operation.get("error", {}).get("errors"):
            return failure(line, 1, json.dumps(errors))
    return None


def wait_ready(machine: Machine, settings: Settings, tell: Tell) -> Machine:
    """Wait until a machine is ready by the API. It may wait in a queue for as long as its request is valid.

    Raises:
        NoCapacity, NoQuota, CloudError: it was refused or taken away.
    """
    said = ""
    while True:
        if machine.state == "ready":
            return machine
        if machine.state == "lost":
            reason = failure(delete_command(machine), 1, machine.detail)
            kind = type(reason) if isinstance(reason, NoCapacity | NoQuota | NotAllowed) else CloudError
            raise kind(f"{machine.name} in {machine.zone} was not made: {machine.detail}", remedy=reason.remedy)
        if machine.detail != said:
            tell(f"{machine.name} in {machine.zone}: {machine.detail}")
            said = machine.detail
        time.sleep(settings.poll_seconds)
        there = _find_patiently(machine, settings)
        if not there:
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
    for _ in polling(settings, settings.unknown_minutes):
        try:
            there = find(machine.name, machine.zone)
            if not there:
                tell(f"deleted {machine.name} in {machine.zone}")
                return
            for one in there:
                if one.state != "deleting":
                    change(delete_command(one))
        except (NotAllowed, NoQuota):
            raise
        except CloudError as error:  # also "not found", and "busy with another operation"
            last = error
    problem = f"{machine.name} in {machine.zone} is still listed: it may cost money"
    raise OutcomeUnknown(f"{problem}\n{last.problem if last else ''}", remedy="Run `taetpu tpu down` again.") from last


def down(name: str, owner: str, settings: Settings, tell: Tell) -> list[Machine]:
    """Delete every machine of a name in all zones; those that were there.

    Raises:
        CloudError: one belongs to somebody else.
    """
    there = find(name)
    for machine in there:
        if machine.owner != owner:
            problem = f"{name} in {machine.zone} belongs to {machine.owner or 'nobody that taetpu knows'}"
            raise CloudError(problem, remedy="Its owner can delete it.")
    for machine in there:
        delete(machine, settings, tell)
    forget(name, settings.project)
    return there


def expired(owner: str) -> list[Machine]:
    """An owner's machines whose latest end has passed: what should have deleted them has failed."""
    mine = [machine for machine in list_machines() if machine.owner == owner]
    return [machine for machine in mine if (left := labels.hours_left(machine.labels)) is not None and left < 0]


def check_can_delete_itself(spec: Spec, project: str) -> None:
    """Refuse a TPU API machine whose service account cannot delete it: nothing else ends it for certain.

    Raises:
        NotAllowed: the account lacks the role, or the project's policy cannot be read.
    """
    if spec.api != "tpu-api":
        return
    account = spec.service_account or default_account(project)
    line = command(
        "projects", "get-iam-policy", project, flatten="bindings[].members",
        filter=f"bindings.members=serviceAccount:{account}",
    )  # fmt: skip
    roles = [row["bindings"]["role"] for row in read(line) or []]
    own = any("tpu.queuedResources.delete" in permissions(role) for role in roles)
    if own or any(role in DELETERS for role in roles):
        return
    grant = command("projects", "add-iam-policy-binding", project, member=f"serviceAccount:{account}", role=DELETERS[0])
    problem = f"{account} cannot delete queued resources, so {spec.name} could not delete itself at the end of its time"
    raise NotAllowed(problem, remedy=f"Grant it the role: `{grant.shown}`")


def permissions(role: str) -> Iterable[str]:
    """The permissions of a custom role; none for a predefined one, which `DELETERS` covers."""
    parts = role.split("/")
    if len(parts) != 4:
        return ()
    place = {parts[0].removesuffix("s"): parts[1]}
    return (read(command("iam", "roles", "describe", parts[3], **place)) or {}).get("includedPermissions", ())


def default_account(project: str) -> str:
    """The service account that machines have where the settings name none."""
    number = read(command("projects", "describe", project))["projectNumber"]
    return f"{number}-compute@developer.gserviceaccount.com"


def polling(settings: Settings, minutes: float) -> Iterator[float]:
    """Yield at once and then every `poll_seconds` until `minutes` have passed; the seconds since the start."""
    start = time.monotonic()
    while (passed := time.monotonic() - start) < minutes * 60:
        yield passed
        time.sleep(settings.poll_seconds)


def _find_patiently(machine: Machine, settings: Settings) -> list[Machine]:
    """Read a machine again, for `unknown_minutes` while no answer arrives."""
    for passed in polling(settings, settings.unknown_minutes):
        try:
            return find(machine.name, machine.zone)
        except OutcomeUnknown:
            if passed + settings.poll_seconds >= settings.unknown_minutes * 60:
                raise
    return find(machine.name, machine.zone)


def _last_line(error: CloudError) -> str:
    return error.problem.strip().splitlines()[-1]
