"""`taetpu doctor`, `bucket` and `image`: checks, plans, gcloud lines and confirmations."""

import json
import re
import subprocess

import pytest
from tests.cli.terminal import CTRL_C, on_terminal
from tests.fake_google.cloud import FakeGoogle

KEY = json.dumps({"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nabc\n"})


def checks(done) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in json.loads(done.out)}


@pytest.mark.slow
def test_doctor_passes_on_a_complete_setup(taetpu, shared_google: FakeGoogle):
    done = taetpu("doctor", "--json")
    found = checks(done)
    assert done.code == 0, found
    assert {name for name, one in found.items() if one["status"] != "ok"} == {"bucket"}
    shown = taetpu("doctor").out
    assert max(len(line) for line in shown.splitlines() if not line.startswith(" ")) <= 80


@pytest.mark.parametrize("name", ["key.json", "src/deep/other.txt"])
def test_doctor_fails_on_a_service_account_key_among_the_files(taetpu, here, monkeypatch, name):
    monkeypatch.delenv("TAETPU_PROJECT", raising=False)
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    (here / name).write_text(KEY)
    done = taetpu("doctor", "--json")
    assert done.code == 3
    keys = checks(done)["keys"]
    assert keys["status"] == "fails"
    assert name in keys["found"]
    assert "gitleaks" in keys["remedy"]
    assert "abc" not in done.out + done.err, "the key itself is not shown"


def test_doctor_fails_if_the_environment_names_a_key(taetpu, tmp_path_factory, monkeypatch):
    file = tmp_path_factory.mktemp("elsewhere") / "key.json"
    file.write_text(KEY)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    assert checks(taetpu("doctor", "--json"))["keys"]["status"] == "fails"


@pytest.mark.slow
def test_doctor_prints_a_remedy_for_each_missing_part(taetpu, google: FakeGoogle, monkeypatch):
    google.compute.rules.clear()
    google.project.services.remove("iap.googleapis.com")
    google.project.bindings.clear()
    monkeypatch.setenv("CLOUDSDK_CORE_ACCOUNT", "")
    monkeypatch.setenv("TAETPU_BUCKET", "absent")
    done = taetpu("doctor", "--json")
    assert done.code == 3
    found = checks(done)
    for name, line in {
        "account": "gcloud auth login",
        "apis": "gcloud services enable iap.googleapis.com",
        "network": "gcloud compute firewall-rules create taetpu-iap",
        "service account": "gcloud projects add-iam-policy-binding fake-project",
        "bucket": "taetpu bucket create absent",
    }.items():
        assert found[name]["status"] == ("warning" if name == "bucket" else "fails"), found[name]
        assert line in found[name]["remedy"]
    google.compute.rules.append({
        "name": "open", "network": "projects/p/global/networks/default", "direction": "INGRESS",
        "sourceRanges": ["0.0.0.0/0"], "allowed": [{"IPProtocol": "tcp", "ports": ["20-30"]}],
    })  # fmt: skip
    assert checks(taetpu("doctor", "--json"))["network"]["status"] == "warning"


BUCKETS, OBJECTS = "storage.buckets", "storage.objects"


@pytest.fixture
def buckets(shared_google: FakeGoogle):
    before = dict(shared_google.world.table(BUCKETS))
    shared_google.world.calls.clear()
    yield shared_google.world.table(BUCKETS)
    for table, kept in ((BUCKETS, before), (OBJECTS, {})):
        shared_google.world.table(table).clear()
        shared_google.world.table(table).update(kept)


@pytest.mark.slow
def test_bucket_create_prints_its_cost_and_requires_confirmation(taetpu, here, buckets, shared_google):
    code, out, err = taetpu("bucket", "create", "lab-studies", "--region", "us-east5")
    assert (code, out) == (2, "")
    for part in ("gs://lab-studies", "us-east5", "per GB and month", "1234567890-compute@", "--yes"):
        assert part in err
    assert max(map(len, err.splitlines())) <= 80
    assert shared_google.world.changes() == []


@pytest.mark.slow
def test_created_bucket_is_private_and_labelled(taetpu, here, buckets):
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
def test_bucket_delete_requires_typing_the_name(taetpu, here, buckets, answer, code):
    assert taetpu("bucket", "create", "lab-studies", "--region", "us-east5", "--yes").code == 0
    ended, shown = on_terminal(here, ["bucket", "delete", "lab-studies"], answer, prompt="confirm")
    assert ended == code, shown
    assert ("lab-studies" in buckets) is (code != 0)


@pytest.mark.slow
def test_bucket_of_another_owner_is_kept(taetpu, buckets):
    code, _, err = taetpu("bucket", "delete", "studies", "--yes")
    assert code == 2
    assert "storage rm gs://studies --recursive" in err
    assert "studies" in buckets
    assert taetpu("bucket", "status", "absent").code == 2


ADDRESS = "us-central1-docker.pkg.dev/fake-project/taetpu"


IMAGES = "artifacts.images"


@pytest.fixture
def cloud(shared_google: FakeGoogle):
    shared_google.world.calls.clear()
    yield shared_google
    for table in (IMAGES, "artifacts.repositories"):
        shared_google.world.table(table).clear()


@pytest.mark.slow
def test_image_build_prints_its_cost_and_gcloud_lines(taetpu, here, cloud):
    wrong = taetpu("image", "build")
    assert wrong.code == 2
    assert "Dockerfile" in wrong.err
    (here / "Dockerfile").write_text("FROM scratch\n")
    code, _, err = taetpu("image", "build")
    assert code == 2
    for part in (ADDRESS, "$0.36", "60 min", "--yes"):
        assert part in err
    lines = taetpu("image", "build", "--dry-run").out.splitlines()
    assert [line.split()[1] for line in lines] == ["CLOUDSDK_CORE_PROJECT=fake-project", "artifacts", "builds"]
    assert cloud.world.changes() == []


@pytest.mark.slow
def test_image_is_built_once_per_content(taetpu, here, cloud):
    (here / "Dockerfile").write_text("FROM scratch\n")
    build = taetpu("image", "build", "--dry-run").out.splitlines()[-1]
    found = re.search(r"--tag=\S+/taetpu/(\S+):(\S+)", build)
    assert found
    cloud.artifacts.push("us-central1", *found.groups())
    again = taetpu("image", "build")
    assert (again.code, again.out.strip()) == (0, f"{ADDRESS}/{found[1]}:{found[2]}")
    (here / "more.txt").write_text("new")
    assert "builds submit" in taetpu("image", "build", "--dry-run").out


@pytest.mark.slow
def test_images_are_listed_and_deleted(taetpu, here, cloud):
    assert taetpu("image", "list").out == "no images\n"
    cloud.artifacts.push("us-central1", "lab", "abc")
    assert re.search(r"lab +abc", taetpu("image", "list").out)
    address = f"{ADDRESS}/lab:abc"
    assert on_terminal(here, ["image", "delete", address], "n\n")[0] == 1
    assert cloud.world.table(IMAGES)
    lines = taetpu("image", "delete", address, "--dry-run").out
    subprocess.run(["bash", "-e"], input=lines, text=True, check=True, capture_output=True)
    assert not cloud.world.table(IMAGES)
