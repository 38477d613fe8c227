"""`taetpu doctor`: each check against the fake project, its result and the command that fixes it."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cloud.commands import UP, taetpu
from tests.fake_google.cloud import FakeGoogle
from tests.fake_google.project import ACCOUNT

from taetpu.cli.cloud_common import open_zones
from taetpu.cloud import doctor
from taetpu.cloud.doctor import Check
from taetpu.cloud.gcloud import use_project
from taetpu.cloud.settings import Settings

pytestmark = pytest.mark.slow

KEY = {"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"}


def rule(**changed) -> dict:
    made = {"name": "r", "network": "https://x/global/networks/default", "direction": "INGRESS"}
    made |= {"allowed": [{"IPProtocol": "tcp", "ports": ["20-30"]}], "sourceRanges": ["35.235.240.0/20"]}
    return made | {"id": "1", "selfLink": "https://x/r"} | changed


FIREWALLS = {
    "from IAP": ([rule()], "ok", ""),
    "from IAP to taetpu's tag": ([rule(targetTags=["taetpu"])], "ok", ""),
    "none": ([], "fails", "--source-ranges=35.235.240.0/20"),
    "of another network": ([rule(network="https://x/global/networks/other")], "fails", "--network=default"),
    "of other machines": ([rule(targetTags=["web"])], "fails", "--target-tags=taetpu"),
    "disabled": ([rule(disabled=True)], "fails", "--allow=tcp:22"),
    "of other ports": ([rule(allowed=[{"IPProtocol": "tcp", "ports": ["80", "443"]}])], "fails", "create"),
    "open to the world": ([rule(name="open", sourceRanges=["0.0.0.0/0"]), rule()], "warning", "delete open"),
}


def run_check(check: Callable[[Settings], Check], settings: Settings) -> Check:
    use_project(settings.project)
    return doctor.run_check("name", check, settings)


@pytest.mark.parametrize("name", FIREWALLS)
def test_firewall(google: FakeGoogle, settings: Settings, name: str) -> None:
    rules, status, remedy = FIREWALLS[name]
    google.compute.rules = rules
    found = run_check(doctor.check_firewall, settings)
    assert found.status == status
    assert remedy in found.remedy


@pytest.mark.parametrize(("role", "status"), [
    ("roles/editor", "ok"), ("roles/tpu.admin", "ok"), ("roles/viewer", "fails"), ("", "fails"),
])  # fmt: skip
def test_service_account(google: FakeGoogle, settings: Settings, role: str, status: str) -> None:
    google.project.bindings = {role: [f"serviceAccount:{ACCOUNT}"]} if role else {}
    found = run_check(doctor.check_service_account, settings)
    assert found.status == status
    assert ACCOUNT in found.found
    assert status == "ok" or "--role=roles/tpu.admin" in found.remedy


def test_a_conditional_role_does_not_count(google: FakeGoogle, settings: Settings) -> None:
    google.project.condition = {"title": "until May", "expression": "request.time < timestamp('2020-05-01T00:00:00Z')"}
    found = run_check(doctor.check_service_account, settings)
    assert found.status == "fails"
    assert "a condition" in found.remedy
    assert "--role=roles/tpu.admin" in found.remedy


@pytest.mark.parametrize(("nat", "private", "status"), [
    (True, False, "ok"), (False, True, "warning"), (False, False, "fails"),
])  # fmt: skip
def test_egress(google: FakeGoogle, settings: Settings, nat: bool, private: bool, status: str) -> None:
    google.compute.nat, google.compute.private = nat, private
    found = run_check(doctor.check_egress, settings)
    assert found.status == status
    assert "us-central1" in found.found
    assert status == "ok" or "routers nats create" in found.remedy


def test_without_egress_no_machine_is_made(google: FakeGoogle) -> None:
    google.compute.nat = False
    done = taetpu(*UP["tpu-api"])
    assert done.returncode == 2
    assert "routers create taetpu" in " ".join(done.stderr.split())
    assert google.world.changes() == []


def test_credentials_of_the_bucket(
    google: FakeGoogle, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_check(doctor.check_account, settings).status == "ok"
    (google.bin.parent / "gcloud" / "application_default_credentials.json").unlink()
    found = run_check(doctor.check_account, settings)
    assert found.status == "fails"
    assert "application-default login" in found.remedy


def test_secrets(google: FakeGoogle, settings: Settings) -> None:
    for name, status in (("WANDB_API_KEY=wandb", "ok"), ("WANDB_API_KEY=gone", "fails")):
        found = run_check(doctor.check_secrets_and_image, settings.model_copy(update={"secrets": (name,)}))
        assert found.status == status
        assert status == "ok" or "gone" in found.found


def test_apis(google: FakeGoogle, settings: Settings) -> None:
    assert run_check(doctor.check_apis, settings).status == "ok"
    google.project.services.remove("iap.googleapis.com")
    found = run_check(doctor.check_apis, settings)
    assert found.status == "fails"
    assert found.remedy.endswith("services enable iap.googleapis.com --project=fake-project")


@pytest.mark.parametrize(("bucket", "zones", "status"), [
    ("studies", ("us-east5-b",), "ok"), ("studies", ("us-east5-b", "europe-west4-a"), "warning"),
    ("missing", (), "warning"), ("", (), "warning"),
])  # fmt: skip
def test_bucket(google: FakeGoogle, settings: Settings, bucket: str, zones: tuple[str, ...], status: str) -> None:
    settings = settings.model_copy(update={"bucket": bucket, "zones": zones})
    found = run_check(doctor.check_bucket, settings)
    if bucket == "studies":
        assert found.status == "warning"
        assert "1234567890-compute@" in found.found, "the machines' account has no role on it"
        subprocess.run(["bash", "-e"], input=found.remedy, text=True, check=True, capture_output=True)
        found = run_check(doctor.check_bucket, settings)
    assert found.status == status
    assert bucket in found.found
    assert bucket != "missing" or found.remedy == f"taetpu bucket create {bucket}"


def test_a_check_that_google_refuses_fails_with_its_message(google: FakeGoogle, settings: Settings) -> None:
    from tests.fake_google.world import Fault, Refused

    google.world.faults.append(Fault("services.list", Refused(7, "Permission 'serviceusage.services.list' denied")))
    found = run_check(doctor.check_apis, settings)
    assert found.status == "fails"
    assert "serviceusage.services.list" in found.found


KEYS = {
    "json": ("deep/key.json", json.dumps(KEY), True),
    "yaml": ("conf.yaml", "type: service_account\nprivate_key: -----BEGIN PRIVATE KEY-----\n", True),
    "python": ("x.py", f"KEY = {KEY!r}\n", True),
    "a user's credentials": ("adc.json", json.dumps({"type": "authorized_user"}), False),
    "a key of something else": ("tls.pem", "-----BEGIN PRIVATE KEY-----\nMIIE\n", False),
    "words about keys": ("README.md", "A service_account key has a private_key.", False),
}


@pytest.mark.parametrize("name", KEYS)
def test_key_files_of_the_project(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    file, text, found = KEYS[name]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    check = doctor.key_files(tmp_path)
    assert (check.status == "fails") == found
    assert not found or file in check.found
    assert "gitleaks" in check.found + check.remedy
    (tmp_path / ".gitignore").write_text(file)
    assert doctor.key_files(tmp_path).status == "ok"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / file))
    assert (doctor.key_files(tmp_path).status == "fails") == found


def test_a_failed_check_is_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAETPU_PROJECT", raising=False)
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
    (tmp_path / "key.json").write_text(json.dumps(KEY))
    done = taetpu("doctor", "--json", folder=tmp_path)
    assert done.returncode == 3
    status = {one["name"]: one["status"] for one in json.loads(done.stdout)}
    assert status["project"] == status["keys"] == "fails"
    assert "keys" in done.stderr


def test_a_network_that_cannot_be_read_is_left_to_the_machine(
    google: FakeGoogle, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.fake_google.world import Fault, Refused

    use_project(settings.project)
    for call in ("routers.list", "subnetworks.list"):
        google.world.faults.append(Fault(call, Refused(7, f"Required 'compute.{call}' permission"), times=9))
    open_zones(settings, ["us-east5-b"])
    assert "Required 'compute.routers.list' permission" in capsys.readouterr().err
