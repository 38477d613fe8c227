"""Questions by plain REST: a refusal says what was asked and what can be done, and no answer is told as such."""

import pytest

from taetpu.cloud.clients import Clients
from taetpu.cloud.errors import Invalid, NotFound, Permission, Transient
from taetpu.cloud.fakes.projects import disabled
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.rest import UNANSWERED, Answered, ask


def project(clients: Clients) -> Answered:
    return ask(clients, "cloudresourcemanager", "/v3/projects/fake-project", doing="reading the project")


def test_an_answer_has_its_data_and_the_clock_of_the_cloud(looked):
    told = project(looked.clients)
    assert told.data["projectId"] == "fake-project"
    assert told.date.endswith("GMT")


@pytest.mark.parametrize(
    ("refused", "kind", "remedy"),
    [
        (Refused(16, "who?"), Permission, "gcloud auth application-default login"),
        (Refused(7, "no."), Permission, "`taetpu doctor`"),
        (disabled("cloudresourcemanager"), Permission, "`gcloud services enable cloudresourcemanager.googleapis.com"),
        (Refused(5, "none"), NotFound, ""),
        (Refused(3, "what?"), Invalid, ""),
        (Refused(8, "slow down"), Transient, "try again"),
        (Refused(14, "oh"), Transient, "try again"),
    ],
)
def test_a_refusal_is_sorted_by_what_can_be_done(looked, refused, kind, remedy):
    looked.world.faults.append(Fault("projects.get", refused))
    with pytest.raises(kind) as error:
        project(looked.clients)
    assert error.value.problem.startswith("reading the project: ")
    assert refused.message in error.value.problem
    assert remedy in (error.value.remedy or "")
    assert error.value.facts != UNANSWERED


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", None])
def test_no_answer_at_all_is_told_as_such(looked, monkeypatch, address):
    if address is None:
        looked.world.faults.append(Fault("projects.get", None))
    else:
        monkeypatch.setenv("TAETPU_FAKE_CLOUD", address)
    with pytest.raises(Transient) as error:
        project(Clients("fake-project"))
    assert error.value.problem == "cloudresourcemanager.googleapis.com did not answer"
    assert error.value.facts == UNANSWERED
