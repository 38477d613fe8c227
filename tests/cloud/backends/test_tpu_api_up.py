"""`up` and `down` by the Cloud TPU API: a machine in the first zone that gives one, and nothing left."""

import pytest
from tests.cloud.tpu_faces import FACES, KEY, ZONE, cloud, spec

from taetpu.cloud import reconcile
from taetpu.cloud.backends.base import State
from taetpu.cloud.errors import Invalid, Permission, Quota, Stockout, Transient
from taetpu.cloud.fakes.world import Fault, Refused, quota, stockout
from taetpu.cloud.state import Records

OTHER = "us-west4-a"
WAITS = reconcile.Waits(poll=0.001, settle=0.2, ready=10.0, queue=0.3)
CALL = "CreateQueuedResource"


@pytest.fixture(params=FACES)
def place(request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with cloud(request.param) as made:
        yield made


def all_of(place):
    return reconcile.Cloud((place.api,), Records(place.world.project), "ada", waits=WAITS)


def up(place, zones=(ZONE, OTHER), **more):
    return reconcile.up(all_of(place), spec(**more), dict.fromkeys(zones, 1.0), "#!/bin/sh\n", KEY)


def test_the_same_command_again_changes_nothing(place):
    machine = up(place)
    before = place.changes()
    assert up(place) == machine, "with the names of its hosts, which ssh needs"
    assert place.changes() == before == [CALL]
    reconcile.down(all_of(place), "lab")
    assert (place.world.left(), place.hosts.up) == ([], {})


@pytest.mark.parametrize(
    "fault",
    [
        Fault(CALL, stockout(ZONE), ZONE),
        Fault(CALL, stockout(ZONE), ZONE, "inside"),
        Fault("Provision", stockout(ZONE), ZONE, "inside"),
        Fault(CALL, quota("TPUV6EPerProjectPerRegionForTPUAPI", "us-east5"), ZONE),
        Fault("Provision", quota("TPUV6EPerProjectPerRegionForTPUAPI", "us-east5"), ZONE, "inside"),
        Fault(CALL, Refused(7, "Permission denied on 'locations/us-east5-b' (or it may not exist).",
                            "LOCATION_POLICY_VIOLATED", {"location": ZONE}), ZONE),
    ],
    ids=["stockout", "in the operation", "while it is made", "quota", "quota while it is made", "closed"],
)  # fmt: skip
def test_a_zone_that_gives_none_is_left_clean_for_the_next(place, fault):
    place.world.faults.append(Fault(**vars(fault)))
    assert up(place).zone == OTHER
    assert all(OTHER in name for name in place.world.left()), place.world.left()


def test_a_zone_without_room_is_waited_for_and_then_left_clean(place):
    place.tpu.queue.starved.add(ZONE)
    assert up(place).zone == OTHER
    assert all(OTHER in name for name in place.world.left())


def test_no_zone_at_all_tells_why_of_each(place):
    place.world.faults += [Fault(CALL, stockout(ZONE), ZONE), Fault(CALL, quota("Q", "us-west4"), OTHER)]
    with pytest.raises(Stockout) as told:
        up(place)
    assert "us-east5-b has none left" in told.value.problem
    assert "the project's quota Q is used up" in told.value.problem
    assert place.world.left() == []


def test_a_quota_of_one_zone_leaves_its_neighbour_to_be_tried(place):
    place.tpu.zones["us-east5-a"] = ["v6e-8"]
    place.world.faults.append(Fault(CALL, quota("TPUV6EPerProjectPerZoneForTPUAPI", ZONE), ZONE))
    assert up(place, (ZONE, "us-east5-a")).zone == "us-east5-a"
    reconcile.down(all_of(place), "lab")
    place.world.faults.append(Fault(CALL, quota("TPUV6EPerProjectPerRegionForTPUAPI", "us-east5"), ZONE))
    with pytest.raises(Quota):
        up(place, (ZONE, "us-east5-a"), name="other")


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Refused(7, "no", "IAM_PERMISSION_DENIED", {"permission": "tpu.nodes.create"}), Permission),
     (Refused(3, 'Cloud TPU received a bad request. Runtime version "x" was not found.'), Invalid)],
)  # fmt: skip
def test_what_no_zone_would_grant_is_not_tried_elsewhere(place, error, kind):
    place.world.faults.append(Fault(CALL, error, ZONE))
    with pytest.raises(kind):
        up(place)
    assert place.changes() == [CALL]
    assert place.world.left() == []


@pytest.mark.parametrize("error", [None, Refused(14, "The service is currently unavailable.")])
def test_an_answer_that_was_lost_is_looked_for_and_not_asked_for_twice(place, error):
    place.world.faults.append(Fault(CALL, error, moment="after"))
    assert up(place).state is State.READY
    assert place.changes() == [CALL]


def test_a_machine_that_was_preempted_is_replaced(place):
    first = up(place)
    place.tpu.preempt("lab")
    second = up(place)
    assert second.state is State.READY
    assert second.workers[0].instance != first.workers[0].instance
    assert len(place.hosts.up) == 1


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
