"""Buckets: made as they should be, found again, refused where they are another's, deleted only by their owner."""

import pytest
from tests.clouds import TAKEN

from taetpu.cloud import bucket
from taetpu.cloud.clients import Clients
from taetpu.cloud.errors import CloudError, Conflict, NotFound, Permission, Transient
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.world import Fault, Refused, World
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import label
from taetpu.core.errors import UserError

WANT = bucket.Wanted("mine", "us-east5", "me")


@pytest.fixture
def clients(world: World, bucket_server: Server) -> Clients:
    return Clients(world.project)


def test_made_as_it_is_told(clients: Clients, world: World):
    assert bucket.create(clients, WANT)
    made = world.table("storage.buckets")["mine"]
    assert (made["location"], made["labels"]) == ("US-EAST5", {"taetpu-owner": "me"})
    access = made["iamConfiguration"]
    assert access["uniformBucketLevelAccess"]["enabled"]
    assert access["publicAccessPrevention"] == "enforced"
    (rule,) = made["lifecycle"]["rule"]
    assert rule == {"action": {"type": "Delete"}, "condition": {"age": 7, "matchesPrefix": ["tmp/"]}}
    assert int(made["softDeletePolicy"]["retentionDurationSeconds"]) == 7 * 86400


def test_again_changes_nothing(clients: Clients, world: World):
    bucket.create(clients, WANT)
    changes = len(world.changes())
    assert not bucket.create(clients, WANT)
    assert len(world.changes()) == changes


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (bucket.Wanted("mine", "europe-west4", "me"), "region: 'us-east5', not 'europe-west4'"),
        (bucket.Wanted("mine", "us-east5", "me", 0), "days of soft delete: 7.0, not 0.0"),
        (bucket.Wanted("mine", "us-east5", "you"), "gs://mine is there, and is me's"),
    ],
)
def test_another_one_is_refused_with_what_differs(clients: Clients, world: World, other: bucket.Wanted, told: str):
    bucket.create(clients, WANT)
    before = dict(world.table("storage.buckets")["mine"])
    with pytest.raises(Conflict) as caught:
        bucket.create(clients, other)
    assert told in str(caught.value)
    assert world.table("storage.buckets")["mine"] == before


def test_one_that_was_opened_since_is_refused(clients: Clients):
    bucket.create(clients, WANT)
    opened = clients.storage.get_bucket("mine")
    opened.iam_configuration.public_access_prevention = "inherited"
    opened.add_lifecycle_delete_rule(age=1)
    opened.patch()
    with pytest.raises(Conflict, match="public access prevention: 'inherited', not 'enforced'; lifecycle: "):
        bucket.create(clients, WANT)


def test_one_that_taetpu_did_not_make_is_left_alone(clients: Clients, world: World):
    clients.storage.bucket("mine").create(location="us-east5")
    world.calls.clear()
    with pytest.raises(Conflict, match="not one that taetpu made") as caught:
        bucket.create(clients, WANT)
    assert "--root gs://mine/studies" in str(caught.value)
    with pytest.raises(Conflict, match="is not deleted: taetpu did not make it"):
        bucket.check_ours(bucket.status(clients, "mine"), "me")
    assert world.changes() == []


def test_somebody_else_s_name(clients: Clients, world: World):
    with pytest.raises(Permission, match=f"gs://{TAKEN} is there, and you may not look at it") as caught:
        bucket.create(clients, bucket.Wanted(TAKEN, "us-east5", "me"))
    assert f"{world.project}-{TAKEN}" in str(caught.value)
    assert world.changes() == []


def test_a_name_that_is_taken_while_it_is_asked_for(clients: Clients, world: World):
    taken = Refused(6, "The requested bucket name is not available. Please select a different name.", "conflict")
    world.faults.append(Fault("buckets.insert", taken))
    with pytest.raises(Conflict, match="the name gs://mine is taken: The requested bucket name") as caught:
        bucket.create(clients, WANT)
    assert f"{world.project}-mine" in str(caught.value)
    assert world.left() == []


def test_made_though_the_answer_was_lost(clients: Clients, world: World):
    world.faults.append(Fault("buckets.insert", None, moment="after"))
    assert bucket.create(clients, WANT)
    assert world.left() == ["storage.buckets: mine"]


def test_one_may_not_make_any(clients: Clients, world: World):
    refused = Refused(7, "me does not have storage.buckets.create access to the Google Cloud project.", "forbidden")
    world.faults.append(Fault("buckets.insert", refused))
    with pytest.raises(Permission, match="cannot make gs://mine: me does not have") as caught:
        bucket.create(clients, WANT)
    assert "roles/storage.admin" in str(caught.value)


@pytest.mark.parametrize("error", [Refused(14, "try later"), Refused(8, "rate limit"), None])
def test_what_passes_is_waited_for_and_what_does_not_is_told(clients: Clients, world: World, error: Refused | None):
    world.faults.append(Fault("buckets.get", error, times=2))
    assert bucket.create(clients, WANT)
    world.faults.append(Fault("*", error, times=10**6))
    with pytest.raises(Transient, match="cannot look at gs://mine: Cloud Storage does not answer") as caught:
        bucket.create(clients, WANT)
    assert caught.value.exit_code == 3


def test_nobody_is_signed_in_any_more(clients: Clients, world: World):
    world.faults.append(Fault("*", Refused(16, "Invalid Credentials"), times=9))
    with pytest.raises(Permission, match="Google does not accept who is signed in") as caught:
        bucket.create(clients, WANT)
    assert caught.value.remedy == "gcloud auth application-default login"


def test_status_counts_and_names_who_is_at_work(clients: Clients, world: World):
    bucket.create(clients, WANT)
    for number in range(25):
        clients.storage.bucket("mine").blob(f"runs/s/{number}").upload_from_string(b"x" * number)
    clients.storage.bucket("mine").blob("runs/s/lock").upload_from_string(b"")
    found = bucket.status(clients, "mine")
    assert (found.objects, found.bytes, found.held) == (26, 300, ("gs://mine/runs/s/lock",))
    assert (found.location, found.public, found.uniform, found.soft_delete_days) == ("us-east5", False, True, 7)
    world.skew = 61
    clients.storage.bucket("mine").blob("runs/s/lock").upload_from_string(b"")
    assert bucket.status(clients, "mine").held, "a claim of now, whose clock is ahead"
    world.skew = -61
    clients.storage.bucket("mine").blob("runs/s/lock").upload_from_string(b"")
    assert bucket.status(clients, "mine").held == (), "nobody has renewed it"
    with pytest.raises(NotFound, match="there is no bucket gs://none-such") as caught:
        bucket.status(clients, "none-such")
    assert "taetpu bucket create none-such" in str(caught.value)


@pytest.mark.parametrize("fault", ["objects.delete", "buckets.delete"])
def test_a_deletion_that_was_cut_off_goes_on(clients: Clients, world: World, fault: str):
    bucket.create(clients, WANT)
    for number in range(20):
        clients.storage.bucket("mine").blob(f"{number}").upload_from_string(b"x")
    world.faults.append(Fault(fault, Refused(7, "not now"), skip=0 if fault == "buckets.delete" else 7))
    with pytest.raises(Permission, match="cannot delete gs://mine: not now"):
        bucket.delete(clients, "mine")
    assert "storage.buckets: mine" in world.left()
    bucket.delete(clients, "mine")
    assert world.left() == []
    bucket.delete(clients, "mine")


def test_a_deletion_whose_answer_was_lost(clients: Clients, world: World):
    bucket.create(clients, WANT)
    world.faults.append(Fault("buckets.delete", None, moment="after"))
    bucket.delete(clients, "mine")
    assert world.left() == []


def test_something_is_still_written_into_it(clients: Clients, world: World):
    bucket.create(clients, WANT)
    world.faults.append(Fault("buckets.delete", Refused(6, "The bucket you tried to delete is not empty.", "conflict")))
    with pytest.raises(Conflict, match="is not deleted yet: The bucket you tried to delete is not empty") as caught:
        bucket.delete(clients, "mine")
    assert "stop what still writes into it" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "asked", "told"),
    [
        (Settings(), {"name": "mine"}, "where the bucket should be is not said"),
        (Settings(region="us-east5"), {}, "which bucket is not said"),
        (Settings(region="us-east5"), {"name": "Mine"}, "'Mine' cannot be the name of a bucket"),
        (Settings(region="us-east5"), {"name": "goog-mine"}, "cannot be the name"),
        (Settings(region="us-east5"), {"name": "10.0.0.1"}, "cannot be the name"),
        (Settings(region="us-east5"), {"name": "mine", "soft_delete_days": 3}, "cannot be kept for 3 days"),
        (Settings(), {"name": "mine", "region": "mars"}, "'mars' is no region"),
        (Settings(), {"name": "mine", "region": "us-east5-b"}, "'us-east5-b' is no region"),
    ],
)
def test_what_cannot_be_asked_for(settings: Settings, asked: dict, told: str):
    with pytest.raises(UserError, match=told):
        bucket.wanted(settings, **asked)


def test_the_settings_say_what_is_left_out():
    settings = Settings(bucket="mine", zones=("us-east5-b", "us-east5-a"), owner="Jo Doe")
    assert bucket.wanted(settings) == bucket.Wanted("mine", "us-east5", label("Jo Doe"))
    assert bucket.wanted(settings, "gs://theirs/runs").name == "theirs"
    assert bucket.wanted(settings, "other", "EUROPE-WEST4").region == "europe-west4"


def test_apart_from_the_machines_is_told():
    assert bucket.apart("us-east5", ("us-east5-a", "us-east5-b")) == ""
    assert bucket.apart("us-east5", ()) == ""
    told = bucket.apart("europe-west4", ("us-east5-a", "us-central1-b"))
    assert "your zones are in us-central1, us-east5" in told
    assert "egress" in told


def test_every_failure_is_one_that_a_command_tells(clients: Clients, world: World):
    for code in (3, 7, 9, 10, 13):
        world.faults[:] = [Fault("*", Refused(code, "so it is"), times=10**6)]
        with pytest.raises(CloudError, match="so it is"):
            bucket.create(clients, WANT)
