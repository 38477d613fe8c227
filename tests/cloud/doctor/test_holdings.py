"""What is there: quota where the settings look, the bucket beside the machines, machines that still run."""

import time

from taetpu.cloud.backends.base import Machine, State
from taetpu.cloud.doctor import holdings
from taetpu.cloud.fakes.quotas import info, usual
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import EXPIRES, OWNER

MINE = Settings(project="fake-project", owner="me", zones=("us-east5-b",), bucket="mine")


def test_quota_is_told_where_the_settings_look_and_none_is_a_warning(looked):
    check = holdings.quota(looked.clients, MINE)
    assert (check.status, check.found) == ("warning", "none of a TPU is set in us-east5-b")
    assert "iam-admin/quotas?project=fake-project" in check.remedy
    looked.infos += usual()
    check = holdings.quota(looked.clients, MINE)
    assert check.found.removeprefix("of ").split("; ") == [
        "v6e on-demand (gce) in us-east5",
        "v6e spot (gce) in us-east5, wherever else",
        "v6e spot (tpu-api) in us-east5-b",
    ]
    looked.infos[:] = [info("TPUV6EPerProjectPerZoneForTPUAPI", {"us-east5-b": 0, "us-east5-a": None})]
    assert holdings.quota(looked.clients, MINE).status == "warning"


def test_the_bucket_is_there_and_beside_the_machines(looked):
    looked.buckets["mine"] = "US-EAST5"
    assert holdings.bucket(looked.clients, MINE).found == "mine is in us-east5"
    looked.buckets["mine"] = "EUROPE-WEST4"
    check = holdings.bucket(looked.clients, MINE)
    assert (check.status, check.found) == ("warning", "mine is in europe-west4, the zones are in us-east5")


def test_a_bucket_that_is_not_there_or_not_yours_fails(looked):
    check = holdings.bucket(looked.clients, MINE)
    assert (check.status, check.command) == ("fails", "taetpu bucket create mine --region us-east5")
    looked.buckets["mine"] = ""
    check = holdings.bucket(looked.clients, MINE)
    assert check.status == "fails"
    assert check.found.startswith("you may not look at 'mine'")
    check = holdings.bucket(looked.clients, Settings())
    assert check.status == "skipped"
    assert check.command == "taetpu bucket create fake-project-studies --region REGION --write"
    assert looked.world.changes() == []


def machine(name, owner, expires=None):
    labels = {OWNER: owner} | ({EXPIRES: str(int(expires))} if expires else {})
    return Machine(name, "us-east5-b", "gce", "v6e-8", State.READY, "RUNNING", labels)


def test_machines_of_yours_are_told_and_others_only_counted():
    assert holdings.machines([], MINE).found == "none of yours is there"
    check = holdings.machines([machine("theirs", "you"), machine("stray", "")], MINE)
    assert (check.status, check.found) == ("ok", "none of yours is there; 2 of others")
    check = holdings.machines([machine("a", "me", time.time() + 99), machine("theirs", "you")], MINE)
    assert (check.status, check.command) == ("warning", "taetpu tpu down NAME")
    assert check.found == "a (v6e-8, RUNNING) in us-east5-b: running; 1 of others"
    check = holdings.machines([machine("a", "me", time.time() - 9)], MINE)
    assert (check.command, check.found) == ("taetpu tpu gc", "a (v6e-8, RUNNING) in us-east5-b: some should be gone")
