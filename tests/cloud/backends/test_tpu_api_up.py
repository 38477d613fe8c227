"""`up` and `down` by the Cloud TPU API, over both ways to speak it: its queue, its quotas, its lost answers."""

from dataclasses import replace

import pytest
from tests.cloud.tpu_faces import FACES, KEY, ZONE, cloud, spec

from taetpu.cloud import project, reconcile
from taetpu.cloud.backends.base import State
from taetpu.cloud.errors import Quota, Transient
from taetpu.cloud.fakes.world import Fault, Refused, quota
from taetpu.cloud.state import Records

OTHER = "us-west4-a"
WAITS = project.Waits(poll=0.001, settle=0.2, ready=10.0, queue=0.3)
CALL = "CreateQueuedResource"


@pytest.fixture(params=FACES)
def place(request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with cloud(request.param) as made:
        yield made


def all_of(place, waits=WAITS, tell=lambda line: None):
    return project.Cloud((place.api,), Records(place.world.project), "ada", tell, waits)


def up(place, zones=(ZONE, OTHER), **more):
    return reconcile.up(all_of(place), spec(**more), dict.fromkeys(zones, 1.0), "#!/bin/sh\n", KEY)


def test_a_zone_without_room_is_waited_for_and_then_left_clean(place):
    place.tpu.queue.starved.add(ZONE)
    assert up(place).zone == OTHER
    assert all(OTHER in name for name in place.world.left())


@pytest.mark.parametrize("zones", [(ZONE,), (OTHER, ZONE)])
def test_in_the_last_zone_it_waits_as_long_as_it_takes(place, zones):
    place.tpu.queue.starved |= {ZONE, OTHER}
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 50:
            place.tpu.queue.starved.clear()

    cloud = all_of(place, replace(WAITS, poll=0.0, queue=0.0, sleep=sleep))
    assert reconcile.up(cloud, spec(), dict.fromkeys(zones, 1.0), "", KEY).zone == ZONE
    assert len(pauses) >= 50
    assert place.changes().count(CALL) == len(zones)


def test_flex_start_waits_in_the_first_zone_for_that_is_what_it_is(place):
    place.tpu.queue.starved.add(ZONE)
    pauses = []
    waits = replace(WAITS, poll=0.0, queue=0.0, sleep=lambda seconds: pauses.append(len(pauses) < 50 or clear()))

    def clear():
        place.tpu.queue.starved.clear()

    zones = dict.fromkeys((ZONE, OTHER), 1.0)
    assert reconcile.up(all_of(place, waits), spec(provisioning="flex-start"), zones, "", KEY).zone == ZONE


def test_a_request_that_runs_out_of_its_time_in_the_queue_leaves_nothing_there(place):
    place.tpu.queue.starved.add(ZONE)
    said = []

    def tell(line):
        said.append(line)
        if line == f"{ZONE}: WAITING_FOR_RESOURCES":
            place.world.skew += 5 * 3600

    cloud = all_of(place, replace(WAITS, queue=60.0), tell)
    assert reconcile.up(cloud, spec(hours=4.0), dict.fromkeys((ZONE, OTHER), 1.0), "", KEY).zone == OTHER
    assert any("could not be fulfilled before its valid-until time" in line for line in said), said
    assert all(OTHER in name for name in place.world.left())


def test_a_quota_of_one_zone_leaves_its_neighbour_to_be_tried(place):
    place.tpu.zones["us-east5-a"] = ["v6e-8"]
    place.world.faults.append(Fault(CALL, quota("TPUV6EPerProjectPerZoneForTPUAPI", ZONE), ZONE))
    assert up(place, (ZONE, "us-east5-a")).zone == "us-east5-a"
    reconcile.down(all_of(place), "lab")
    place.world.faults.append(Fault(CALL, quota("TPUV6EPerProjectPerRegionForTPUAPI", "us-east5"), ZONE))
    with pytest.raises(Quota):
        up(place, (ZONE, "us-east5-a"), name="other")


@pytest.mark.parametrize("error", [None, Refused(14, "The service is currently unavailable.")])
def test_an_answer_that_was_lost_is_looked_for_and_not_asked_for_twice(place, error):
    place.world.faults.append(Fault(CALL, error, moment="after"))
    assert up(place).state is State.READY
    assert place.changes() == [CALL]


def test_down_goes_on_where_an_answer_was_lost(place):
    up(place)
    place.world.faults += [Fault("DeleteQueuedResource", None, moment="after"), Fault("GetOperation", None)]
    reconcile.down(all_of(place), "lab")
    assert (place.world.left(), place.hosts.up) == ([], {})


def test_hosts_that_tell_their_names_late_are_asked_again(place):
    """READY comes before the hosts have told who they are; a tunnel needs that, an address of one's own does not."""
    silent = Refused(5, "Guest attributes were not found.")
    place.world.faults.append(Fault("GetGuestAttributes", silent, times=10**6))
    machine = up(place)
    assert [worker.instance for worker in machine.workers] == [""]
    there = all_of(place)
    assert reconcile.named(there, machine, spec(external_ip=True)) == machine
    assert reconcile.named(there, machine, spec()) == machine, "after some time it is taken as it is"
    place.world.faults[:] = [Fault("GetGuestAttributes", silent, times=3)]
    assert [worker.instance for worker in reconcile.named(there, machine, spec()).workers] == list(place.hosts.up)


def test_what_has_become_of_a_machine(place):
    machine, there = up(place), all_of(place)
    assert reconcile.lost(there, machine) == ""
    place.tpu.preempt("lab")
    assert reconcile.lost(there, machine) == "SUSPENDED by SERVICE"
    reconcile.down(there, "lab")
    assert reconcile.lost(there, machine) == "gone"
    place.world.faults.append(
        Fault("GetQueuedResource", Refused(14, "The service is currently unavailable."), times=10**6)
    )
    with pytest.raises(Transient):
        reconcile.lost(there, machine)
