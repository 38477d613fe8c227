"""The fake Compute Engine as Google's own clients see it: their library, and the gcloud command."""

import json
import os
import shutil
import subprocess

import pytest
from tests.cloud.gce import SLICE, SPEC, ZONE, finish

from taetpu.cloud.clients import FAKE, Clients
from taetpu.cloud.errors import Conflict, Invalid, NotFound, Stockout
from taetpu.cloud.fakes import gce, gce_base, networks
from taetpu.cloud.fakes.networks import Networks
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.world import World

REGION = "us-east5"


def test_an_image_is_found_by_its_family(compute):
    asked = {"project": "ubuntu-os-accelerator-images", "family": SPEC.runtime}
    images = compute.gce.calls.clients.compute("Images")
    assert images.get_from_family(**asked).family == SPEC.runtime
    from google.api_core.exceptions import NotFound as Missing

    with pytest.raises(Missing, match=r"images/family/ubuntu-accel' was not found"):
        images.get_from_family(**asked | {"family": "ubuntu-accel"})


def test_a_firewall_rule(monkeypatch):
    world, own = World(), Networks({})
    with Server(world, [*networks.routes(world, own), *gce.routes(world)]) as server:
        monkeypatch.setenv(FAKE, server.address)
        _check_firewall(Clients(world.project))


def _check_firewall(clients):
    rules = clients.compute("Firewalls")
    allowed = [{"I_p_protocol": "tcp", "ports": ["22"]}]
    rule = {"name": "taetpu-iap", "source_ranges": ["35.235.240.0/20"], "target_tags": ["taetpu"], "allowed": allowed}
    begun = rules.insert_unary(project="fake-project", firewall_resource=rule)
    operations = clients.compute("GlobalOperations")
    while operations.wait(project="fake-project", operation=begun.name).status.name != "DONE":
        pass
    [found] = rules.list(project="fake-project")
    assert (found.name, found.allowed[0].ports) == ("taetpu-iap", ["22"])
    from google.api_core.exceptions import Conflict as Taken

    with pytest.raises(Taken, match="global/firewalls/taetpu-iap' already exists"):
        rules.insert_unary(project="fake-project", firewall_resource=rule)


def test_labels_of_a_machine_change(compute):
    compute.ready()
    instances = compute.gce.calls.clients.compute("Instances")
    asked = {"labels": {"a": "b"}, "label_fingerprint": "42"}
    begun = instances.set_labels_unary(
        project="fake-project", zone=ZONE, instance="my-tpu", instances_set_labels_request_resource=asked
    )
    operations = compute.gce.calls.clients.compute("ZoneOperations")
    while operations.wait(project="fake-project", zone=ZONE, operation=begun.name).status.name != "DONE":
        pass
    assert compute.gce.get("my-tpu", ZONE).labels == {"a": "b"}


def test_the_same_request_again_begins_nothing(compute):
    instances = compute.gce.calls.clients.compute("Instances")
    body = {
        "name": "one",
        "machine_type": f"zones/{ZONE}/machineTypes/ct6e-standard-1t",
        "disks": [{"initialize_params": {"source_image": f"family/{SPEC.runtime}"}}],
    }
    request = {"project": "fake-project", "zone": ZONE, "instance_resource": body, "request_id": "0b9c"}
    names = {instances.insert_unary(request=request).name for _ in range(3)}
    assert len(names) == 1


@pytest.mark.parametrize("spec", [SPEC, SLICE], ids=["one-host", "four-hosts"])
def test_what_nobody_asks_on_for_goes_on(compute, spec):
    """A client that is killed after its request takes nothing back: the machine comes, and goes."""
    compute.ready(spec)
    body = {"zone": ZONE, "instance": "my-tpu"} if spec is SPEC else {"zone": ZONE, "instance_group_manager": "my-tpu"}
    compute.gce.calls.remove("Instances" if spec is SPEC else "InstanceGroupManagers", "", **body)
    for _ in range(4):
        machine = compute.gce.get("my-tpu", ZONE)
    assert machine is None
    assert len(compute.hosts.halted) == spec.tpu.hosts


def test_a_machine_that_does_not_boot_has_failed(compute, monkeypatch):
    def boot(*_):
        raise gce_base.stockout("fake-project", ZONE)

    monkeypatch.setattr(compute.hosts, "boot", boot)
    with pytest.raises(Stockout):
        finish(compute.create())
    assert compute.world.left() == []


def test_an_unknown_operation_is_not_found(compute):
    with pytest.raises(NotFound, match="operations/operation-7' was not found"):
        compute.gce.calls.ask("ZoneOperations", "get", "", zone=ZONE, operation="operation-7")


def test_a_group_needs_its_parts_and_keeps_them(compute):
    compute.ready(SLICE)
    remove = compute.gce.calls.remove
    for service, field in (("RegionInstanceTemplates", "instance_template"), ("ResourcePolicies", "resource_policy")):
        with pytest.raises(Conflict, match="is already being used by"):
            remove(service, "", region=REGION, **{field: "my-tpu-b"})
    compute.remove()
    group = {"name": "g", "target_size": 2, "instance_template": f"projects/p/regions/{REGION}/instanceTemplates/none"}
    with pytest.raises(NotFound, match="instanceTemplates/none' was not found"):
        change(compute, group)


def change(compute, group):
    service = "InstanceGroupManagers"
    finish(compute.gce.calls.change(service, "insert", "", zone=ZONE, instance_group_manager_resource=group))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"target_size_policy": {}}, "require BULK mode in target size policy"),
        ({"resource_policies": {"workload_policy": "my-tpu-b"}}, "The URL is malformed"),
    ],
)
def test_what_a_group_of_tpus_needs(compute, asked, words):
    """As a public field report of July 2026 had it from the real one."""
    compute.ready(SLICE)
    link = f"projects/fake-project/regions/{REGION}"
    group = {
        "name": "g",
        "target_size": 4,
        "instance_template": f"{link}/instanceTemplates/my-tpu-b",
        "resource_policies": {"workload_policy": f"{link}/resourcePolicies/my-tpu-b"},
    }
    with pytest.raises(Invalid, match=words):
        change(compute, group | asked)


def test_a_group_of_tpus_takes_no_resize_request(compute):
    compute.ready(SLICE)
    asked = {"name": "more", "resize_by": 4}
    with pytest.raises(Invalid, match="Creating resize requests for managed instance group with TPU is not allowed"):
        compute.gce.calls.change(
            "InstanceGroupManagerResizeRequests",
            "insert",
            "",
            zone=ZONE,
            instance_group_manager="my-tpu",
            instance_group_manager_resize_request_resource=asked,
        )


def test_what_is_taken_back_must_be_there(compute):
    with pytest.raises(KeyError, match="no machine of this name: 'nobody'"):
        gce.preempt(compute.world, "nobody")


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ("name=a", True),
        ('(name = "b")', False),
        ('name eq a AND labels.x="1"', True),
        ("labels.x=2", False),
    ],
)
def test_lists_are_filtered_by_equality(text, passes):
    assert gce_base.matches({"name": "a", "labels": {"x": "1"}}, text) is passes


def test_machine_types_are_where_the_catalogue_has_their_chips():
    types = gce_base.machine_types()
    assert "ct6e-standard-8t" in types["us-east5-b"]
    assert all(names for names in types.values())


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_lists_the_machines(compute, tmp_path):
    """Google's other client reads the same answers. It is led to the fake alone, and signs in nowhere."""
    compute.ready()
    compute.ready(SLICE, "us-east5-a")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CLOUDSDK_CONFIG": str(tmp_path),
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "1",
        "CLOUDSDK_CORE_PROJECT": "fake-project",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
        "https_proxy": "http://127.0.0.1:9",  # where nobody listens, so that anything but the fake would fail
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{os.environ[FAKE]}/compute/v1/",
    }
    command = ["gcloud", "compute", "instances", "list", "--format=json(name,status,zone.basename())"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    machines = {one["name"]: (one["status"], one["zone"]) for one in json.loads(ran.stdout)}
    assert machines["my-tpu"] == ("RUNNING", ZONE)
    hosts = [name for name in machines if name.startswith("my-tpu-")]
    assert [machines[name] for name in hosts] == [("RUNNING", "us-east5-a")] * 4
    assert len(machines) == 5
