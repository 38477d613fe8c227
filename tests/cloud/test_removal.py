"""The end of machines: whatever goes wrong on the way, what remains is named, and the same command goes on."""

import time

import pytest
from tests.cloud.reconciling import FAR, GCE, NAME, NEXT, ZONE, vanish

from taetpu.cloud import reconcile
from taetpu.cloud.clients import Clients
from taetpu.cloud.errors import Permission, Unknown
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.core.errors import UserError

BUSY = Refused(14, "The service is currently unavailable.")
FAILED = Refused(13, "internal error")
DENIED = Refused(7, "Required 'compute.instances.delete' permission for 'projects/p'", "forbidden")
NOT_READY = Refused(9, "The resource is not ready", "resourceNotReady")
ALWAYS = 10**6


@pytest.mark.parametrize("moment", ["before", "inside", "after"])
@pytest.mark.parametrize("error", [None, BUSY, FAILED, NOT_READY], ids=["cut", "503", "500", "not ready"])
def test_down_goes_on_through_whatever_passes(place, moment, error):
    place.up()
    if (moment, error) == ("inside", None):
        error = FAILED
    place.world.faults.append(Fault(place.kind.delete, error, moment=moment, times=2))
    place.down()
    assert (place.world.left(), place.hosts.up, place.record.zones) == ([], [], ())


@pytest.mark.parametrize("how", ["preempted", "vanished"])
def test_a_machine_that_is_lost_while_it_is_deleted_is_gone(place, how):
    place.up(provisioning="spot")
    place.world.on[place.kind.delete] = place.preempt if how == "preempted" else lambda: vanish(place)
    place.down()
    assert (place.world.left(), place.hosts.up, place.world.on) == ([], [], {})


def test_what_remains_is_named_and_the_same_command_goes_on(place):
    """Two machines of a stack, one of which cannot be deleted for now."""
    place.made(ZONE)
    place.made(FAR)
    place.patient(ready=0.3)
    stuck = Fault(place.kind.delete, FAILED, ZONE, "inside", ALWAYS)
    place.world.faults.append(stuck)
    with pytest.raises(Unknown) as told:
        place.down()
    assert told.value.problem.startswith(f"still there, and may cost money: {NAME} in {ZONE} (")
    assert FAR not in told.value.problem
    assert told.value.remedy.startswith("give the same command again")
    assert told.value.exit_code == 3
    assert place.world.alive() in ([(NAME, ZONE)], [])
    assert all("central1" not in name for name in place.world.left()), "the other one is gone"
    place.world.faults.remove(stuck)
    place.down()
    assert place.world.left() == []
    place.world.twice.clear()  # it was the test that made two


def test_what_may_not_be_deleted_is_told_as_that_and_the_others_go(place):
    place.made(ZONE)
    place.made(FAR)
    place.world.faults.append(Fault(place.kind.delete, DENIED, ZONE, times=ALWAYS))
    with pytest.raises(Permission) as told:
        place.down()
    assert told.value.problem.startswith(f"still there, and may cost money: {NAME} in {ZONE} (")
    assert "permission" in told.value.problem
    assert place.world.alive() == [(NAME, ZONE)]
    place.world.twice.clear()


def test_up_does_not_make_another_while_a_lost_one_cannot_be_removed(place):
    place.up()
    if place.kind is GCE:  # which deletes what it preempts by itself
        place.world.table("gce.instances")[f"{ZONE}/{NAME}"]["status"] = "TERMINATED"
    else:
        place.preempt()
    place.patient(ready=0.3)
    count = len(place.changes())
    place.world.faults.append(Fault(place.kind.delete, FAILED, moment="inside", times=ALWAYS))
    with pytest.raises(Unknown, match="still there"):
        place.up()
    assert place.kind.create not in place.changes()[count:]


# Machines that should be gone


def expired(place):
    return reconcile.expired(place.cloud.machines(), place.cloud.owner, place.cloud.waits.now())


def test_gc_takes_what_has_expired_and_nothing_else(place):
    place.made(ZONE, hours=4.0)
    place.made(FAR, name="other", hours=8.0)
    place.made(NEXT, name="theirs", owner="bob", hours=1.0)
    place.made(NEXT, name="nobodys", owner="", hours=1.0)
    strip(place, "nobodys")
    assert expired(place) == []
    place.patient(now=lambda: time.time() + 5 * 3600)
    doomed = expired(place)
    assert [machine.name for machine in doomed] == [NAME]
    count = len(place.changes())
    reconcile.collect(place.cloud, doomed)
    assert set(place.changes()[count:]) <= {place.kind.delete, "instanceTemplates.delete", "resourcePolicies.delete"}
    assert [place.world.alive(), place.world.alive("bob")] == [[("other", FAR)], [("theirs", NEXT)]]
    assert any("nobodys" in name for name in place.world.left())


def strip(place, name: str) -> None:
    """Take a machine's labels away, as if it had been made by hand."""
    for full, one in [*place.world.table("tpu.nodes").items(), *place.world.table("tpu.queuedResources").items()]:
        if full.endswith(f"/{name}"):
            spec = one.data["tpu"]["nodeSpec"][0]["node"] if "tpu" in one.data else one.data
            spec["labels"] = {}
    for table in ("instances", "groups", "templates", "policies"):
        for one in place.world.table(f"gce.{table}").values():
            if one["name"].startswith(name):
                one |= {"labels": {}, "description": "by hand"}


def test_gc_of_one_that_was_made_again_meanwhile_leaves_it(place):
    place.made(hours=1.0)
    place.patient(now=lambda: time.time() + 2 * 3600)
    doomed = expired(place)
    place.down()
    place.made(hours=8.0)
    reconcile.collect(place.cloud, doomed)
    assert place.world.alive() == [(NAME, ZONE)]


def test_gc_goes_on_with_the_others_where_one_is_being_changed(place):
    place.made(hours=1.0)
    place.made(FAR, name="other", hours=1.0)
    place.patient(now=lambda: time.time() + 2 * 3600)
    with place.cloud.records.held(NAME), pytest.raises(UserError, match=f"is changing the TPU '{NAME}'"):
        reconcile.collect(place.cloud, expired(place))
    assert place.world.alive() == [(NAME, ZONE)]


@pytest.mark.parametrize("off", [-9 * 3600, 9 * 3600])
def test_a_wrong_clock_here_neither_shortens_nor_lengthens_a_machines_life(place, off):
    """The cloud's clock is ahead of ours, or behind; labels go by the cloud's, on whatever computer."""
    place.world.skew = off
    place.up(hours=4.0)
    [machine] = place.cloud.machines()
    assert machine.expires == pytest.approx(place.world.now() + 4 * 3600, abs=60)
    assert expired(place) == []
    place.world.skew += 4 * 3600 + 120
    place.patient(now=Clients(place.world.project).now)  # as a later command sees it
    assert [one.name for one in expired(place)] == ([] if place.kind is GCE else [NAME]), "an instance ends by itself"
