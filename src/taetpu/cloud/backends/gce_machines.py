"""What Compute Engine tells of machines, in taetpu's words."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from taetpu.cloud.backends.base import Machine, State, Worker
from taetpu.cloud.backends.gce_requests import TYPE, labels_in
from taetpu.cloud.spec import STACK
from taetpu.core.chips import generations, resolve

STATES = {
    "PENDING": State.WAITING,
    "PROVISIONING": State.CREATING,
    "STAGING": State.CREATING,
    "RUNNING": State.READY,
}
"""By an instance's status. Every other one is on its way to its end: nothing of ours is stopped to be started again."""


def is_tpu(machine_type: str) -> bool:
    """Whether a machine type has TPUs: `ct6e-standard-8t`, `tpu7x-standard-4t`."""
    return re.match(r"(ct\d|tpu\d)", machine_type) is not None


def single(instance: Any, zone: str) -> Machine:
    """A slice of one host, or any other instance with TPUs. A host of ours whose group is going is LOST."""
    state = STATES.get(instance.status, State.LOST)
    detail = instance.status + (f": {instance.status_message}" if instance.status_message else "")
    if instance.labels.get(STACK, instance.name) != instance.name:
        state, detail = State.LOST, f"{detail}, and its group is gone"
    return Machine(
        instance.name,
        zone,
        "gce",
        _slice(instance.machine_type.rpartition("/")[2]),
        state,
        detail,
        dict(instance.labels),
        (worker(instance),),
        instance.creation_timestamp,
        instance.last_start_timestamp,
        _spot(instance),
    )


def several(group: Any, managed: Sequence[Any], instances: Mapping[str, Any], zone: str) -> Machine:
    """A slice of several hosts, in the order of their names.

    A public report of July 2026 found the names that a slice's metadata lists for its workers in this order.

    Args:
        managed: what the group says of each host.
        instances: those that exist, by name.
    """
    labels = labels_in(group.description)
    kind = labels.pop(TYPE, "")
    hosts = resolve(kind).hosts if kind else group.target_size
    there = [instances[name] for name in sorted(one.name for one in managed) if name in instances]
    workers = tuple(worker(one) for one in there)
    state, detail = _state(group, managed, hosts)
    if state is State.READY and len(there) < hosts:  # they were asked for one after the other
        state = State.UNKNOWN
    spot = any(_spot(one) for one in there)
    started = min(filter(None, (one.last_start_timestamp for one in there)), default="")
    created = group.creation_timestamp
    return Machine(group.name, zone, "gce", kind or "group", state, detail, labels, workers, created, started, spot)


def remnant(labels: Mapping[str, str], stack: str, zone: str, created: str) -> Machine:
    """What is left of a slice whose group is not there: its policy or its template. It costs nothing."""
    rest = dict(labels)
    detail = "only its policy or template is left"
    return Machine(stack, zone, "gce", rest.pop(TYPE, ""), State.LOST, detail, rest, (), created)


def worker(instance: Any) -> Worker:
    interface = instance.network_interfaces[0] if instance.network_interfaces else None
    outside = [access.nat_i_p for access in interface.access_configs if access.nat_i_p] if interface else []
    inside = interface.network_i_p if interface else ""
    return Worker(outside[0] if outside else inside, instance=instance.name, inside=inside)


def _state(group: Any, managed: Sequence[Any], hosts: int) -> tuple[State, str]:
    """READY only when all hosts run; LOST as soon as one of them is on its way to its end or is gone for good."""
    statuses = [one.instance_status for one in managed]
    counts = Counter(status or "not there" for status in statuses)
    detail = f"{counts['RUNNING']} of {hosts} hosts RUNNING"
    others = [f"{count} {status}" for status, count in sorted(counts.items()) if status != "RUNNING"]
    detail += f" ({', '.join(others)})" if others else ""
    if words := next((f": {one.code}: {one.message}" for one in troubles(group, managed)), ""):
        detail += words
    if any(one.current_action == "DELETING" for one in managed):
        return State.DELETING, detail
    if any(status and status not in STATES for status in statuses):
        return State.LOST, detail
    if len(statuses) == hosts and all(status == "RUNNING" for status in statuses):
        return State.READY, detail
    if group.status.is_stable:
        return State.LOST, detail
    waiting = statuses and all(status == "PENDING" for status in statuses)
    return State.WAITING if waiting else State.CREATING, detail


def troubles(group: Any, managed: Iterable[Any]) -> list[Any]:
    """The errors of a group's last attempt to make its hosts."""
    found = list(group.status.bulk_instance_operation.last_progress_check.error.errors)
    return found or [error for one in managed for error in one.last_attempt.errors.errors]


@cache
def _slice(machine_type: str) -> str:
    """The accelerator type of one host: `v6e-8`; the machine type where it is none that is known."""
    for chip in generations():
        for chips, name in chip.machine_types:
            if name == machine_type and chips in chip.single_host_chips:
                return f"{chip.names[0]}-{chips * chip.per_chip}"
    return machine_type


def _spot(instance: Any) -> bool:
    return instance.scheduling.provisioning_model == "SPOT" or instance.scheduling.preemptible
