"""Build gcloud commands for TPU machines, and read the state of machines, in both Google APIs.

In `tpu-api` (v2 to v6e), a machine is a queued resource and its node, both with the machine's name. In `gce` (v5p, v6e
and TPU7x with one host), a machine is a Compute Engine instance. Compute Engine deletes an instance at the end of
`--max-run-duration`. The TPU API has no such limit, so a timer on the machine deletes it (see `startup`).
`--valid-until-duration` limits the time that a queued resource waits.

Sources of the states: https://cloud.google.com/tpu/docs/reference/rest/v2,
https://cloud.google.com/compute/docs/instances/instance-lifecycle.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from taetpu.cloud import names_and_labels
from taetpu.cloud.gcloud import Command, OutcomeUnknown, command, list_resources, read
from taetpu.core.chips import Slice, generations

Api = Literal["gce", "tpu-api"]
State = Literal["queued", "starting", "ready", "stopped", "lost", "deleting", "unknown"]

TAG = "taetpu"
"""Network tag of every machine. The firewall rule for ssh applies to machines with this tag."""
IMAGE_PROJECT = "ubuntu-os-accelerator-images"

STATES: Mapping[str, State] = {
    # queued resources
    "ACCEPTED": "queued", "WAITING_FOR_RESOURCES": "queued", "PROVISIONING": "starting", "FAILED": "lost",
    "SUSPENDING": "lost", "SUSPENDED": "lost",
    # nodes and instances
    "CREATING": "starting", "STAGING": "starting", "STARTING": "starting", "RESTARTING": "starting",
    "REIMAGING": "starting", "REPAIRING": "starting", "READY": "ready", "RUNNING": "ready", "STOPPING": "stopped",
    "STOPPED": "stopped", "SUSPENDED_BY_USER": "stopped", "PREEMPTED": "lost", "TERMINATED": "lost",
    "DELETING": "deleting",
}  # fmt: skip


@dataclass(frozen=True)
class Worker:
    """A host of a machine.

    Attributes:
        internal: internal IP address.
        external: external IP address; "" if the host has none.
        instance: name of the instance; "" if unknown.
    """

    internal: str
    external: str = ""
    instance: str = ""


@dataclass(frozen=True)
class Machine:
    """A machine as the API describes it.

    Attributes:
        detail: the API's name for the state, with the reason if the machine failed.
        created: ISO time of the request.
        has_request: whether the machine has a queued resource. A queued resource uses quota until it is deleted.
    """

    name: str
    zone: str
    api: Api
    type: str
    state: State
    detail: str
    labels: Mapping[str, str]
    workers: tuple[Worker, ...] = ()
    created: str = ""
    spot: bool = False
    has_request: bool = False

    @property
    def owner(self) -> str:
        """Owner in the machine's labels; "" if taetpu did not create the machine."""
        return self.labels.get(names_and_labels.OWNER, "")

    @property
    def study(self) -> str:
        """Study for which the machine was created, read from the machine's labels; "" for no study."""
        return self.labels.get(names_and_labels.STUDY, "")


@dataclass(frozen=True)
class Spec:
    """The specification of a machine.

    Attributes:
        hours: hours from the machine's start until it is deleted.
        runtime: software version (tpu-api) or image family (gce).
        reservation: name of the reservation; "" for no reservation.
        study: study for which the machine is created; "" for no study.
    """

    name: str
    tpu: Slice
    api: Api
    owner: str
    hours: float
    runtime: str
    spot: bool = False
    reservation: str = ""
    service_account: str = ""
    network: str = "default"
    subnetwork: str = ""
    external_ip: bool = False
    disk_gb: int = 200
    user: str = "taetpu"
    study: str = ""

    @property
    def max_hours(self) -> float:
        """Maximum hours from the request to the deletion. A queued resource may wait as long as the machine may run."""
        return self.hours * (2 if self.api == "tpu-api" else 1)

    @property
    def identity(self) -> str:
        """Hash of all settings of the machine except hours and study."""
        parts = (self.tpu.name, self.tpu.topology_name, self.api, self.runtime, self.spot, self.reservation)
        where = (self.service_account, self.network, self.subnetwork, self.external_ip, self.disk_gb)
        return names_and_labels.digest(repr((*parts, *where)))

    def labels(self) -> dict[str, str]:
        """Return the labels of the machine."""
        values = {
            names_and_labels.OWNER: self.owner,
            names_and_labels.EXPIRES: str(int(time.time() + self.max_hours * 3600)),
            names_and_labels.SPEC: self.identity,
        }
        return values | ({names_and_labels.STUDY: self.study} if self.study else {})


def create_command(spec: Spec, zone: str, startup: Path, ssh_key: str) -> Command:
    """Return the command that requests a machine.

    With `--async`, gcloud returns once the request is accepted, before the machine exists.

    Args:
        spec: specification of the machine.
        zone: zone of the machine.
        startup: file with the startup script.
        ssh_key: public key, as one line.
    """
    common = {
        "zone": zone, "labels": names_and_labels.format_labels(spec.labels()), "async": True, "tags": TAG,
        "metadata": f"enable-oslogin=FALSE,block-project-ssh-keys=TRUE,ssh-keys={spec.user}:{ssh_key}",
        "metadata_from_file": f"startup-script={startup}", "scopes": "cloud-platform",
        "service_account": spec.service_account, "network": spec.network,
    }  # fmt: skip
    if spec.api == "tpu-api":
        return command(
            "compute", "tpus", "queued-resources", "create", spec.name, node_id=spec.name,
            accelerator_type=spec.tpu.name, runtime_version=spec.runtime, spot=spec.spot,
            reserved=bool(spec.reservation), internal_ips=not spec.external_ip, subnetwork=spec.subnetwork,
            valid_until_duration=f"{spec.hours * 3600:.0f}s", **common,
        )  # fmt: skip
    model = "SPOT" if spec.spot else "RESERVATION_BOUND" if spec.reservation else "STANDARD"
    return command(
        "compute", "instances", "create", spec.name, machine_type=spec.tpu.machine_type, image_family=spec.runtime,
        image_project=IMAGE_PROJECT, boot_disk_size=f"{spec.disk_gb}GB", provisioning_model=model,
        reservation=spec.reservation, reservation_affinity="specific" if spec.reservation else None,
        max_run_duration=f"{spec.hours * 3600:.0f}s", instance_termination_action="DELETE",
        maintenance_policy="TERMINATE", no_address=not spec.external_ip, subnet=spec.subnetwork, **common,
    )  # fmt: skip


def delete_command(machine: Machine) -> Command:
    """Return the command that deletes a machine and, if it exists, its queued resource."""
    if machine.api == "gce":
        return command("compute", "instances", "delete", machine.name, zone=machine.zone)
    if machine.has_request:
        words = ("compute", "tpus", "queued-resources", "delete", machine.name)
        return command(*words, zone=machine.zone, force=True)
    return command("compute", "tpus", "tpu-vm", "delete", machine.name, zone=machine.zone)


def list_commands(zone: str = "-", api: str = "") -> list[Command]:
    """Return the commands that list queued resources, nodes and TPU instances in one zone or in all zones (`-`).

    Requests are listed before nodes. If a request becomes active between the two calls, its node is still listed.
    """
    types = "machineType~/machineTypes/ct OR machineType~/machineTypes/tpu"  # gcloud reads (ct|tpu) as a list
    lines = []
    if api != "gce":
        lines += [command("compute", "tpus", kind, "list", zone=zone) for kind in ("queued-resources", "tpu-vm")]
    if api != "tpu-api":
        lines.append(command("compute", "instances", "list", filter=types, zones="" if zone == "-" else zone))
    return lines


def list_machines(zone: str = "-", unreachable: list[str] | None = None, api: str = "") -> list[Machine]:
    """Return the TPU machines of all owners in one zone or in all zones, from one API or from both.

    Args:
        zone: the zone; `-` for all zones.
        unreachable: list to which zones that did not answer are appended. If None, such zones cause an error.
        api: the API; "" for both.

    Raises:
        CloudError: if a command failed; see `gcloud.run`.
        OutcomeUnknown: if a zone did not answer and `unreachable` is None.
    """
    answers = [list_resources(line) for line in list_commands(zone, api)]
    places = sorted({place for _, missing in answers for place in missing})
    if unreachable is None:
        check_reached(places)
    else:
        unreachable += places
    machines = [] if api == "gce" else _join_requests(answers[0][0], answers[1][0])
    machines += [] if api == "tpu-api" else map(_gce_machine, answers[-1][0])
    return sorted(machines, key=lambda machine: (machine.zone, machine.name))


def find(name: str, zone: str = "-", unreachable: list[str] | None = None, api: str = "") -> list[Machine]:
    """Return all machines with the given name. The other arguments are those of `list_machines`."""
    return [machine for machine in list_machines(zone, unreachable, api) if machine.name == name]


def check_reached(unreachable: Sequence[str]) -> None:
    """Raise an error if a list of machines is incomplete because zones did not answer.

    Raises:
        OutcomeUnknown: if `unreachable` is not empty.
    """
    if unreachable:
        problem = f"{', '.join(unreachable)} did not answer, so machines there are not listed and may cost money"
        raise OutcomeUnknown(problem, remedy="Run the same command again later.")


def attributes_command(machine: Machine) -> Command:
    """Return the command that reads the guest attributes of the hosts of a TPU API machine."""
    return command("compute", "tpus", "tpu-vm", "get-guest-attributes", machine.name, zone=machine.zone)


def add_instance_names(machine: Machine) -> Machine:
    """Return the given machine with the instance names of its hosts. Tunnels through IAP need these names.

    The names are in the guest attribute `hostname`. A host of the TPU API writes this attribute after booting.
    `gcloud alpha compute tpus tpu-vm ssh --tunnel-through-iap` reads the same attribute.
    """
    if all(worker.external or worker.instance for worker in machine.workers):
        return machine
    attributes = read(attributes_command(machine)) or []
    names = {int(item.get("worker_id", 0)): item["value"] for item in attributes if item["key"] == "hostname"}
    numbered = enumerate(machine.workers)
    return replace(
        machine, workers=tuple(replace(worker, instance=names.get(number, "")) for number, worker in numbered)
    )


def _join_requests(requests: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]) -> list[Machine]:
    """Return one machine per request, joined with its node if the node exists, and one per node without a request."""
    by_place = {_zone_and_name(request["name"]): request for request in requests}
    machines = []
    for node in nodes:
        place = (_zone_and_name(node["name"])[0], _last_segment(node.get("queuedResource") or node["name"]))
        machines.append(_tpu_machine(by_place.pop(place, None), node))
    return machines + [_tpu_machine(request, None) for request in by_place.values()]


def _tpu_machine(request: Mapping[str, Any] | None, node: Mapping[str, Any] | None) -> Machine:
    spec = (request or {}).get("tpu", {}).get("nodeSpec") or [{}]
    described: Mapping[str, Any] = node or spec[0].get("node", {})
    full = (node or request or {})["name"]
    state, detail = _tpu_state(request, node)
    return Machine(
        name=_last_segment(request["name"] if request else full),
        zone=_zone_and_name(full)[0],
        api="tpu-api",
        type=described.get("acceleratorType", ""),
        state=state,
        detail=detail,
        labels=described.get("labels", {}),
        workers=tuple(
            Worker(end.get("ipAddress", ""), end.get("accessConfig", {}).get("externalIp", ""))
            for end in (node or {}).get("networkEndpoints", ())
        ),
        created=(request or node or {}).get("createTime", ""),
        spot="spot" in (request or {}) or bool((node or {}).get("schedulingConfig", {}).get("spot")),
        has_request=request is not None,
    )


def _tpu_state(request: Mapping[str, Any] | None, node: Mapping[str, Any] | None) -> tuple[State, str]:
    """Return the state and the API's name for the state. A machine is lost if its request or its node is lost."""
    queued = (request or {}).get("state", {})
    name, of_node = queued.get("state", ""), (node or {}).get("state", "")
    if request is None or name == "ACTIVE":
        if node is None:
            return "lost", f"{name}, but its node is gone"
        healthy = node.get("health", "HEALTHY") in ("HEALTHY", "HEALTH_UNSPECIFIED")
        return STATES.get(of_node, "unknown"), of_node if healthy else f"{of_node}: {node['health']}"
    state = STATES.get(name, "unknown")
    reason = queued.get("failedData", {}).get("error", {}).get("message", "")
    if STATES.get(of_node) in ("lost", "deleting") and state not in ("lost", "deleting"):
        return STATES[of_node], of_node
    return state, f"{name}: {reason}" if reason else name


def _gce_machine(instance: Mapping[str, Any]) -> Machine:
    scheduling = instance.get("scheduling", {})
    interfaces = instance.get("networkInterfaces") or [{}]
    external = (interfaces[0].get("accessConfigs") or [{}])[0].get("natIP", "")
    kind, status = _last_segment(instance["machineType"]), instance.get("status", "")
    # taetpu never stops instances. Somebody else stopped a suspended or terminated instance, so its disk is kept.
    state = "stopped" if status.startswith(("SUSPEND", "TERMINATED", "PENDING_STOP")) else STATES.get(status, "unknown")
    return Machine(
        name=instance["name"], zone=_last_segment(instance["zone"]), api="gce", type=_slice_name(kind), state=state,
        detail=status, labels=instance.get("labels", {}), created=instance.get("creationTimestamp", ""),
        workers=(Worker(interfaces[0].get("networkIP", ""), external, instance["name"]),),
        spot=scheduling.get("provisioningModel") == "SPOT",
    )  # fmt: skip


def _slice_name(machine_type: str) -> str:
    """Return the name of the slice with the given machine type, such as `v6e-8`, or the given type if it is unknown."""
    slices = (tpu for chip in generations() for tpu in chip.slices())
    return next((tpu.name for tpu in slices if tpu.machine_type == machine_type), machine_type)


def _zone_and_name(full: str) -> tuple[str, str]:
    """Return the zone and the name from `projects/P/locations/ZONE/nodes/NAME`."""
    return full.split("/locations/")[1].split("/")[0], _last_segment(full)


def _last_segment(address: str) -> str:
    return address.rpartition("/")[2]
