"""The backend of the Cloud TPU API, by Google's own client over gRPC and over REST: what it makes is found again and
leaves nothing, and whatever goes wrong is told for what it is."""

import pytest
from google.cloud import tpu_v2
from tests.cloud.tpu_faces import FACES, KEY, ZONE, cloud, finished, spec

from taetpu.cloud.backends.base import State, Worker
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
from taetpu.cloud.fakes.world import Fault, Refused, quota, stockout
from taetpu.core.chips import resolve

REQUEST = "tpu.queuedResources: projects/fake-project/locations/us-east5-b/queuedResources/lab"
PLACE = f"projects/fake-project/locations/{ZONE}"
BUSY = Refused(8, "Quota exceeded for quota metric 'List' and limit 'List requests per minute'", "RATE_LIMIT_EXCEEDED")
DOWN = Refused(14, "The service is currently unavailable.")


@pytest.fixture(params=FACES)
def place(request):
    """A fake cloud behind each face."""
    with cloud(request.param) as made:
        yield made


def create(place, zone=ZONE, **more):
    return place.api.create(spec(**more), zone, "#!/bin/sh\n", KEY)


def ready(place, **more):
    finished(create(place, **more))
    return place.until(State.READY)


def test_a_machine_is_made_found_and_removed_with_nothing_left(place):
    operation = create(place)
    seen = [place.machine().detail for _ in range(3)]
    assert seen == ["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"]
    assert place.machine().state is State.CREATING
    machine = place.until(State.READY)
    finished(operation)
    assert (machine.name, machine.zone, machine.backend, machine.type) == ("lab", ZONE, "tpu-api", "v6e-8")
    assert (machine.owner, machine.stack, machine.spot) == ("ada", "lab", True)
    assert (len(machine.spec), machine.created[:2]) == (16, "20")
    assert machine.expires == pytest.approx(place.world.now() + 4 * 3600, abs=60)
    assert list(place.api.list()) == [machine]
    (metadata,) = place.hosts.up.values()
    assert (metadata["startup-script"], metadata["ssh-keys"]) == ("#!/bin/sh\n", f"taetpu:{KEY}")
    assert metadata["enable-oslogin"] == "FALSE"
    finished(place.api.delete("lab", ZONE))
    assert (place.world.left(), place.hosts.up) == ([], {})
    assert place.changes() == ["CreateQueuedResource", "DeleteQueuedResource"]
    finished(place.api.delete("lab", ZONE))
    assert len(place.world.changes()) == 2, "nothing there is nothing to delete"


def test_questions_change_nothing(place):
    ready(place)
    before = place.changes()
    place.api.zones(resolve("v6e-8"))
    place.machine()
    assert len(place.api.list()) == 1
    assert place.changes() == before


def test_workers_keep_their_order_and_are_named_for_tunnels(place):
    machine = ready(place, kind="v6e-16")
    by_worker = {int(host["worker"]): instance for instance, host in place.hosts.up.items()}
    assert machine.workers == tuple(Worker("127.0.0.1", 2200 + i, by_worker[i], "127.0.0.1") for i in range(4))


def test_workers_with_addresses_of_their_own_need_no_tunnel(place):
    machine = ready(place, kind="v6e-16", external_ip=True)
    assert [(w.address, w.instance) for w in machine.workers] == [("127.0.0.1", "")] * 4
    assert "GetGuestAttributes" not in [call.name for call in place.world.calls]


def test_guest_attributes_that_are_forbidden_cost_only_the_names(place):
    place.world.faults.append(Fault("GetGuestAttributes", Refused(7, "Permission denied."), times=99))
    assert [w.instance for w in ready(place).workers] == [""]


@pytest.mark.parametrize(
    ("provisioning", "reservation", "field"),
    [
        ("on-demand", "", None),
        ("spot", "", ("spot", {})),
        ("reservation", "ours", ("reservationName", f"{PLACE}/reservations/ours")),
        ("reservation", "projects/other/locations/z/reservations/-", ("reservationName", "projects/other/locations/z/"
         "reservations/-")),
    ],
)  # fmt: skip
def test_every_way_of_paying_is_asked_for_in_its_own_field(place, provisioning, reservation, field):
    create(place, provisioning=provisioning, reservation=reservation, hours=2)
    (asked,) = place.tpu.queue.all.values()
    assert {"spot", "guaranteed", "reservationName"} & asked.data.keys() == ({field[0]} if field else set())
    assert field is None or asked.data[field[0]] == field[1]
    assert asked.data["queueingPolicy"] == {"validUntilDuration": "7200s"}, "nothing comes when it should be gone"


def test_the_time_of_a_machine_begins_when_it_is_made_not_when_it_is_asked_for(place):
    place.world.polls = 10
    operation = create(place, hours=3)
    assert place.machine().state is State.WAITING
    assert place.machine().left(place.world.now()) == 3 * 3600
    place.world.skew += 2 * 3600
    finished(operation)
    machine = place.until(State.READY)
    assert machine.left(place.world.now()) == pytest.approx(3 * 3600, abs=60)
    assert machine.expires == pytest.approx(place.world.now() + 3 * 3600, abs=60)


def test_flex_start_is_ended_by_the_server_at_its_time(place):
    ready(place, provisioning="flex-start", hours=3)
    (asked,) = place.tpu.queue.all.values()
    assert (asked.data["provisioningModel"], asked.data["runDuration"]) == ("FLEX_START", {"maxRunDuration": "10800s"})
    place.world.skew += 10790
    assert place.machine().state is State.READY
    place.world.skew += 20
    assert place.machine().state is State.LOST
    assert place.hosts.up == {}, "it costs nothing any more"
    finished(place.api.delete("lab", ZONE))
    assert place.world.left() == []


def test_flex_start_that_is_refused_is_told_like_any_other(place):
    place.world.faults.append(Fault("CreateQueuedResource", quota("TPUV6EPerProjectPerRegionForTPUAPI", "us-east5")))
    with pytest.raises(Quota, match="TPUV6EPerProjectPerRegionForTPUAPI is used up"):
        create(place, provisioning="flex-start")


def test_a_name_that_is_taken_is_a_conflict_and_changes_nothing(place):
    machine = ready(place)
    with pytest.raises(Conflict, match=r"creating lab \(v6e-8\) in us-east5-b: .*already exists"):
        create(place)
    assert place.machine() == machine


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (stockout(ZONE), Stockout, "us-east5-b has none left"),
        (quota("TPUV6EPerProjectPerZoneForTPUAPI", ZONE), Quota, "quota TPUV6EPerProjectPerZoneForTPUAPI is used up"),
        (BUSY, Transient, "too many requests"),
        (DOWN, Transient, "currently unavailable"),
        (Refused(7, "no", "IAM_PERMISSION_DENIED", {"permission": "tpu.nodes.create"}), Permission, "tpu.nodes.create"),
        (Refused(7, "no", "SERVICE_DISABLED", {"service": "tpu.googleapis.com"}), Permission, "is not enabled"),
        (Refused(16, "Request had invalid authentication credentials."), Permission, "sign-in to Google Cloud"),
    ],
)
def test_a_request_that_is_refused_is_made_once_and_leaves_nothing(place, error, kind, words):
    place.world.faults.append(Fault("CreateQueuedResource", error, times=9))
    with pytest.raises(kind, match=words):
        create(place)
    assert place.changes() == ["CreateQueuedResource"]
    assert place.world.left() == []


@pytest.mark.parametrize(
    ("zone", "asked", "kind", "remedy"),
    [
        ("us-central2-b", {}, NotOffered, "it is listed in asia-northeast1-b, europe-west4-a"),
        ("europe-west4-a", {}, NotOffered, "some are only open to projects that Google has let in"),
        ("us-est5-b", {}, Invalid, "did you mean 'us-east5-b'?"),
        (ZONE, {"runtime": "v2-alpha-tpu6e"}, Invalid, "did you mean 'v2-alpha-tpuv6e'?"),
    ],
)
def test_what_a_zone_does_not_have_names_the_nearest_that_does(place, zone, asked, kind, remedy):
    with pytest.raises(kind) as told:
        create(place, zone, **asked)
    assert type(told.value) is kind
    assert remedy in told.value.remedy
    assert place.world.left() == []


@pytest.mark.parametrize("call", ["CreateQueuedResource", "Provision"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (stockout(ZONE), Stockout),
        (quota("Q-PerRegion", "us-east5"), Quota),
        (Refused(13, "Internal error encountered."), Stockout),
        (DOWN, Stockout),
    ],
)
def test_a_refusal_that_comes_later_is_told_by_the_operation(place, call, error, kind):
    place.world.faults.append(Fault(call, error, moment="inside"))
    operation = create(place)
    with pytest.raises(kind):
        [(operation.done(), place.machine()) for _ in range(9)]
    lost = place.until(State.LOST)
    assert lost.detail.startswith("FAILED: "), "and by the machine, which says why"
    assert place.world.left() == [REQUEST], "a failed request keeps its name"
    with pytest.raises(Conflict):
        create(place)
    finished(place.api.delete("lab", ZONE))
    assert place.world.left() == []


def test_an_operation_that_fails_and_leaves_no_request_is_told_too(place):
    place.world.faults.append(Fault("CreateQueuedResource", Refused(13, "Internal error."), moment="inside"))
    operation = create(place)
    place.tpu.queue.all.clear()
    assert not operation.done()
    with pytest.raises(Stockout, match=r"creating lab \(v6e-8\) in us-east5-b: .*Internal error"):
        [operation.done() for _ in range(3)]


def test_a_request_that_is_not_granted_in_time_fails_in_the_queue(place):
    place.tpu.queue.starved.add(ZONE)
    operation = create(place, hours=1)
    finished(operation)
    assert {place.machine().state for _ in range(5)} == {State.WAITING}
    place.world.skew += 3601
    with pytest.raises(Stockout, match="valid-until"):
        operation.done()
    assert place.machine().state is State.LOST
    finished(place.api.delete("lab", ZONE))
    finished(create(place))
    assert place.world.left() == [REQUEST], "the name was free again"


@pytest.mark.parametrize("begun", [State.CREATING, State.READY])
def test_a_preempted_machine_is_lost_and_its_name_is_free_once_it_is_deleted(place, begun):
    create(place)
    place.until(begun)
    place.tpu.preempt("lab")
    details = [place.machine().detail for _ in range(2)]
    assert details == ["SUSPENDED by SERVICE"] * 2
    asked = len([call for call in place.world.calls if call.name == "GetGuestAttributes"])
    assert {m.state for m in place.api.list()} == {State.LOST}
    assert place.hosts.up == {}
    assert asked == (1 if begun is State.READY else 0), "who is gone is not asked for names"
    finished(place.api.delete("lab", ZONE))
    assert place.world.left() == []
    assert ready(place).state is State.READY


def test_a_node_that_vanished_is_lost_though_its_request_does_not_know(place):
    ready(place)
    place.tpu.vanish("lab")
    machine = place.machine()
    assert (machine.state, machine.detail) == (State.LOST, "ACTIVE, but its node is gone")
    assert machine.owner == "ada", "the request tells the labels"
    finished(place.api.delete("lab", ZONE))
    assert place.world.left() == []


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("provisioning", ["spot", "flex-start"])
def test_a_lost_answer_says_nothing_of_whether_it_was_done(place, moment, provisioning):
    place.world.faults.append(Fault("CreateQueuedResource", None, moment=moment))
    with pytest.raises(Unknown, match="it may have been done or not"):
        create(place, provisioning=provisioning)
    assert place.changes() == ["CreateQueuedResource"], "it is not asked for twice"
    assert (place.api.get("lab", ZONE) is not None) == (moment == "after")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_deletion_whose_answer_is_lost_is_finished_by_the_next(place, moment):
    ready(place)
    place.world.faults.append(Fault("DeleteQueuedResource", None, moment=moment))
    with pytest.raises(Unknown):
        place.api.delete("lab", ZONE)
    finished(place.api.delete("lab", ZONE))
    assert place.world.left() == []


def test_a_deletion_that_fails_on_its_way_is_asked_for_again(place):
    ready(place)
    place.world.faults.append(Fault("DeleteQueuedResource", Refused(13, "Internal error."), moment="inside"))
    operation = place.api.delete("lab", ZONE)
    with pytest.raises(Unknown, match="Internal error"):
        [operation.done() for _ in range(5)]
    finished(operation)
    assert place.world.left() == []
    assert place.changes().count("DeleteQueuedResource") == 2


def test_a_machine_is_deleted_in_whatever_state(place):
    for begun in (State.WAITING, State.CREATING):
        create(place)
        place.until(begun)
        finished(place.api.delete("lab", ZONE))
        assert place.world.left() == []
    ready(place)
    place.world.polls = 5
    place.api.delete("lab", ZONE)
    operation = place.api.delete("lab", ZONE)  # while the first is at it
    assert place.machine().state is State.DELETING
    finished(operation)
    assert (place.world.left(), place.hosts.up) == ([], {})
    assert place.changes().count("DeleteQueuedResource") == 3, "one for each machine"


@pytest.mark.parametrize("trouble", [BUSY, DOWN, None])
def test_questions_are_asked_again_where_no_answer_came(place, trouble):
    machine = ready(place)
    place.world.faults += [Fault(call, trouble, times=2) for call in ("GetNode", "GetQueuedResource", "ListNodes")]
    assert place.machine() == machine
    assert list(place.api.list()) == [machine]


def test_questions_that_nobody_answers_end(place):
    place.world.faults.append(Fault("GetQueuedResource", DOWN, times=10_000))
    with pytest.raises(Transient, match=r"looking for lab in us-east5-b: .*currently unavailable"):
        place.api.get("lab", ZONE)


def neighbour(place, name="theirs"):
    """A machine that somebody made with another tool."""
    node = tpu_v2.Node(accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e")
    made = place.clients.tpu.create_node(parent=PLACE, node_id=name, node=node)
    while not place.api.ended(made.operation.name, ZONE, ""):
        pass
    wanted = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PLACE, node_id="waits", node=node)
    request = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[wanted]))
    place.clients.tpu.create_queued_resource(parent=PLACE, queued_resource_id="waits", queued_resource=request)


def test_neighbours_are_listed_without_an_owner_and_never_deleted(place):
    neighbour(place)
    ready(place)
    owners = {machine.name: machine.owner for machine in place.api.list()}
    assert owners == {"lab": "ada", "theirs": "", "waits": ""}
    before = place.world.left()
    for name in ("theirs", "waits"):
        with pytest.raises(Conflict, match="was not made by taetpu: it has no label taetpu-owner"):
            place.api.delete(name, ZONE)
    assert place.world.left() == before
    finished(place.api.delete("lab", ZONE))
    assert [m.name for m in place.api.list()] == ["theirs", "waits"]


def test_a_node_of_ours_without_a_request_is_deleted_by_itself(place):
    node = tpu_v2.Node(accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e", labels=spec().labels())
    place.clients.tpu.create_node(parent=PLACE, node_id="lab", node=node)
    finished(place.api.delete("lab", ZONE))
    assert place.world.left() == []
    assert place.changes() == ["CreateNode", "DeleteNode"]


@pytest.mark.parametrize("face", FACES)
def test_lists_are_read_to_their_last_page(face):
    with cloud(face, page=1) as place:
        for name in ("one", "two", "three"):
            create(place, name=name)
        assert [m.name for m in place.api.list()] == ["one", "three", "two"]
        assert place.api.zones(resolve("v5e-16")) == ["us-west4-a"], "the last zone, and the last type of it"


def test_zones_that_do_not_answer_are_left_out_and_named(place):
    ready(place)
    create(place, "us-west4-a", name="far")
    place.tpu.unreachable.add("us-west4-a")
    assert [m.name for m in place.api.list()] == ["lab"]
    assert place.api.unseen == ("us-west4-a",)
    assert place.api.zones(resolve("v6e-8")) == [ZONE]
    place.tpu.unreachable.clear()
    assert [m.name for m in place.api.list()] == ["lab", "far"]
    assert place.api.unseen == ()


def test_zones_that_are_closed_are_no_zones_but_all_of_them_are_an_error(place):
    denied = Refused(7, "Permission 'tpu.acceleratortypes.list' denied on 'projects/p'", "IAM_PERMISSION_DENIED")
    place.world.faults.append(Fault("ListAcceleratorTypes", denied, zone=ZONE, times=99))
    assert place.api.zones(resolve("v6e-8")) == ["us-west4-a"]
    place.world.faults.append(Fault("ListAcceleratorTypes", denied, times=99))
    with pytest.raises(Permission, match=r"tpu\.acceleratortypes\.list is missing"):
        place.api.zones(resolve("v6e-8"))
