"""`up` and `down` with Compute Engine: the next zone, what a killed command left, and nothing that stays behind."""

from dataclasses import replace

import pytest
from tests.cloud.gce import KEY, SLICE, SPEC, ZONE

from taetpu.cloud.backends.base import State
from taetpu.cloud.errors import Permission, Stockout
from taetpu.cloud.fakes import gce, gce_base
from taetpu.cloud.fakes.world import Fault
from taetpu.cloud.reconcile import Cloud, Waits, down, up
from taetpu.cloud.state import Records

PROJECT = "fake-project"
NEXT = "us-east5-a"
KINDS = pytest.mark.parametrize("spec", [SPEC, SLICE], ids=["one-host", "four-hosts"])


@pytest.fixture
def cloud(compute, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    waits = Waits(poll=0.001, settle=0.2, ready=5.0)
    return Cloud([compute.gce], Records(PROJECT), "me", waits=waits)


def begun(cloud, spec, zones=(ZONE, NEXT)):
    return up(cloud, spec, dict.fromkeys(zones, 1.0), "#!/bin/sh\n", KEY)


@KINDS
def test_up_again_changes_nothing_and_down_leaves_nothing(compute, cloud, spec):
    machine = begun(cloud, spec)
    changes = len(compute.world.changes())
    assert begun(cloud, spec) == machine
    assert len(compute.world.changes()) == changes
    assert [one.name for one in down(cloud, "my-tpu")] == ["my-tpu"]
    assert compute.world.left() == []
    assert down(cloud, "my-tpu") == []


@KINDS
def test_where_one_zone_has_none_the_next_is_asked(compute, cloud, spec):
    full = gce_base.stockout(PROJECT, ZONE)
    compute.world.faults = [Fault("instances.insert", full, ZONE, "inside", 10**6, skip=spec.tpu.hosts - 1)]
    machine = begun(cloud, spec)
    assert (machine.zone, machine.state, len(machine.workers)) == (NEXT, State.READY, spec.tpu.hosts)
    assert {line.split(": ")[1].partition("/")[0] for line in compute.world.left()} <= {NEXT, "us-east5"}
    down(cloud, "my-tpu")
    assert compute.world.left() == []


@KINDS
def test_nowhere_leaves_nothing(compute, cloud, spec):
    full = gce_base.stockout(PROJECT, ZONE)
    compute.world.faults = [Fault("instances.insert", full, moment="inside", times=10**6)]
    with pytest.raises(Stockout) as told:
        begun(cloud, spec)
    assert f"no zone gave a {spec.tpu.name} (on-demand): {ZONE}: " in told.value.problem
    assert compute.world.left() == []


@KINDS
def test_a_machine_taken_back_while_it_is_made_is_asked_for_elsewhere(compute, cloud, spec, monkeypatch):
    compute.world.polls = 4
    asked = compute.gce.get

    def get(name, zone):
        machine = asked(name, zone)
        young = machine and zone == ZONE and machine.state is State.CREATING and machine.workers
        if young and not compute.hosts.halted:
            gce.preempt(compute.world, machine.workers[0].instance)
        return machine

    monkeypatch.setattr(compute.gce, "get", get)
    machine = begun(cloud, replace(spec, provisioning="spot"))
    assert machine.zone == NEXT
    down(cloud, "my-tpu")
    assert compute.world.left() == []


def test_what_a_killed_up_left_goes_with_the_next_one(compute, cloud):
    """Killed after the policy and the template: no machine is there yet."""
    making = compute.create(SLICE)
    while len(compute.world.left()) < 2:
        making.done()
    machine = begun(cloud, SLICE)
    assert machine.state is State.READY
    down(cloud, "my-tpu")
    assert compute.world.left() == []


def test_what_a_killed_up_left_goes_with_down(compute, cloud):
    compute.create(SLICE).done()
    assert compute.world.left() != []
    down(cloud, "my-tpu")
    assert compute.world.left() == []


@KINDS
def test_a_permission_ends_it_at_once(compute, cloud, spec):
    call = "instances.insert" if spec is SPEC else "instanceGroupManagers.insert"
    denied = gce_base.denied(f"compute.{call.replace('insert', 'create')}", "projects/p")
    compute.world.faults = [Fault(call, denied, times=10**6)]
    with pytest.raises(Permission):
        begun(cloud, spec)
    assert not [one for one in compute.world.calls if one.name == call and one.zone == NEXT]
    assert compute.world.left() == []


@KINDS
def test_looking_changes_nothing(compute, cloud, spec):
    begun(cloud, spec)
    compute.world.calls.clear()
    cloud.of("my-tpu")
    compute.gce.zones(spec.tpu)
    compute.gce.parts()
    assert compute.world.calls != []
    assert compute.world.changes() == []
