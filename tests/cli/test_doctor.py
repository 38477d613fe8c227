"""`taetpu doctor`: a key fails with what to do, offline works, and --init takes over an old `.env` but not its key."""

import json

import pytest

from taetpu.cloud.fakes.quotas import usual
from taetpu.cloud.settings import read

TOML = '[cloud]\nproject = "fake-project"\nzones = ["us-east5-b"]\nservice_account = "vm@p.iam.gserviceaccount.com"\n'


@pytest.fixture
def ready(looked, tools, here, monkeypatch):
    """A folder with settings, a project where all is well, and no machines."""
    (here / "taetpu.toml").write_text(TOML)
    monkeypatch.setenv("TAETPU_OWNER", "me")
    looked.infos += usual()
    return looked


@pytest.fixture
def key():
    dashes, kind = "-" * 5, "_".join(["service", "account"])
    return json.dumps({"type": kind, "private_key": f"{dashes}BEGIN PRIVATE KEY{dashes}", "client_email": "bot@p"})


def test_all_is_well(ready, taetpu):
    done = taetpu("doctor")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "nothing fails"
    lines = [line for line in done.out.splitlines() if len(line.split()) > 1]  # a path is one word
    assert max(map(len, lines)) <= 80
    assert ready.world.changes() == []


def test_a_key_in_the_folder_fails_with_its_name_and_the_remedy(ready, taetpu, here, key):
    (here / "data").mkdir()
    (here / "data" / "notes.txt").write_text(key)
    done = taetpu("doctor")
    assert (done.code, done.err) == (3, "1 check fails: keys\n")
    told = " ".join(done.out.split())
    assert f"{here / 'data' / 'notes.txt'} is the key of the service account bot@p" in told
    assert "revoke it in IAM (the command below), delete the file, and sign in as yourself with" in told
    assert "gcloud auth application-default login" in told
    assert "           gcloud iam service-accounts keys delete KEY_ID --iam-account=bot@p" in done.out.splitlines()
    assert (here / "data" / "notes.txt").read_text() == key, "it is told, not deleted"


def test_offline_is_no_failure(ready, taetpu, monkeypatch):
    monkeypatch.setenv("TAETPU_FAKE_CLOUD", "http://127.0.0.1:9")
    done = taetpu("doctor")
    assert done.code == 0
    told = " ".join(done.out.split())
    assert "skipped clock, project, billing, APIs, permissions, quota, firewall, addresses, bucket, machines:" in told
    assert "did not answer (is this machine offline?)" in told


def test_warnings_are_counted_and_commands_stand_whole_on_a_line(ready, taetpu):
    ready.project.services -= {"cloudbuild"}
    done = taetpu("doctor")
    assert done.code == 0
    assert done.out.splitlines()[-1] == "nothing fails; 1 warning"
    command = "gcloud services enable cloudbuild.googleapis.com --project=fake-project"
    assert command in [line.strip() for line in done.out.splitlines()]


def test_json_has_every_check(ready, taetpu):
    found = taetpu("doctor", "--json").json()
    assert {check["status"] for check in found} == {"ok", "skipped"}
    assert set(found[0]) == {"name", "status", "found", "remedy", "command"}
    assert {"settings", "keys", "ssh", "project", "permissions", "machines"} <= {check["name"] for check in found}


def test_init_writes_a_file_with_every_setting_and_never_over_one(here, taetpu):
    done = taetpu("doctor", "--init")
    assert (done.code, done.out.splitlines()[0]) == (0, f"wrote {here / 'taetpu.toml'}")
    before = (here / "taetpu.toml").read_text()
    assert "# max_hours = 4.0" in before
    done = taetpu("doctor", "--init")
    assert done.code == 2
    assert "it is there already and stays as it is" in done.err
    assert (here / "taetpu.toml").read_text() == before


def test_init_takes_over_an_old_env_and_refuses_its_key(here, taetpu):
    old = "PROJECT_ID=infra-1\nTPU_ZONE=europe-west4-a\nTPU_TYPE=v2-8\nSERVICE_ACCOUNT_JSON=k.json\nTOKEN=sesame\n"
    (here / ".env").write_text(old)
    done = taetpu("doctor", "--init")
    assert done.code == 0, done.err
    told = " ".join(done.out.split())
    for words in (
        f"from {here / '.env'}, which stays as it is:",
        "PROJECT_ID: project = infra-1",
        "TPU_ZONE: zones = europe-west4-a",
        "TPU_TYPE: said at the command: `taetpu tpu up --type v2-8`",
        "SERVICE_ACCOUNT_JSON: refused",
        "TOKEN: left out",
    ):
        assert words in told
    assert "sesame" not in done.out
    assert (here / ".env").read_text() == old
    found = read(here, {})
    assert (found.project, found.zones) == ("infra-1", ("europe-west4-a",))
    assert "k.json" not in (here / "taetpu.toml").read_text()


def test_init_as_json(here, taetpu):
    found = taetpu("doctor", "--init", "--json").json()
    assert found == {"file": str(here / "taetpu.toml"), "from": None, "variables": {}}
