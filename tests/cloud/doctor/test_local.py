"""This machine: settings, who is signed in (never a key), programs with their versions."""

import json

import pytest
from tests.cloud.looking import programs

from taetpu.cloud.doctor import local
from taetpu.cloud.settings import FILE, Settings

MINE = Settings(project="my-project")
SIGN_IN = "gcloud auth application-default login"


def test_settings_are_named_with_their_file(tmp_path):
    found, check = local.settings(tmp_path, {})
    assert (found is not None, check.status, check.command) == (True, "warning", "taetpu doctor --init")
    (tmp_path / FILE).write_text('[cloud]\nproject = "my-project"\n')
    found, check = local.settings(tmp_path, {})
    assert (check.status, check.found) == ("ok", f"{tmp_path / FILE}: project my-project")
    (tmp_path / FILE).write_text("[cloud]\n")
    assert local.settings(tmp_path, {})[1].status == "fails"
    (tmp_path / FILE).write_text("[cloud]\nprojct = 1\n")
    found, check = local.settings(tmp_path, {})
    assert (found, check.status) == (None, "fails")
    assert check.found == f"unknown field 'projct' ({tmp_path / FILE} at cloud.projct)"
    assert check.remedy.startswith("did you mean 'project'?")


@pytest.mark.parametrize("login", ["root", "ubuntu", "jovyan", "vscode"])
def test_an_owner_that_many_are_is_a_warning(login, tmp_path):
    (check,) = local.owner(local.settings(tmp_path, {"USER": login})[0])
    assert (check.name, check.status) == ("owner", "warning")
    assert check.found.startswith(f"{login}: shared by everybody who is {login} in this project")
    assert check.remedy == "set `owner` in taetpu.toml, or TAETPU_OWNER"
    assert list(local.owner(local.settings(tmp_path, {"USER": login, "TAETPU_OWNER": "ada"})[0])) == []


@pytest.fixture
def signed(tmp_path):
    """`signed(data) -> environment`: where gcloud keeps application-default credentials, with such a file."""

    def put(data):
        (tmp_path / "application_default_credentials.json").write_text(json.dumps(data))
        return {"CLOUDSDK_CONFIG": str(tmp_path)}

    return put


def test_nobody_signed_in_fails(tmp_path):
    check = local.credentials({"HOME": str(tmp_path)}, MINE)
    assert (check.status, check.found, check.command) == ("fails", "nobody is signed in to Google Cloud here", SIGN_IN)


def test_a_user_is_fine_and_one_without_a_project_to_count_for_is_told(signed):
    user = {"type": "authorized_user", "refresh_token": "t", "quota_project_id": "p"}
    assert local.credentials(signed(user), MINE).status == "ok"
    del user["quota_project_id"]
    check = local.credentials(signed(user), MINE)
    assert (check.status, check.command) == ("warning", "gcloud auth application-default set-quota-project my-project")
    assert local.credentials(signed({"type": "impersonated_service_account"}), MINE).status == "ok"
    assert local.credentials(signed({"type": "external_account"}), MINE).status == "ok"


def test_a_key_file_fails_wherever_it_is_named(signed, tmp_path):
    environment = signed({"type": "service_account"})
    path = tmp_path / "application_default_credentials.json"
    for where in (environment, {local.KEY_FILE: str(path)}):
        check = local.credentials(where, MINE)
        assert (check.status, check.found) == ("fails", f"{path} is the key of a service account")
        assert "delete the key in IAM" in check.remedy
        assert check.command == SIGN_IN


def test_a_file_that_is_not_there_or_no_json_fails(tmp_path):
    check = local.credentials({local.KEY_FILE: str(tmp_path / "none")}, MINE)
    assert "which is not there" in check.found
    (tmp_path / "none").write_text("[1")
    assert "is no JSON" in local.credentials({local.KEY_FILE: str(tmp_path / "none")}, MINE).found
    (tmp_path / "none").write_text("[1]")
    assert local.credentials({local.KEY_FILE: str(tmp_path / "none")}, MINE).status == "fails"


def test_a_machine_of_google_has_credentials_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "product").write_text("Google Compute Engine\n")
    monkeypatch.setattr(local, "MACHINE", tmp_path / "product")
    assert local.credentials({"HOME": str(tmp_path)}, MINE).found == "those of this machine's service account"


def test_the_fake_cloud_needs_nobody(tmp_path):
    assert local.credentials({"TAETPU_FAKE_CLOUD": "http://127.0.0.1:1", "HOME": str(tmp_path)}, MINE).status == "ok"


def test_machines_that_act_as_the_projects_default_account_are_told():
    assert list(local.account(Settings())) == []
    (named,) = local.account(Settings(project="my-project", service_account="vm@p.iam.gserviceaccount.com"))
    assert (named.status, named.found) == ("ok", "machines act as vm@p.iam.gserviceaccount.com")
    (default,) = local.account(Settings(project="my-project"))
    assert default.status == "warning"
    assert default.command == "gcloud iam service-accounts create taetpu-vm --project=my-project"


def test_programs_are_told_with_their_versions(tools):
    found = {check.name: (check.status, check.found) for check in local.tools(MINE, {})}
    assert found == {"ssh": ("ok", "OpenSSH_9.2"), "rsync": ("ok", "rsync version 3"), "gcloud": ("ok", "SDK 5")}


def test_programs_that_are_missing_or_broken_fail(tmp_path, monkeypatch):
    programs(tmp_path, ssh="exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {check.name: check for check in local.tools(MINE, {})}
    assert {check.status for check in found.values()} == {"fails"}
    assert found["rsync"].command == "sudo apt-get install rsync"
    assert "it opens the tunnel" in found["gcloud"].found
    with_address = {check.name: check for check in local.tools(Settings(project="my-project", external_ip=True), {})}
    assert with_address["gcloud"].status == "warning"
    faked = {check.name: check for check in local.tools(MINE, {"TAETPU_FAKE_CLOUD": "http://127.0.0.1:1"})}
    assert (faked["gcloud"].status, faked["rsync"].status) == ("skipped", "fails")
