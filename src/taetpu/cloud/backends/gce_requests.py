"""What is asked of Compute Engine for a spec, as the fields of its messages."""

import re
from collections.abc import Mapping
from typing import Any

from taetpu.cloud.catalogue import image_project, region, runtime_of
from taetpu.cloud.clients import SCOPE
from taetpu.cloud.errors import Invalid
from taetpu.cloud.spec import TAG, Spec

Fields = dict[str, Any]

TYPE = "taetpu-type"
"""Beside the labels in a description: the accelerator type."""

MODELS = {
    "on-demand": "STANDARD",
    "spot": "SPOT",
    "flex-start": "FLEX_START",
    "reservation": "RESERVATION_BOUND",
}
"""gcloud 528 documents RESERVATION_BOUND for reservations in calendar mode or with dense deployment. Whether one takes
a `max_run_duration` of its own was never tried."""


def described(labels: Mapping[str, str], tpu: str) -> str:
    """A description that says what labels say, for what cannot carry any: policies, templates, groups."""
    words = [f"{key}={value}" for key, value in {**labels, TYPE: tpu}.items()]
    return " ".join(["made by taetpu:", *words])


def labels_in(description: str) -> dict[str, str]:
    """The labels of a description, see `described`; empty where taetpu did not write it."""
    return dict(re.findall(r"\b(taetpu-[a-z]+)=(\S+)", description))


def part(stack: str, zone: str) -> str:
    """The name of the policy and the template of a stack: they are a region's, so that the zone's letter is in it."""
    return f"{stack}-{zone.rpartition('-')[2]}"


def instance(spec: Spec, project: str, zone: str, startup: str, ssh_key: str, labels: Mapping[str, str]) -> Fields:
    """A slice of one host.

    Raises:
        Invalid: Compute Engine does not make the slice.
    """
    asked = _host(spec, project, zone, startup, ssh_key, labels)
    asked |= {"name": spec.stack, "machine_type": f"zones/{zone}/machineTypes/{asked['machine_type']}"}
    if spec.provisioning == "flex-start":
        asked["params"] = {"request_valid_for_duration": {"seconds": round(spec.queue_hours * 3600)}}
    return asked


def policy(spec: Spec, zone: str, labels: Mapping[str, str]) -> Fields:
    """How the chips of several hosts are connected."""
    topology = spec.tpu.topology_name.partition(":")[2]
    return {
        "name": part(spec.stack, zone),
        "description": described(labels, spec.tpu.name),
        "workload_policy": {"type_": "HIGH_THROUGHPUT", "accelerator_topology": topology},
    }


def template(spec: Spec, project: str, zone: str, startup: str, ssh_key: str, labels: Mapping[str, str]) -> Fields:
    """What each of several hosts is.

    Raises:
        Invalid: Compute Engine does not make the slice.
    """
    return {
        "name": part(spec.stack, zone),
        "description": described(labels, spec.tpu.name),
        "properties": _host(spec, project, zone, startup, ssh_key, labels),
    }


def group(spec: Spec, project: str, zone: str, labels: Mapping[str, str]) -> Fields:
    """All hosts at once or none: BULK mode. Nothing is repaired: a slice that lost a host is made anew as a whole.

    Google's pages disagree on whether this mode takes machines on demand and spot ones; Google's own operator for TPUs
    on Kubernetes asks for all of them so, and a public field report of July 2026 had a flex-start slice this way.
    """
    where = f"projects/{project}/regions/{region(zone)}"
    return {
        "name": spec.stack,
        "description": described(labels, spec.tpu.name),
        "base_instance_name": spec.stack,
        "instance_template": f"{where}/instanceTemplates/{part(spec.stack, zone)}",
        "target_size": spec.tpu.hosts,
        "target_size_policy": {"mode": "BULK"},
        "resource_policies": {"workload_policy": f"{_link(where)}/resourcePolicies/{part(spec.stack, zone)}"},
        "instance_lifecycle_policy": {"default_action_on_failure": "DO_NOTHING"},
    }


def _host(spec: Spec, project: str, zone: str, startup: str, ssh_key: str, labels: Mapping[str, str]) -> Fields:
    """What an instance and the properties of a template have in common."""
    if spec.tpu.machine_type is None:
        problem = f"Compute Engine makes no {spec.tpu.name}"
        raise Invalid(problem, remedy="--backend tpu-api, or another chip: `taetpu chips` lists them")
    image = f"projects/{image_project()}/global/images/family/{spec.runtime or runtime_of(spec.tpu, 'gce')}"
    metadata = spec.metadata(startup, ssh_key) | {"enable-guest-attributes": "TRUE"}
    asked: Fields = {
        "machine_type": spec.tpu.machine_type,
        "labels": dict(labels),
        "tags": {"items": [TAG]},
        "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
        "disks": [
            {
                "boot": True,
                "auto_delete": True,
                "initialize_params": {"source_image": image, "disk_size_gb": spec.disk_gb, "labels": dict(labels)},
            }
        ],
        "network_interfaces": [_network(spec, project, zone)],
        "service_accounts": [{"email": spec.service_account or "default", "scopes": [SCOPE]}],
        "scheduling": _scheduling(spec),
    }
    if spec.provisioning == "reservation":
        key = "compute.googleapis.com/reservation-name"
        affinity = {"consume_reservation_type": "SPECIFIC_RESERVATION", "key": key, "values": [spec.reservation]}
        asked["reservation_affinity"] = affinity
    return asked


def _scheduling(spec: Spec) -> Fields:
    """The end that the server makes of it, and that nothing restarts by itself: what is lost is made anew."""
    return {
        "provisioning_model": MODELS[spec.provisioning],
        "on_host_maintenance": "TERMINATE",
        "automatic_restart": False,
        "instance_termination_action": "DELETE",
        "max_run_duration": {"seconds": round(spec.hours * 3600)},
    }


def _network(spec: Spec, project: str, zone: str) -> Fields:
    asked: Fields = {"network": f"projects/{project}/global/networks/{spec.network}"}
    if spec.subnetwork:
        asked["subnetwork"] = f"projects/{project}/regions/{region(zone)}/subnetworks/{spec.subnetwork}"
    if spec.external_ip:
        asked["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    return asked


def _link(path: str) -> str:
    """A whole address: a group takes no shorter one of its workload policy."""
    return f"https://www.googleapis.com/compute/v1/{path}"
