"""Slices of one host by Compute Engine: what is asked, what is told of it, and every way in which it goes wrong."""

from dataclasses import replace

import pytest
from tests.cloud.gce import KEY, SPEC, ZONE, finish

from taetpu.cloud.backends.base import State
from taetpu.cloud.errors import (
    Conflict,
    Invalid,
    NotOffered,
    Permission,
    Quota,
    Stockout,
    Transient,
    Unknown,
)
from taetpu.cloud.fakes import gce, gce_base
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.spec import OWNER, fingerprint
from taetpu.core.chips import resolve

PROJECT = "fake-project"


def test_zones_are_those_that_list_the_machine_type(compute):
    assert ZONE in compute.gce.zones(resolve("v6e-8"))
    assert compute.gce.zones(resolve("v5p-8")) == ["europe-west4-b", "us-central1-a", "us-east5-a"]
    assert compute.gce.zones(resolve("v2-8")) == []
    assert compute.world.changes() == []


def test_from_nothing_to_a_machine_and_back(compute):
    assert compute.gce.get("my-tpu", ZONE) is None
    operation = compute.create()
    assert compute.gce.get("my-tpu", ZONE).state is State.CREATING
    finish(operation)
    machine = compute.gce.get("my-tpu", ZONE)
    assert (machine.state, machine.detail, machine.type) == (State.READY, "RUNNING", "v6e-8")
    assert (machine.owner, machine.stack, machine.spec) == ("me", "my-tpu", fingerprint(SPEC.identity()))
    assert machine.expires == pytest.approx(compute.world.now() + 4 * 3600, abs=60)
    assert [(w.address, w.instance) for w in machine.workers] == [("127.0.0.1", "my-tpu")]
    assert (machine.backend, machine.zone, machine.spot) == ("gce", ZONE, False)
    assert list(compute.gce.list()) == [machine]
    compute.remove()
    assert compute.gce.get("my-tpu", ZONE) is None
    assert compute.world.left() == []
    assert compute.hosts.halted == ["my-tpu"]


def test_a_host_boots_with_the_script_and_the_key(compute):
    compute.ready()
    [(name, worker, metadata)] = compute.hosts.booted
    assert (name, worker) == ("my-tpu", 0)
    assert metadata["startup-script"] == "#!/bin/sh\necho hello\n"
    assert metadata["ssh-keys"] == f"taetpu:{KEY}"
    assert (metadata["enable-oslogin"], metadata["enable-guest-attributes"]) == ("FALSE", "TRUE")


@pytest.mark.parametrize(
    ("provisioning", "model"),
    [("on-demand", "STANDARD"), ("spot", "SPOT"), ("flex-start", "FLEX_START"), ("reservation", "RESERVATION_BOUND")],
)
def test_every_way_of_paying_has_an_end_by_the_server(compute, provisioning, model):
    """The request as it arrives: a machine that its launcher forgot deletes itself whatever it was paid with."""
    machine = compute.ready(replace(SPEC, provisioning=provisioning, reservation="ours", hours=2.5))
    body = compute.body()
    assert body["scheduling"] == {
        "provisioningModel": model,
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "9000"},
    }
    assert machine.spot == (provisioning == "spot")
    queue = {"requestValidForDuration": {"seconds": "7200"}} if provisioning == "flex-start" else None
    assert body.get("params") == queue
    affinity = body.get("reservationAffinity")
    assert (affinity is not None) == (provisioning == "reservation")
    if affinity:
        assert affinity["consumeReservationType"] == "SPECIFIC_RESERVATION"
        assert affinity["values"] == ["ours"]


def test_what_is_asked_for_a_host(compute):
    compute.ready()
    body = compute.body()
    assert body["machineType"].endswith(f"zones/{ZONE}/machineTypes/ct6e-standard-8t")
    [disk] = body["disks"]
    family = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    assert (disk["boot"], disk["autoDelete"]) == (True, True)
    assert disk["initializeParams"]["sourceImage"] == family
    assert disk["initializeParams"]["diskSizeGb"] == "200"
    assert body["labels"][OWNER] == disk["initializeParams"]["labels"][OWNER] == "me"
    assert body["tags"] == {"items": ["taetpu"]}
    [account] = body["serviceAccounts"]
    assert account == {"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
    [interface] = body["networkInterfaces"]
    assert interface["network"] == f"projects/{PROJECT}/global/networks/default"
    assert not {"accessConfigs", "subnetwork"} & set(interface)


def test_what_may_be_chosen_of_a_host(compute):
    chosen = {"external_ip": True, "network": "lab", "subnetwork": "tpus", "service_account": "runner@p.iam"}
    machine = compute.ready(replace(SPEC, **chosen, disk_gb=500))
    body = compute.body()
    [interface] = body["networkInterfaces"]
    assert interface["network"].endswith("/networks/lab")
    assert interface["subnetwork"] == f"projects/{PROJECT}/regions/us-east5/subnetworks/tpus"
    assert interface["accessConfigs"][0]["type"] == "ONE_TO_ONE_NAT"
    assert machine.workers[0].address == interface["accessConfigs"][0]["natIP"]
    assert body["serviceAccounts"][0]["email"] == "runner@p.iam"
    assert body["disks"][0]["initializeParams"]["diskSizeGb"] == "500"


REFUSALS = {
    "stockout": (gce_base.stockout(PROJECT, ZONE), Stockout, f"{ZONE} has none left", "another zone"),
    "quota": (gce_base.quota("TPUS_PER_TPU_FAMILY", "us-east5"), Quota, "TPUS_PER_TPU_FAMILY", "another region"),
    "permission": (
        gce_base.denied("compute.instances.create", f"projects/{PROJECT}/zones/{ZONE}/instances/my-tpu"),
        Permission, "compute.instances.create", "roles/compute.instanceAdmin.v1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("moment", ["before", "inside"])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_is_told_by_what_can_be_done(compute, refusal, moment):
    error, kind, problem, remedy = REFUSALS[refusal]
    compute.world.faults = [Fault("instances.insert", error, ZONE, moment)]
    with pytest.raises(kind) as told:
        finish(compute.create())
    assert problem in told.value.problem
    assert "creating my-tpu in us-east5-b" in told.value.problem
    assert remedy in told.value.remedy
    assert compute.world.left() == []
    assert compute.gce.get("my-tpu", ZONE) is None


def test_an_api_that_is_not_enabled(compute):
    compute.world.faults = [Fault("instances.insert", gce_base.disabled(PROJECT))]
    with pytest.raises(Permission) as told:
        compute.create()
    assert "compute.googleapis.com is not enabled in project fake-project" in told.value.problem
    assert "gcloud services enable compute.googleapis.com --project=fake-project" in told.value.remedy


def test_an_internal_error_at_the_making_means_no_capacity(compute):
    compute.world.faults = [Fault("instances.insert", Refused(13, "Internal error.", "INTERNAL_ERROR"), ZONE, "inside")]
    with pytest.raises(Stockout) as told:
        finish(compute.create())
    assert "INTERNAL_ERROR" in told.value.problem
    assert ZONE in told.value.problem


@pytest.mark.parametrize(
    ("change", "zone", "kind", "problem"),
    [
        ({}, "us-east9-z", Invalid, "'us-east9-z' is no zone"),
        ({"tpu": resolve("v5p-8")}, ZONE, NotOffered, f"{ZONE} has no ct5p-hightpu-4t"),
        ({"tpu": resolve("v2-8")}, ZONE, Invalid, "Compute Engine makes no v2-8"),
        ({"runtime": "ubuntu-accel"}, ZONE, Invalid, "ubuntu-accel"),
    ],
)
def test_what_the_zone_does_not_have(compute, change, zone, kind, problem):
    with pytest.raises(kind) as told:
        finish(compute.create(replace(SPEC, **change), zone))
    assert problem in told.value.problem
    assert compute.world.left() == []


def test_the_same_name_twice(compute):
    compute.ready()
    with pytest.raises(Conflict) as told:
        compute.create()
    assert "instances/my-tpu' already exists" in told.value.problem
    assert compute.gce.get("my-tpu", ZONE).state is State.READY


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_makes_no_second_machine(compute, moment):
    """The request is sent again under the same identity; the server does it once."""
    compute.world.faults = [Fault("instances.insert", None, ZONE, moment)]
    finish(compute.create())
    assert len(compute.hosts.booted) == 1
    assert [call.name for call in compute.world.changes()] == ["instances.insert"] * 2
    assert compute.world.left() == [f"gce.instances: {ZONE}/my-tpu"]


def test_answers_that_never_come_leave_it_unknown(compute):
    compute.world.faults = [Fault("instances.insert", None, ZONE, "after", times=10**6)]
    with pytest.raises(Unknown) as told:
        compute.create()
    assert "no answer came" in told.value.problem
    assert "looks first" in told.value.remedy
    assert compute.gce.get("my-tpu", ZONE) is not None, "it was made, as the next command finds"


def test_questions_are_asked_again(compute):
    compute.ready()
    busy = Refused(14, "The service is currently unavailable.", "backendError")
    compute.world.faults = [Fault("instances.get", busy, times=2)]
    assert compute.gce.get("my-tpu", ZONE).state is State.READY
    compute.world.faults = [Fault("instances.get", busy, times=10**6)]
    with pytest.raises(Transient) as told:
        compute.gce.get("my-tpu", ZONE)
    assert "currently unavailable" in told.value.problem


def test_a_slow_machine_is_one_that_comes(compute):
    compute.world.polls = 20
    operation = compute.create()
    seen = {compute.gce.get("my-tpu", ZONE).state for _ in range(5)}
    assert (seen, operation.done()) == ({State.CREATING}, False)
    finish(operation)
    assert compute.gce.get("my-tpu", ZONE).state is State.READY


def test_a_request_in_the_queue_waits(compute):
    compute.world.polls = 10
    operation = compute.create(replace(SPEC, provisioning="flex-start"))
    machine = compute.gce.get("my-tpu", ZONE)
    assert (machine.state, machine.detail) == (State.WAITING, "PENDING")
    assert machine.left(compute.world.now()) == 4 * 3600, "its time begins with its start"
    assert machine.expires == pytest.approx(compute.world.now() + 6 * 3600, abs=60)
    compute.world.skew += 7000
    finish(operation)
    machine = compute.gce.get("my-tpu", ZONE)
    assert machine.state is State.READY
    assert machine.left(compute.world.now()) == pytest.approx(4 * 3600, abs=60)


@pytest.mark.parametrize("polls", [1, 5])
@pytest.mark.parametrize("running", [True, False])
def test_a_machine_that_is_taken_back(compute, running, polls):
    compute.world.polls = polls
    spot = replace(SPEC, provisioning="spot")
    compute.ready(spot) if running else compute.create(spot)
    gce.preempt(compute.world, "my-tpu")
    machine = compute.gce.get("my-tpu", ZONE)
    assert (machine.state, machine.detail) == (State.LOST, "STOPPING")
    assert "my-tpu" in compute.hosts.halted
    for _ in range(polls):
        compute.gce.get("my-tpu", ZONE)
    assert compute.gce.get("my-tpu", ZONE) is None, "its termination action deletes it"
    assert compute.world.left() == []


def test_a_machine_that_is_gone_before_it_was_ready(compute):
    compute.world.polls = 3
    operation = compute.create(replace(SPEC, provisioning="spot"))
    gce.preempt(compute.world, "my-tpu")
    while compute.gce.get("my-tpu", ZONE):
        pass
    with pytest.raises(Stockout) as told:
        finish(operation)
    assert "creating my-tpu in us-east5-b: it was made and taken back before it was ready" in told.value.problem


def test_a_machine_that_was_stopped_is_lost(compute):
    compute.ready()
    compute.body()["scheduling"]["instanceTerminationAction"] = "STOP"
    gce.preempt(compute.world, "my-tpu")
    states = [compute.gce.get("my-tpu", ZONE) for _ in range(3)]
    assert {machine.state for machine in states} == {State.LOST}
    assert states[-1].detail == "TERMINATED"
    compute.remove()
    assert compute.world.left() == []


def test_the_server_ends_what_was_forgotten(compute):
    compute.ready(replace(SPEC, hours=1))
    compute.world.skew += 3590
    assert compute.gce.get("my-tpu", ZONE).state is State.READY
    compute.world.skew += 20
    assert compute.gce.get("my-tpu", ZONE) is None
    assert (compute.world.left(), compute.hosts.halted) == ([], ["my-tpu"])


def test_nothing_to_delete_is_fine(compute):
    compute.remove()
    assert compute.world.changes() == []
    compute.ready()
    first, second = compute.gce.delete("my-tpu", ZONE), compute.gce.delete("my-tpu", ZONE)
    finish(first)
    finish(second)
    assert compute.world.left() == []


@pytest.mark.parametrize("moment", ["before", "inside"])
def test_a_delete_that_failed_goes_on_when_it_is_asked_again(compute, moment):
    compute.ready()
    busy = Refused(9, "The resource is not ready", "RESOURCE_NOT_READY")
    compute.world.faults = [Fault("instances.delete", busy, moment=moment)]
    with pytest.raises(Conflict) as told:
        compute.remove()
    assert "deleting my-tpu in us-east5-b" in told.value.problem
    assert compute.world.left() == [f"gce.instances: {ZONE}/my-tpu"]
    compute.remove()
    assert compute.world.left() == []


@pytest.fixture
def neighbours(compute):
    """Machines of the project that taetpu did not make: one with TPUs, one without."""
    for name, kind in (("theirs", "ct6e-standard-8t"), ("web", "ct6e-standard-1t")):
        request = compute.gce.calls.change
        body = {
            "name": name,
            "machine_type": f"zones/{ZONE}/machineTypes/{kind}",
            "disks": [{"initialize_params": {"source_image": f"family/{SPEC.runtime}"}}],
            "network_interfaces": [{}],
        }
        finish(request("Instances", "insert", "", zone=ZONE, instance_resource=body))
    compute.body("web")["machineType"] = "zones/us-east5-b/machineTypes/e2-small"


@pytest.mark.usefixtures("neighbours")
def test_neighbours_are_listed_without_an_owner_and_left_alone(compute):
    compute.ready()
    listed = {machine.name: machine for machine in compute.gce.list()}
    assert set(listed) == {"my-tpu", "theirs"}, "what has no TPU is not listed"
    assert (listed["theirs"].owner, listed["theirs"].type) == ("", "v6e-8")
    with pytest.raises(Conflict) as told:
        compute.remove("theirs")
    assert "it has no label taetpu-owner" in told.value.problem
    compute.remove()
    assert compute.world.left() == [f"gce.instances: {ZONE}/theirs", f"gce.instances: {ZONE}/web"]


def test_machines_of_all_zones_are_listed(compute):
    compute.ready()
    compute.ready(replace(SPEC, stack="other", owner="you"), "us-east1-d")
    assert [(m.name, m.zone, m.owner) for m in compute.gce.list()] == [
        ("my-tpu", ZONE, "me"),
        ("other", "us-east1-d", "you"),
    ]
