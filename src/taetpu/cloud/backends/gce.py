"""TPU machines by Compute Engine: one host is an instance, several are a managed group with a policy and a template.

All that is known of groups is from Google's documentation and public reports; taetpu has never made one on the real
cloud.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.cloud.backends import gce_machines, gce_parts, gce_requests
from taetpu.cloud.backends.base import Machine, Operation
from taetpu.cloud.backends.gce_calls import AllOrNothing, Calls, Kept, Start, Steps, failure, pairs
from taetpu.cloud.backends.gce_requests import labels_in
from taetpu.cloud.catalogue import region
from taetpu.cloud.clients import Clients
from taetpu.cloud.errors import Conflict, Quota, Stockout
from taetpu.cloud.spec import OWNER, STACK, BackendName, Spec
from taetpu.core.chips import Slice

LISTING = "listing machines"


class Gce:
    """See `Backend`."""

    name: BackendName = "gce"

    def __init__(self, clients: Clients):
        self.calls, self.clients = Calls(clients), clients
        self.project = clients.project
        self.unseen: Sequence[str] = ()

    def zones(self, tpu: Slice) -> list[str]:
        if tpu.machine_type is None:
            return []
        found = self.calls.everywhere("MachineTypes", "listing machine types", filter=f"name={tpu.machine_type}")
        return sorted(zone for zone, types in found if types.machine_types)

    def create(self, spec: Spec, zone: str, startup: str, ssh_key: str) -> Operation:
        doing, labels = f"creating {spec.stack} in {zone}", spec.labels(self.clients.now())
        if spec.tpu.hosts == 1:
            asked = gce_requests.instance(spec, self.project, zone, startup, ssh_key, labels)
            making = self.calls.change("Instances", "insert", doing, zone=zone, instance_resource=asked)
            return Kept(making, lambda: self._instance(spec.stack, zone) is not None, doing)
        return self._several_made(spec, zone, startup, ssh_key, labels, doing)

    def _several_made(
        self, spec: Spec, zone: str, startup: str, ssh_key: str, labels: Mapping[str, str], doing: str
    ) -> Operation:
        """A policy, a template and a group, one after the other; all of them or none."""
        policy = gce_requests.policy(spec, zone, labels)
        template = gce_requests.template(spec, self.project, zone, startup, ssh_key, labels)
        group = gce_requests.group(spec, self.project, zone, labels)
        if self._group(spec.stack, zone) is not None:
            raise Conflict(f"{doing}: a group of this name is there", remedy="`taetpu tpu list` shows what is there")
        there, change = region(zone), self.calls.change
        gce_parts.refuse_others(self.calls, spec.stack, zone, doing, spec.owner)
        starts: list[Start] = [
            *gce_parts.removal(self.calls, spec.stack, zone, doing, spec.owner),
            lambda: change("ResourcePolicies", "insert", doing, region=there, resource_policy_resource=policy),
            lambda: change(
                "RegionInstanceTemplates", "insert", doing, region=there, instance_template_resource=template
            ),
            lambda: change("InstanceGroupManagers", "insert", doing, zone=zone, instance_group_manager_resource=group),
        ]

        def check() -> None:
            if spec.provisioning != "flex-start":
                self._check_attempts(spec.stack, zone, doing)

        making = AllOrNothing(Steps(starts), check, lambda: self.delete(spec.stack, zone))
        making.done()
        return making

    def get(self, name: str, zone: str) -> Machine | None:
        instance = self._instance(name, zone)
        if instance is not None:
            return gce_machines.single(instance, zone)
        group = self._group(name, zone)
        return None if group is None else self._several(group, zone)

    def list(self) -> Sequence[Machine]:
        everywhere = self.calls.everywhere("Instances", LISTING)
        self.unseen = sorted(zone for zone, found in everywhere if found.warning.code == "UNREACHABLE")
        instances = list(pairs(everywhere, "instances"))
        groups = [(zone, one) for zone, one in self._groups() if OWNER in labels_in(one.description)]
        made: list[Machine] = []
        members: set[tuple[str, str]] = set()
        for zone, group in groups:
            managed = self._managed(group.name, zone)
            mine = {one.name: one for place, one in instances if place == zone}
            made.append(gce_machines.several(group, managed, mine, zone))
            members |= {(zone, one.name) for one in managed}
        for zone, one in instances:
            tpu = gce_machines.is_tpu(one.machine_type.rpartition("/")[2])
            if (zone, one.name) not in members and (tpu or OWNER in one.labels):
                made.append(gce_machines.single(one, zone))
        left = {(one.stack, one.zone): one for one in self._remnants(groups)}
        made += [gce_machines.remnant(one.labels, *place, one.created) for place, one in left.items()]
        return sorted(made, key=lambda machine: (machine.name, machine.zone))

    def delete(self, name: str, zone: str) -> Operation:
        doing, remove = f"deleting {name} in {zone}", self.calls.remove
        starts: list[Start] = []
        instance = self._instance(name, zone)
        group = self._group(name, zone)
        for there, labels in ((instance, getattr(instance, "labels", {})), (group, labels_in(_told(group)))):
            if there is not None and OWNER not in labels:
                problem = f"{doing}: it has no label {OWNER}, so taetpu did not make it"
                raise Conflict(problem, remedy="delete it with gcloud or in the console if it is yours")
        if instance is not None:
            starts.append(lambda: remove("Instances", doing, zone=zone, instance=name))
        if group is not None:
            starts.append(lambda: remove("InstanceGroupManagers", doing, zone=zone, instance_group_manager=name))
        steps = Steps([*starts, *gce_parts.removal(self.calls, name, zone, doing)])
        steps.done()
        return steps

    def _instance(self, name: str, zone: str) -> Any | None:
        return self.calls.found("Instances", f"looking at {name}", zone=zone, instance=name)

    def _group(self, name: str, zone: str) -> Any | None:
        doing = f"looking at {name}"
        return self.calls.found("InstanceGroupManagers", doing, zone=zone, instance_group_manager=name)

    def _groups(self) -> Sequence[tuple[str, Any]]:
        return list(pairs(self.calls.everywhere("InstanceGroupManagers", LISTING), "instance_group_managers"))

    def _managed(self, name: str, zone: str) -> Sequence[Any]:
        fields = {"zone": zone, "instance_group_manager": name}
        return self.calls.listed("InstanceGroupManagers", "list_managed_instances", f"looking at {name}", **fields)

    def _several(self, group: Any, zone: str) -> Machine:
        doing = f"looking at {group.name}"
        asked = f"labels.{STACK}={group.name}"
        managed = self._managed(group.name, zone)
        # Asked for last: no older than what the group says of them.
        instances = self.calls.listed("Instances", "list", doing, zone=zone, filter=asked)
        return gce_machines.several(group, managed, {one.name: one for one in instances}, zone)

    def _check_attempts(self, name: str, zone: str, doing: str) -> None:
        """A group keeps trying to make its hosts; what keeps it from it for long ends the waiting here.

        Raises:
            Stockout: the zone has not enough.
            Quota: the project may not have so much.
        """
        group = self._group(name, zone)
        errors = gce_machines.troubles(group, self._managed(name, zone)) if group is not None else []
        found = failure(errors, zone, doing, inserting=True) if errors else None
        if isinstance(found, (Stockout, Quota)):
            raise found

    def _remnants(self, groups: Sequence[tuple[str, Any]]) -> Sequence[gce_parts.Part]:
        """Parts whose group is not there."""
        there = {(one.name, zone) for zone, one in groups}
        return [one for one in gce_parts.every(self.calls) if (one.stack, one.zone) not in there]


def _told(group: Any) -> str:
    return "" if group is None else group.description
