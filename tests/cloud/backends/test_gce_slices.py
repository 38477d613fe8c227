"""Slices of several hosts by Compute Engine: all of them or none, in order, and nothing left of what failed."""

from dataclasses import replace

import pytest
from tests.cloud.gce import SLICE, SPEC, ZONE, finish

from taetpu.cloud.backends.base import State
from taetpu.cloud.errors import Conflict, Permission, Quota, Stockout
from taetpu.cloud.fakes import gce, gce_base
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.spec import fingerprint

PROJECT = "fake-project"
PART = "us-east5/my-tpu-b"


def test_four_hosts_in_order(compute):
    machine = compute.ready(SLICE)
    names = [worker.instance for worker in machine.workers]
    assert names == sorted(names)
    assert [(name, worker) for name, worker, _ in compute.hosts.booted] == list(zip(names, range(4), strict=True))
    assert [worker.address for worker in machine.workers] == ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]
    assert (machine.name, machine.type, machine.zone) == ("my-tpu", "v6e-16", ZONE)
    assert (machine.owner, machine.stack, machine.spec) == ("me", "my-tpu", fingerprint(SLICE.identity()))
    assert machine.expires == pytest.approx(compute.world.now() + 4 * 3600, abs=60)
    assert list(compute.gce.list()) == [machine], "its hosts are no machines of their own"
    assert compute.gce.get("my-tpu", ZONE) == machine
    compute.remove()
    assert (compute.world.left(), compute.gce.list(), compute.gce.get("my-tpu", ZONE)) == ([], [], None)
    assert sorted(compute.hosts.halted) == names


def test_what_is_asked_for_a_slice(compute):
    compute.ready(replace(SLICE, provisioning="spot"))
    policy = compute.world.table("gce.policies")[PART]
    template = compute.world.table("gce.templates")[PART]["properties"]
    group = compute.world.table("gce.groups")[f"{ZONE}/my-tpu"]
    assert policy["workloadPolicy"] == {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"}
    assert template["machineType"] == "ct6e-standard-4t"
    assert template["scheduling"]["provisioningModel"] == "SPOT"
    assert template["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert template["scheduling"]["maxRunDuration"] == {"seconds": "14400"}
    assert template["labels"]["taetpu-stack"] == "my-tpu"
    assert (group["targetSize"], group["targetSizePolicy"]) == (4, {"mode": "BULK"})
    assert group["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
    link = "https://www.googleapis.com/compute/v1/projects/fake-project/regions/us-east5/resourcePolicies/my-tpu-b"
    assert group["resourcePolicies"]["workloadPolicy"] == link
    for part in (policy, group, compute.world.table("gce.templates")[PART]):
        assert "taetpu-owner=me taetpu-stack=my-tpu" in part["description"]


def test_ready_only_when_all_hosts_run(compute):
    compute.world.polls = 4
    operation, seen = compute.create(SLICE), []
    for _ in range(40):
        operation.done()
        if machine := compute.gce.get("my-tpu", ZONE):
            running = sum(i["status"] == "RUNNING" for i in compute.world.table("gce.instances").values())
            seen.append((machine.state, running))
            if machine.state is State.READY:
                break
    assert seen[0][0] is State.CREATING
    assert seen[-1] == (State.READY, 4)


def test_a_slice_with_one_host_missing_is_not_ready(compute):
    compute.ready(SLICE)
    [*_, last] = compute.gce.get("my-tpu", ZONE).workers
    compute.body(last.instance)["status"] = "STAGING"
    machine = compute.gce.get("my-tpu", ZONE)
    assert (machine.state, machine.detail) == (State.CREATING, "3 of 4 hosts RUNNING (1 STAGING)")


def test_one_host_that_cannot_be_had_leaves_nothing(compute):
    """The third of four."""
    compute.world.faults = [Fault("instances.insert", gce_base.stockout(PROJECT, ZONE), ZONE, "inside", 10**6, skip=2)]
    with pytest.raises(Stockout) as told:
        finish(compute.create(SLICE))
    assert "us-east5-b has none left" in told.value.problem
    assert compute.hosts.booted == []
    assert compute.world.left() == []


def test_a_quota_that_a_group_runs_into(compute):
    compute.world.faults = [
        Fault("instances.insert", gce_base.quota("TPUS_PER_TPU_FAMILY", "us-east5"), times=10**6, moment="inside")
    ]
    with pytest.raises(Quota) as told:
        finish(compute.create(SLICE))
    assert told.value.facts["quota_limit"] == "TPUS_PER_TPU_FAMILY"
    assert compute.world.left() == []


CALLS = ["resourcePolicies.insert", "instanceTemplates.insert", "instanceGroupManagers.insert"]


@pytest.mark.parametrize("moment", ["before", "inside"])
@pytest.mark.parametrize("call", CALLS)
def test_whichever_step_fails_nothing_is_left(compute, call, moment):
    compute.world.faults = [Fault(call, gce_base.denied(f"compute.{call}", "projects/p"), moment=moment)]
    with pytest.raises(Permission) as told:
        finish(compute.create(SLICE))
    assert f"compute.{call}" in told.value.problem
    assert compute.world.left() == []


@pytest.mark.parametrize("call", CALLS)
def test_a_lost_answer_at_any_step_changes_nothing(compute, call):
    compute.world.faults = [Fault(call, None, moment="after")]
    assert compute.ready(SLICE).state is State.READY
    assert len(compute.hosts.booted) == 4


def abandoned(compute, spec, steps):
    """A slice that nobody asks on for, after the policy or the policy and the template."""
    operation = compute.create(spec)
    while len(compute.world.left()) < steps:
        operation.done()
    assert len(compute.world.left()) == steps


@pytest.mark.parametrize("steps", [1, 2])
def test_what_a_killed_command_left_is_found_and_removed(compute, steps):
    abandoned(compute, SLICE, steps)
    [machine] = compute.gce.list()
    assert (machine.name, machine.zone, machine.state, machine.owner) == ("my-tpu", ZONE, State.LOST, "me")
    assert machine.workers == ()
    assert machine.detail == "only its policy or template is left"
    assert compute.gce.get("my-tpu", ZONE) is None, "while it is made it is not lost"
    compute.remove()
    assert compute.world.left() == []


def test_what_was_left_is_in_nobodys_way(compute):
    abandoned(compute, replace(SLICE, hours=9), 2)
    compute.ready(replace(SLICE, hours=1))
    properties = compute.world.table("gce.templates")[PART]["properties"]
    assert properties["scheduling"]["maxRunDuration"] == {"seconds": "3600"}, "the old template is not used"
    compute.remove()
    assert compute.world.left() == []


def test_parts_of_others_are_left_alone(compute):
    theirs = {"name": "my-tpu-b", "workload_policy": {"type_": "HIGH_THROUGHPUT"}}
    change = compute.gce.calls.change
    finish(change("ResourcePolicies", "insert", "", region="us-east5", resource_policy_resource=theirs))
    with pytest.raises(Conflict) as told:
        compute.create(SLICE)
    assert "a workload policy my-tpu-b in us-east5 that is not of my-tpu" in told.value.problem
    assert "choose another name" in told.value.remedy
    compute.remove()
    assert compute.world.left() == [f"gce.policies: {PART}"]
    assert compute.gce.list() == []


def test_parts_that_a_neighbour_is_just_making_are_left_alone(compute):
    """A stack of the same name, of somebody else, whose group is not there yet."""
    abandoned(compute, replace(SLICE, owner="bob"), 2)
    theirs = compute.world.left()
    with pytest.raises(Conflict) as told:
        compute.create(SLICE)
    assert "that is not of my-tpu of yours, but bob's" in told.value.problem
    assert compute.world.left() == theirs


def test_the_same_slice_twice(compute):
    compute.ready(SLICE)
    with pytest.raises(Conflict) as told:
        compute.create(SLICE)
    assert "a group of this name is there" in told.value.problem
    assert compute.gce.get("my-tpu", ZONE).state is State.READY


def test_a_slice_in_the_queue_waits_and_comes(compute):
    full = Fault("instances.insert", gce_base.stockout(PROJECT, ZONE), ZONE, "inside", times=10**6)
    compute.world.faults = [full]
    operation = compute.create(replace(SLICE, provisioning="flex-start"))
    finish(operation)
    machine = compute.gce.get("my-tpu", ZONE)
    assert machine.state is State.WAITING
    assert "4 PENDING" in machine.detail
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in machine.detail
    compute.world.faults.remove(full)
    for _ in range(5):
        machine = compute.gce.get("my-tpu", ZONE)
    assert (machine.state, machine.detail) == (State.READY, "4 of 4 hosts RUNNING")


def test_one_host_taken_back_is_a_slice_lost(compute):
    machine = compute.ready(replace(SLICE, provisioning="spot"))
    assert machine.spot
    gce.preempt(compute.world, machine.workers[2].instance)
    for _ in range(4):
        machine = compute.gce.get("my-tpu", ZONE)
        assert machine.state is State.LOST, machine.detail
    assert machine.detail == "3 of 4 hosts RUNNING (1 not there)"
    assert len(machine.workers) == 3
    compute.remove()
    assert compute.world.left() == []


def test_a_slice_whose_time_is_up_is_lost(compute):
    compute.ready(SLICE)
    compute.world.skew += 4 * 3600 + 1
    machine = compute.gce.get("my-tpu", ZONE)
    assert (machine.state, machine.workers) == (State.LOST, ())
    assert len(compute.hosts.halted) == 4
    [listed] = compute.gce.list()
    assert listed.state is State.LOST
    compute.remove()
    assert compute.world.left() == []


@pytest.mark.parametrize("again", [True, False], ids=["asked-again", "another-command"])
@pytest.mark.parametrize(
    "call", ["instanceGroupManagers.delete", "instanceTemplates.delete", "resourcePolicies.delete"]
)
def test_a_partial_delete_goes_on(compute, call, again):
    compute.ready(SLICE)
    busy = Refused(9, "The resource is not ready", "RESOURCE_NOT_READY")
    compute.world.faults = [Fault(call, busy, moment="inside")]
    operation = compute.gce.delete("my-tpu", ZONE)
    with pytest.raises(Conflict) as told:
        finish(operation)
    assert "deleting my-tpu in us-east5-b" in told.value.problem
    assert f"gce.policies: {PART}" in compute.world.left()
    if again:
        finish(operation)
    else:
        compute.remove()
    assert compute.world.left() == []


def test_a_slice_that_is_being_deleted_is_not_ready(compute):
    compute.ready(SLICE)
    compute.world.polls = 5
    operation = compute.gce.delete("my-tpu", ZONE)
    assert compute.gce.get("my-tpu", ZONE).state is State.DELETING
    finish(operation)
    assert compute.world.left() == []


def test_a_slice_and_a_single_host_beside_it(compute):
    """Two stacks of one zone, and one of the same name in another zone of the region."""
    compute.ready(SLICE)
    compute.ready(replace(SPEC, stack="single"))
    compute.ready(SLICE, "us-east5-a")
    assert [(m.name, m.zone, len(m.workers)) for m in compute.gce.list()] == [
        ("my-tpu", "us-east5-a", 4),
        ("my-tpu", ZONE, 4),
        ("single", ZONE, 1),
    ]
    compute.remove()
    assert [(m.name, m.zone) for m in compute.gce.list()] == [("my-tpu", "us-east5-a"), ("single", ZONE)]
