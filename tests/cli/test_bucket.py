"""`taetpu bucket create | status | delete`."""

import subprocess

import pytest
from tests.cli.terminal import CTRL_C, on_terminal
from tests.fake_google.cloud import FakeGoogle

BUCKETS, OBJECTS = "storage.buckets", "storage.objects"


@pytest.fixture
def buckets(shared_google: FakeGoogle):
    before = dict(shared_google.world.table(BUCKETS))
    shared_google.world.calls.clear()
    yield shared_google.world.table(BUCKETS)
    for table, kept in ((BUCKETS, before), (OBJECTS, {})):
        shared_google.world.table(table).clear()
        shared_google.world.table(table).update(kept)


def test_creating_one_says_what_it_costs_and_needs_a_yes(taetpu, here, buckets, shared_google):
    code, out, err = taetpu("bucket", "create", "lab-studies", "--region", "us-east5")
    assert (code, out) == (2, "")
    for part in ("gs://lab-studies", "us-east5", "per GB and month", "1234567890-compute@", "--yes"):
        assert part in err
    assert max(map(len, err.splitlines())) <= 80
    assert shared_google.world.changes() == []


@pytest.mark.slow
def test_it_is_private_and_labelled_and_repeating_changes_nothing(taetpu, here, buckets):
    for _ in range(2):
        created = taetpu("bucket", "create", "lab-studies", "--region", "us-east5", "--yes")
        assert created.code == 0
        assert 'bucket = "lab-studies"' in created.err, "it is not the default one"
        made = buckets["lab-studies"]
        assert made["location"] == "US-EAST5"
        assert made["labels"] == {"taetpu-owner": "me"}
        assert made["iamConfiguration"]["publicAccessPrevention"] == "enforced"
        assert made["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"] is True
    told = taetpu("bucket", "status", "lab-studies", "--json").json()
    assert told == {"bucket": "lab-studies", "region": "us-east5", "bytes": 0, "usd_per_month": 0.0}


@pytest.mark.slow
def test_pasted_lines_of_a_dry_run_create_and_delete_it(taetpu, here, buckets):
    for verb, there in (("create", True), ("delete", False)):
        lines = taetpu("bucket", verb, "lab-studies", "--dry-run").out
        assert ("lab-studies" in buckets) is not there
        subprocess.run(["bash", "-e"], input=lines, text=True, check=True, capture_output=True)
        assert ("lab-studies" in buckets) is there


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "code"), [("yes\n", 1), (CTRL_C, 130), ("lab-studies\n", 0)])
def test_deleting_one_needs_its_name(taetpu, here, buckets, answer, code):
    assert taetpu("bucket", "create", "lab-studies", "--region", "us-east5", "--yes").code == 0
    ended, shown = on_terminal(here, ["bucket", "delete", "lab-studies"], answer, prompt="confirm")
    assert ended == code, shown
    assert ("lab-studies" in buckets) is (code != 0)


@pytest.mark.slow
def test_one_of_somebody_else_is_kept(taetpu, buckets):
    code, _, err = taetpu("bucket", "delete", "studies", "--yes")
    assert code == 2
    assert "gcloud storage rm gs://studies --recursive" in err
    assert "studies" in buckets
    assert taetpu("bucket", "status", "absent").code == 2
