"""`taetpu doctor`: each check, passed and failed, with the remedy that mends it."""

import json

import pytest
from tests.fake_google.cloud import FakeGoogle

KEY = json.dumps({"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nabc\n"})


def checks(done) -> dict[str, dict[str, str]]:
    return {one["name"]: one for one in json.loads(done.out)}


def test_it_is_fine_where_everything_is_set_up(taetpu, shared_google: FakeGoogle):
    done = taetpu("doctor", "--json")
    found = checks(done)
    assert done.code == 0, found
    assert {name for name, one in found.items() if one["status"] != "ok"} == {"bucket"}
    shown = taetpu("doctor").out
    assert max(len(line) for line in shown.splitlines() if not line.startswith(" ")) <= 80


@pytest.mark.parametrize("name", ["key.json", "src/deep/other.txt"])
def test_a_service_account_key_among_the_files_fails(taetpu, here, monkeypatch, name):
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


def test_a_key_that_the_environment_names_fails(taetpu, tmp_path_factory, monkeypatch):
    file = tmp_path_factory.mktemp("elsewhere") / "key.json"
    file.write_text(KEY)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    assert checks(taetpu("doctor", "--json"))["keys"]["status"] == "fails"


@pytest.mark.slow
def test_what_is_missing_fails_with_the_line_that_mends_it(taetpu, google: FakeGoogle, monkeypatch):
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
