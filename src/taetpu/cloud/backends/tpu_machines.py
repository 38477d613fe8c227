"""What the Cloud TPU API tells of a queued resource and its node, joined into one machine."""

from typing import TYPE_CHECKING, Any

from taetpu.cloud.backends.base import Machine, State, Worker
from taetpu.cloud.clients import fake_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.cloud import tpu_v2

REQUEST = {
    "CREATING": State.WAITING, "ACCEPTED": State.WAITING, "WAITING_FOR_RESOURCES": State.WAITING,
    "PROVISIONING": State.CREATING, "DELETING": State.DELETING, "FAILED": State.LOST, "SUSPENDING": State.LOST,
    "SUSPENDED": State.LOST,
}  # fmt: skip
"""States of a queued resource; one that is ACTIVE is as its node is."""

NODE = {
    "CREATING": State.CREATING, "READY": State.READY, "RESTARTING": State.CREATING, "REIMAGING": State.CREATING,
    "REPAIRING": State.CREATING, "STARTING": State.CREATING, "DELETING": State.DELETING, "STOPPING": State.STOPPED,
    "STOPPED": State.STOPPED, "PREEMPTED": State.LOST, "TERMINATED": State.LOST,
}  # fmt: skip

LOSSES = (State.LOST, State.DELETING)


def joined(
    request: "tpu_v2.QueuedResource | None", node: "tpu_v2.Node | None", instances: "Sequence[str]" = ()
) -> Machine:
    """One machine: a request that has no node yet, a node that nobody queued for, or both.

    Args:
        instances: the names of its virtual machines, by worker; none if they are not known.
    """
    spec = next(iter(request.tpu.node_spec), None) if request else None
    told: Any = node or (spec.node if spec else None)
    full = node.name if node else (request.name if request else "")
    state, detail = _state(request, node)
    created, started = (_iso(getattr(one, "create_time", None)) for one in (node or request, node))
    spot = bool(request and "spot" in request) or bool(node and node.scheduling_config.spot)
    return Machine(
        name=last(full),
        zone=full.split("/locations/")[1].split("/")[0],
        backend="tpu-api",
        type=told.accelerator_type if told else "",
        state=state,
        detail=detail,
        labels=dict(told.labels) if told else {},
        workers=_workers(node, instances) if node else (),
        created=created,
        started=started,
        spot=spot,
    )


def last(name: str) -> str:
    """A resource's own name, without where it is. In full it may have the project's number in place of its name."""
    return name.rpartition("/")[2]


def _iso(moment: Any) -> str:
    return moment.isoformat() if moment else ""


def word(state: Any) -> str:
    """A state's name; one that this version of the library does not know has only a number."""
    return getattr(state, "name", str(state))


def failure(request: "tpu_v2.QueuedResource") -> Any:
    """Why a request failed, a `google.rpc.Status`."""
    return request.state.failed_data.error


def _state(request: "tpu_v2.QueuedResource | None", node: "tpu_v2.Node | None") -> tuple[State, str]:
    """Where the machine is, and the API's words for it. A loss that either of the two tells of is a loss."""
    if request is None:
        return _of_node(node) if node else (State.UNKNOWN, "")
    name = word(request.state.state)
    if name == "ACTIVE":
        return _of_node(node) if node else (State.LOST, "ACTIVE, but its node is gone")
    state, detail = REQUEST.get(name, State.UNKNOWN), name
    initiator = word(request.state.state_initiator)
    if state is State.LOST and initiator in ("USER", "SERVICE"):
        detail += f" by {initiator}"
    if name == "FAILED" and failure(request).message:
        detail += f": {failure(request).message}"
    if node and state not in LOSSES:
        of_node, words = _of_node(node)
        if of_node in LOSSES:
            return of_node, words
    return state, detail


def _of_node(node: "tpu_v2.Node") -> tuple[State, str]:
    name, health = word(node.state), word(node.health)
    words = [name, "" if health in ("HEALTHY", "HEALTH_UNSPECIFIED") else health, node.health_description]
    return NODE.get(name, State.UNKNOWN), ": ".join(filter(None, words))


def _workers(node: "tpu_v2.Node", instances: "Sequence[str]") -> tuple[Worker, ...]:
    """The hosts, in the API's order, which is the workers'."""
    named = list(instances) + [""] * (len(node.network_endpoints) - len(instances))
    return tuple(
        Worker(end.access_config.external_ip or end.ip_address, _port(end), name, end.ip_address)
        for end, name in zip(node.network_endpoints, named, strict=False)
    )


def _port(endpoint: "tpu_v2.NetworkEndpoint") -> int:
    """Where sshd listens. The port that the API tells is the TPU runtime's, but the fakes' hosts share an address."""
    return endpoint.port if fake_address() else 22
