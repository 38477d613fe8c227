"""`up` and `down` with Compute Engine: what is taken back while it is made, and what a killed command left."""

from dataclasses import replace

import pytest
from tests.cloud.gce import KEY, SLICE, SPEC, ZONE

from taetpu.cloud.backends.base import State
from taetpu.cloud.fakes import gce
from taetpu.cloud.project import Cloud, Waits
from taetpu.cloud.reconcile import down, up
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
def test_looking_changes_nothing(compute, cloud, spec):
    begun(cloud, spec)
    compute.world.calls.clear()
    cloud.of("my-tpu")
    compute.gce.zones(spec.tpu)
    assert compute.world.calls != []
    assert compute.world.changes() == []
