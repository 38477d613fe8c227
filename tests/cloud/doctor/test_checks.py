"""All checks together: this machine's first, none of Google's without a reason to ask, and nothing ever changed."""

import pytest

from taetpu.cloud import doctor
from taetpu.cloud.doctor import ASKED, local
from taetpu.cloud.errors import Transient
from taetpu.cloud.fakes.projects import disabled
from taetpu.cloud.fakes.quotas import usual
from taetpu.cloud.fakes.world import Fault
from taetpu.cloud.settings import FILE


@pytest.fixture
def look(looked, tools, tmp_path):
    """`look(**environment) -> {name: [checks]}`, with no machines."""
    text = '[cloud]\nproject = "fake-project"\nowner = "me"\nzones = ["us-east5-b"]\nbucket = "mine"\n'
    text += 'service_account = "vm@fake-project.iam.gserviceaccount.com"\n'
    (tmp_path / FILE).write_text(text)
    looked.buckets["mine"] = "US-EAST5"
    looked.infos += usual()

    def checks(machines=lambda clients: [], **environment):
        found = {}
        for check in doctor.checks(tmp_path, {"TAETPU_FAKE_CLOUD": looked.address, **environment}, machines):
            found.setdefault(check.name, []).append(check)
        return found

    return checks


def test_where_all_is_well_all_is_ok_and_nothing_is_changed(look, looked):
    found = look()
    wrong = [check for checks in found.values() for check in checks if check.status != "ok"]
    assert wrong == []
    assert [name for name in found if name in ASKED] == list(ASKED)
    assert next(iter(found)) == "settings"
    assert looked.world.changes() == []


def test_offline_the_local_checks_are_made_and_the_others_skipped_with_the_reason(look, monkeypatch):
    monkeypatch.setenv("TAETPU_FAKE_CLOUD", "http://127.0.0.1:9")
    found = look()
    assert {found[name][0].status for name in ("settings", "keys", "ssh", "rsync", "gcloud")} == {"ok"}
    assert {found[name][0].status for name in ASKED} == {"skipped"}
    assert {found[name][0].found for name in ASKED} == {
        "cloudresourcemanager.googleapis.com did not answer (is this machine offline?)"
    }


def test_without_a_project_a_sign_in_or_libraries_nothing_is_asked(look, looked, tmp_path, monkeypatch):
    (tmp_path / FILE).write_text("[cloud]\n")
    assert look()["billing"][0].found == "no project is named"
    (tmp_path / FILE).write_text("[cloud]\nx = 1\n")
    assert look()["billing"][0].found == "the settings cannot be read"
    (tmp_path / FILE).write_text('[cloud]\nproject = "my-project"\n')
    found = look(TAETPU_FAKE_CLOUD="", HOME=str(tmp_path))
    assert found["billing"][0].found == "nobody is signed in"
    monkeypatch.setattr(local, "LIBRARIES", ("google-cloud-tpu", "google-cloud-none"))
    found = look()
    assert found["billing"][0].found == "Google's libraries are not installed"
    (check,) = found["libraries"]
    assert (check.status, check.command) == ("fails", "pip install 'taetpu[gcp]'")
    assert check.found == "not installed: google-cloud-none"
    assert looked.world.calls == []


@pytest.mark.parametrize(
    ("skew", "status", "words"),
    [(5, "ok", "within 10 s"), (-60, "warning", "60 s ahead of Google's"), (900, "fails", "900 s behind Google's")],
)
def test_a_clock_that_is_off_is_told(look, looked, skew, status, words):
    looked.world.skew = skew + 0.5  # an HTTP date has whole seconds
    (check,) = look()["clock"]
    assert check.status == status
    assert words in check.found


def test_a_project_that_is_not_there_ends_the_questions(look, looked):
    looked.project.state = ""
    found = look()
    (check,) = found["project"]
    assert check.status == "fails"
    assert check.found.startswith("fake-project is not there, or you may not see it: reading the project: it is")
    assert {found[name][0].found for name in ASKED[2:]} == {"fake-project cannot be read"}


def test_a_disabled_api_spoils_its_own_check_alone(look, looked):
    looked.world.faults += [
        Fault("projects.get", disabled("cloudresourcemanager")),
        Fault("quotaInfos.list", disabled("cloudquotas")),
    ]
    found = look()
    command = "gcloud services enable cloudresourcemanager.googleapis.com --project=fake-project"
    assert [(check.status, check.command) for check in found["project"]] == [("fails", command)]
    (quota,) = found["quota"]
    assert quota.status == "skipped"
    assert quota.found.startswith("reading quotas: the API cloudquotas.googleapis.com is not enabled in project fake-p")
    assert quota.command == "gcloud services enable cloudquotas.googleapis.com --project=fake-project"
    assert found["billing"][0].status == found["bucket"][0].status == "ok"


def test_machines_that_cannot_be_listed_are_skipped_with_the_reason(look):
    def refuse(clients):
        raise Transient("tpu cannot answer just now", remedy="try again later")

    (check,) = look(refuse)["machines"]
    assert (check.status, check.found, check.remedy) == ("skipped", "tpu cannot answer just now", "try again later")
