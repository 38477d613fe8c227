"""`up` and `down` with both backends: looked for before it is asked for, never made twice, nothing left behind."""

import time
from dataclasses import replace

import pytest
from tests.cloud.reconciling import FAR, GCE, ME, NAME, NEXT, SLICE, TPU_API, ZONE, vanish

from taetpu.cloud import reconcile
from taetpu.cloud.backends.base import State
from taetpu.cloud.errors import Conflict, Invalid, NotOffered, Permission, Quota, Stockout, Transient, Unknown
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.state import STALE
from taetpu.core.errors import UserError

BUSY = Refused(14, "The service is currently unavailable.")
DENIED = Refused(7, "Required 'compute.instances.create' permission for 'projects/p'", "forbidden")
CLOSED = Refused(7, f"Permission denied on 'locations/{ZONE}' (or it may not exist).", "LOCATION_POLICY_VIOLATED",
                 {"location": ZONE})  # fmt: skip
ALWAYS = 10**6


def asked(place) -> int:
    """How often a machine was asked for, wherever."""
    return place.changes().count(place.kind.create)


def test_the_same_command_again_changes_nothing_and_down_leaves_nothing(place):
    machine = place.up()
    changes = place.changes()
    assert (machine.state, machine.zone, machine.owner) == (State.READY, ZONE, ME)
    assert place.world.alive() == [(NAME, ZONE)]
    assert place.up() == machine, "with the names of its hosts, which ssh needs"
    assert place.changes() == changes
    assert (place.record.zones, place.record.identity["type"]) == ((ZONE,), place.kind.tpu)
    assert [one.name for one in place.down()] == [NAME]
    assert (place.world.left(), place.hosts.up) == ([], [])
    assert (place.record.zones, place.record.identity, place.record.since) == ((), {}, None)
    assert place.down() == []


def test_down_of_what_never_was_remembers_nothing(place):
    assert place.down() == []
    assert place.cloud.records.stacks() == []
    assert place.changes() == []


def test_another_machine_of_the_name_is_refused_with_the_difference(place):
    place.up()
    changes = place.changes()
    with pytest.raises(Conflict) as told:
        place.up(provisioning="spot", disk_gb=500)
    assert told.value.problem == (
        f"'{NAME}' in {ZONE} is there already and differs: provisioning is 'on-demand', not 'spot'; "
        "disk_gb is 200, not 500"
    )
    assert told.value.remedy == f"`taetpu tpu down {NAME}` removes it; or choose another name"
    assert (place.changes(), place.record.identity["provisioning"]) == (changes, "on-demand")


def test_how_long_it_is_kept_makes_no_other_machine(place):
    machine = place.up()
    assert place.up(hours=1.0, idle_minutes=None) == machine


def test_from_another_computer_a_machine_is_found_again(place, tmp_path):
    machine = place.up()
    changes = place.changes()
    place.elsewhere(tmp_path / "other")
    assert place.up(rate=2.0) == machine
    assert place.changes() == changes
    assert (place.record.zones, place.record.usd_per_hour) == ((ZONE,), 2.0)
    with pytest.raises(Conflict, match="provisioning is 'on-demand', not 'spot'"):
        place.up(provisioning="spot")
    place.down()
    assert place.world.left() == []


def test_what_differs_is_told_as_far_as_it_is_known(place, tmp_path):
    place.made(tpu="v6e-4" if place.kind.tpu == "v6e-8" else "v6e-32")
    with pytest.raises(Conflict, match=r"differs: type is 'v6e-\d+', not 'v6e-(8|16)'"):
        place.up()
    place.down()
    place.made(provisioning="spot")
    with pytest.raises(Conflict, match="it was made with other settings, on another machine"):
        place.up()


@pytest.mark.parametrize("owner", ["bob", ""])
def test_what_is_not_ours_is_neither_taken_over_nor_touched(place, owner):
    place.made(owner="bob")
    if not owner:
        strip(place)
    there, changes = place.world.left(), place.changes()
    with pytest.raises(Conflict) as told:
        place.up()
    whose = "bob's" if owner else "it has no owner that taetpu knows"
    assert told.value.problem == f"there is a '{NAME}' in {ZONE} already that is not yours ({whose})"
    assert told.value.remedy == "choose another name for the TPU"
    assert place.down() == []
    assert place.world.left() == there
    assert [name for name in place.changes() if name not in changes] == []
    assert place.record.zones == ()


def test_what_is_found_where_no_answer_came_may_be_anothers(place):
    place.made(owner="bob")
    place.world.faults.append(Fault(place.kind.create, BUSY, times=ALWAYS))
    with pytest.raises(Conflict, match=r"already that is not yours \(bob's\)"):
        place.up()
    assert (place.world.alive("bob"), place.world.alive(), place.record.zones) == ([(NAME, ZONE)], [], ())


def strip(place) -> None:
    """Take every label of ours away, as if somebody had made it by hand."""
    for one in place.world.table("tpu.nodes").values():
        one.data["labels"] = {}
    for one in place.world.table("tpu.queuedResources").values():
        one.data["tpu"]["nodeSpec"][0]["node"]["labels"] = {}
    for table in ("instances", "groups", "templates", "policies"):
        for one in place.world.table(f"gce.{table}").values():
            one |= {"labels": {}, "description": "by hand"}


def test_another_ones_machine_of_the_same_name_elsewhere_is_in_nobodys_way(place):
    place.made(NEXT, owner="bob")
    theirs = place.world.left()
    place.up()
    assert place.world.alive("bob") == [(NAME, NEXT)]
    place.down()
    assert place.world.left() == theirs


def test_of_two_that_two_computers_made_at_once_the_one_that_is_ready_stays(place):
    place.made(NEXT)
    making = place.backend.create(place.kind.spec(), FAR, "", "")
    while len(place.world.alive()) < 2:
        making.done()
    assert place.world.alive() == [(NAME, FAR), (NAME, NEXT)]
    assert (place.up(FAR).zone, place.world.alive()) == (NEXT, [(NAME, NEXT)])
    assert f"{NAME} is there more than once: removing it in {FAR}" in place.said
    place.down()
    assert place.world.left() == []
    place.world.twice.clear()  # it was the test that made them


# Answers that are lost


@pytest.mark.parametrize("error", [None, BUSY, Refused(13, "internal error")], ids=["cut", "503", "500"])
def test_an_answer_that_was_lost_is_looked_for_and_nothing_is_made_twice(place, error):
    place.world.faults.append(Fault(place.kind.create, error, moment="after"))
    assert place.up().state is State.READY
    assert place.world.alive() == [(NAME, ZONE)]
    assert (asked(place) == 1) or place.kind.backend == "gce", "Compute Engine is asked again under the same identity"


@pytest.mark.parametrize("error", [None, BUSY, Refused(8, "too many requests", "rateLimitExceeded")],
                         ids=["cut", "503", "429"])  # fmt: skip
def test_a_request_that_never_arrived_is_made_again(place, error):
    place.world.faults.append(Fault(place.kind.create, error, times=2))
    assert (place.up().zone, asked(place)) == (ZONE, 3)


def test_a_service_that_never_answers_leaves_it_open_and_the_same_command_goes_on(place):
    place.world.faults.append(Fault(place.kind.create, None, times=ALWAYS))
    with pytest.raises((Unknown, Transient)) as told:
        place.up()
    assert told.value.exit_code == 3
    assert "the same command" in told.value.remedy
    assert (place.record.zones, place.world.alive()) == ((ZONE,), [])
    assert not place.changes(zone=NEXT), "it may be in the first zone yet"
    place.world.faults.clear()
    assert place.up().state is State.READY
    place.down()
    assert place.world.left() == []


def test_a_machine_that_nobody_could_ask_for_is_found_by_the_next_command(place):
    """It was made; neither the answer nor anything else came through for a while."""
    dead = [Fault("*", BUSY, times=ALWAYS), Fault(place.kind.create, None, moment="after")]
    count = len(place.world.calls)
    place.up("us-east1-d")
    first = next(i for i, call in enumerate(place.world.calls[count:]) if call.name == place.kind.create)
    place.down()
    dead[0].skip = first + 1
    place.world.faults += dead
    with pytest.raises((Unknown, Transient)):
        place.up()
    assert (place.world.alive(), place.record.zones) == ([(NAME, ZONE)], (ZONE,))
    place.world.faults.clear()
    before = len(place.changes())
    assert place.up(NEXT).zone == ZONE, "not where it would be asked for now"
    assert place.kind.create not in place.changes()[before:]


# Zones that have none


@pytest.mark.parametrize("moment", ["before", "inside", "making"])
def test_where_a_zone_has_none_the_next_is_asked_and_the_first_left_clean(place, moment):
    place.world.faults.append(place.kind.none_left(moment))
    assert place.up().zone == NEXT
    assert place.world.alive() == [(NAME, NEXT)]
    assert [line for line in place.said if line.startswith(f"{ZONE}: ") and "has none left" in line]
    assert all(NEXT in name or "us-east5/lab-a" in name for name in place.world.left()), place.world.left()
    assert (place.record.zones, [(r.zone, r.why) for r in place.record.refusals]) == ((NEXT,), [(ZONE, "Stockout")])


def test_a_zone_that_had_none_is_asked_last_for_a_while(place):
    ahead = [0.0]
    place.patient(now=lambda: time.time() + ahead[0])
    place.world.faults.append(place.kind.none_left("before"))
    assert place.up(ZONE, NEXT).zone == NEXT
    place.down()
    place.world.faults.clear()
    assert place.up(ZONE, NEXT).zone == NEXT
    place.down()
    assert place.up(ZONE, provisioning="spot").zone == ZONE, "asked all the same where there is no other"
    place.down()
    ahead[0] = STALE + 1
    assert place.up(ZONE, NEXT).zone == ZONE
    place.down()
    ahead[0] = -2 * STALE
    assert place.up(ZONE, NEXT).zone == ZONE, "the clock was set back"


def test_no_zone_at_all_tells_why_of_each_and_leaves_nothing(place):
    quota = place.kind.quota("TPUS_PER_FAMILY", "us-central1")
    place.world.faults += [place.kind.none_left("inside"), Fault(place.kind.create, quota, FAR)]
    with pytest.raises(Stockout) as told:
        place.up(ZONE, FAR)
    assert told.value.problem.startswith(f"no zone gave a {place.kind.tpu} (on-demand): {ZONE}: creating lab")
    assert f"{ZONE} has none left" in told.value.problem
    assert f"{FAR}: creating lab" in told.value.problem
    assert "quota TPUS_PER_FAMILY is used up" in told.value.problem
    assert (told.value.exit_code, place.world.left(), place.record.zones) == (3, [], ())


def test_a_quota_is_not_asked_for_in_its_region_again(place):
    quota = place.kind.quota("TPUS_PER_FAMILY", "us-east5")
    place.world.faults += [Fault(place.kind.create, quota, zone, times=ALWAYS) for zone in (ZONE, NEXT)]
    assert place.up(ZONE, NEXT, FAR).zone == FAR
    assert not place.changes(zone=NEXT)
    place.down()
    with pytest.raises(Quota) as told:
        place.up(ZONE, NEXT)
    assert "console" in told.value.remedy
    assert (told.value.exit_code, place.world.left()) == (2, [])


def test_where_no_zone_has_the_slice_the_first_says_so_itself(place):
    with pytest.raises(NotOffered) as told:
        place.up("us-central2-b")
    assert f"us-central2-b has no {place.kind.tpu}" in told.value.problem or "is closed" in told.value.problem
    assert "no zone gave" not in told.value.problem
    assert place.world.left() == []


def test_a_zone_that_is_closed_is_passed_over(place):
    place.world.faults += [Fault(place.kind.create, CLOSED, ZONE), Fault(place.kind.look, CLOSED, ZONE, times=ALWAYS)]
    assert place.up().zone == NEXT
    assert f"{ZONE} is closed to this project" in "".join(place.said)


def test_a_zone_that_there_is_not_stops_it_and_is_in_no_way_afterwards(place):
    with pytest.raises(Invalid) as told:
        place.up("us-esat5-b")
    assert "'us-esat5-b' is no zone that this project may use" in told.value.problem
    assert "us-east5-b" in told.value.remedy
    assert place.record.zones == ()
    assert place.down() == []
    assert place.up().zone == ZONE


def test_no_zone_named_is_told(place):
    with pytest.raises(Invalid, match="no zone is named"):
        reconcile.up(place.cloud, place.kind.spec(), {}, "", "")


SIGNED_OUT = Refused(16, "Request had invalid authentication credentials.")
DISABLED = Refused(7, "Cloud TPU API has not been used in project p before or it is disabled.", "SERVICE_DISABLED",
                   {"service": "tpu.googleapis.com", "consumer": "projects/p"})  # fmt: skip
FINAL = {
    "permission": (DENIED, Permission, "permission compute.instances.create is missing"),
    "disabled": (DISABLED, Permission, "is not enabled"),
    "signed out": (SIGNED_OUT, Permission, "the sign-in to Google Cloud has expired"),
    "invalid": (Refused(3, "Invalid value for field 'disks'."), Invalid, "Invalid value"),
}


@pytest.mark.parametrize(
    ("why", "moment"), [*((why, "before") for why in FINAL), ("permission", "inside"), ("invalid", "inside")]
)
def test_what_no_zone_would_grant_stops_it_at_once_and_leaves_nothing(place, why, moment):
    error, kind, words = FINAL[why]
    place.world.faults.append(Fault(place.kind.create, error, ZONE, moment))
    with pytest.raises(kind) as told:
        place.up()
    assert words in told.value.problem
    assert not place.changes(zone=NEXT)
    assert (place.world.left(), place.record.zones, place.record.refusals) == ([], (), ())


def test_a_sign_in_that_expires_on_the_way_leaves_the_machine_to_the_next_command(place):
    """Nobody can ask what became of it, nor remove it."""
    place.world.on[place.kind.create] = lambda: place.world.faults.append(Fault("*", SIGNED_OUT, times=ALWAYS))
    with pytest.raises(Permission) as told:
        place.up()
    assert told.value.remedy == "`gcloud auth application-default login`"
    assert (place.world.alive(), place.record.zones) == ([(NAME, ZONE)], (ZONE,))
    place.world.faults.clear()
    assert place.up().zone == ZONE
    assert asked(place) == 1


def test_an_api_that_is_off_is_in_nobodys_way_who_does_not_need_it(place):
    off = [call for kind in (GCE, SLICE, TPU_API) if kind.backend != place.kind.backend for call in kind.lists]
    place.world.faults += [Fault(call, DISABLED, times=ALWAYS) for call in off]
    assert place.up().state is State.READY
    assert place.up().state is State.READY
    place.down()
    assert place.world.left() == []
    place.world.faults += [Fault(call, DISABLED, times=ALWAYS) for call in place.kind.lists]
    with pytest.raises(Permission, match="is not enabled"):
        place.up()


# On its way, and lost


def test_one_that_takes_long_is_waited_for_and_not_made_again(place):
    place.world.polls = 60
    assert place.up().state is State.READY
    assert (asked(place), place.record.zones) == (1, (ZONE,))


def test_one_that_takes_too_long_goes_before_another_is_made(place):
    place.patient(ready=0.3)
    place.world.endless = (place.kind.make, ZONE)
    assert place.up().zone == NEXT
    assert place.world.alive() == [(NAME, NEXT)]


def test_one_that_is_preempted_while_it_is_made_is_made_elsewhere(place):
    place.world.polls = 5
    look = [i for i in range(1, 400) if i % 2]  # at some question, once it is there

    def strike():
        if place.world.alive() and (place.kind is not TPU_API or place.world.table("tpu.nodes")):
            place.world.at.clear()
            place.preempt()

    place.world.at |= dict.fromkeys(look, strike)
    if place.kind.name == "slice":
        place.world.polls = 1
    machine = place.up(provisioning="spot")
    assert machine.state is State.READY
    assert place.world.alive() == [(NAME, machine.zone)]
    place.down()
    assert (place.world.left(), place.hosts.up) == ([], [])


def test_one_that_was_being_made_and_is_preempted_now_is_made_elsewhere(place):
    """A killed command had asked for it."""
    place.world.endless = (place.kind.make, ZONE)
    making = place.backend.create(place.kind.spec(), ZONE, "", "")
    while (there := place.backend.get(NAME, ZONE)) is None or there.state is not State.CREATING or not hosts(place):
        making.done()
    taken: list[str] = []

    def strike(line):
        if line.startswith(f"{ZONE}: ") and not taken:
            taken.append(line)
            place.preempt()

    place.cloud = replace(place.cloud, tell=strike)
    assert (place.up().zone, len(taken)) == (NEXT, 1)
    assert place.world.alive() == [(NAME, NEXT)]
    place.down()
    assert place.world.left() == []


def test_one_whose_own_time_is_over_before_it_is_ready_is_told_so_and_no_other_zone_is_asked(place):
    place.patient(now=place.world.now)
    place.world.endless = (place.kind.make, ZONE)
    making = place.backend.create(place.kind.spec(hours=1.0), ZONE, "", "")
    while (there := place.backend.get(NAME, ZONE)) is None or there.state is not State.CREATING or not hosts(place):
        making.done()
    taken: list[str] = []

    def strike(line):
        if line.startswith(f"{ZONE}: ") and not taken:
            taken.append(line)
            place.world.skew += 3600 * 2.5
            place.preempt()

    place.cloud = replace(place.cloud, tell=strike)
    with pytest.raises(Invalid) as told:
        place.up(hours=1.0)
    assert told.value.problem == f"the time of {NAME} in {ZONE} was over before it was ready"
    assert (told.value.remedy, len(taken)) == ("a longer --max-hours", 1)
    assert (place.world.left(), place.record.zones) == ([], ())


def hosts(place) -> int:
    return len(place.world.table("tpu.nodes")) + len(place.world.table("gce.instances"))


@pytest.mark.parametrize("how", ["preempted", "vanished"])
def test_a_lost_machine_is_removed_and_made_anew_and_what_it_cost_is_kept(place, how):
    ahead = [0.0]
    place.patient(now=lambda: time.time() + ahead[0])
    place.up(rate=2.0)
    ahead[0] = 1800
    if how == "preempted":
        place.preempt()
    else:
        vanish(place)
    before = asked(place)
    machine = place.up(rate=3.0)
    assert (machine.state, asked(place)) == (State.READY, before + 1)
    assert len(place.hosts.up) == len(machine.workers)
    assert place.record.spent == pytest.approx(1.0, abs=0.01)
    ahead[0] += 3600
    place.down()
    assert place.record.spent == pytest.approx(4.0, abs=0.01)
    assert place.world.left() == []


def test_a_damaged_record_stops_it_before_anything_is_asked_for(place, tmp_path):
    place.up()
    place.down()
    [file] = tmp_path.rglob(f"{NAME}.json")
    file.write_text('{"project": "fake-project", ')
    changes = place.changes()
    for command in (place.up, place.down):
        with pytest.raises(UserError, match="this record of a TPU is damaged"):
            command()
    assert place.changes() == changes
    file.unlink()
    assert place.up().state is State.READY
