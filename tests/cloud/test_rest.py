"""Questions by plain REST: every refusal becomes the error that says what can be done."""

import pytest

from taetpu.cloud.clients import Clients
from taetpu.cloud.errors import Conflict, Invalid, NotFound, Permission, Transient
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.rest import UNANSWERED, ask

PATH = "/v3/projects/fake-project"
ENABLE = "gcloud services enable cloudresourcemanager.googleapis.com --project=fake-project"


def test_an_answer_has_its_data_and_the_clock_of_the_cloud(looked):
    told = ask(looked.clients, "cloudresourcemanager", PATH)
    assert told.data["projectId"] == "fake-project"
    assert told.date.endswith("GMT")


@pytest.mark.parametrize(
    ("refused", "kind", "problem", "remedy"),
    [
        (Refused(16, "who?"), Permission, "cloudresourcemanager does not know who asks: who?", "gcloud auth"),
        (Refused(7, "no."), Permission, "cloudresourcemanager refuses: no", "`taetpu doctor`"),
        (Refused(7, "off", "SERVICE_DISABLED", {"a": "b"}), Permission, "cloudresourcemanager.googleapis", ENABLE),
        (Refused(5, "none"), NotFound, "cloudresourcemanager: none", ""),
        (Refused(3, "what?"), Invalid, "cloudresourcemanager refuses: what?", ""),
        (Refused(6, "taken"), Conflict, "cloudresourcemanager: taken", ""),
        (Refused(8, "slow down"), Transient, "cloudresourcemanager cannot answer just now: slow down", "later"),
        (Refused(13, "oh"), Transient, "cloudresourcemanager cannot answer just now: oh", "later"),
    ],
)  # fmt: skip
def test_a_refusal_is_sorted_by_what_can_be_done(looked, refused, kind, problem, remedy):
    looked.world.faults.append(Fault("projects.get", refused))
    with pytest.raises(kind) as error:
        ask(looked.clients, "cloudresourcemanager", PATH)
    assert error.value.problem.startswith(problem)
    assert remedy in (error.value.remedy or "")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", None])
def test_no_answer_at_all_is_told_as_such(looked, monkeypatch, address):
    if address is None:
        looked.world.faults.append(Fault("projects.get", None))
    else:
        monkeypatch.setenv("TAETPU_FAKE_CLOUD", address)
    with pytest.raises(Transient, match=r"cloudresourcemanager\.googleapis\.com did not answer") as error:
        ask(Clients("fake-project"), "cloudresourcemanager", PATH)
    assert error.value.facts == UNANSWERED
