"""The project: every lack is named with the command that mends it, and nothing is changed by looking."""

import pytest

from taetpu.cloud.doctor import project
from taetpu.cloud.settings import Settings

MINE = Settings(project="fake-project")


def test_a_project_in_use_and_one_on_its_way_out():
    assert project.state("p", {"state": "ACTIVE"}).status == "ok"
    gone = project.state("p", {"state": "DELETE_REQUESTED"})
    assert (gone.status, gone.command) == ("fails", "gcloud projects undelete p")


def test_billing(looked):
    assert project.billing(looked.clients).found == "billingAccounts/012345-567890-ABCDEF pays"
    looked.project.billing = False
    check = project.billing(looked.clients)
    assert (check.status, check.found) == ("fails", "nobody pays for fake-project, so nothing can be made")
    assert "https://console.cloud.google.com/billing/linkedaccount?project=fake-project" in check.remedy


def test_apis_that_are_not_enabled_are_enabled_by_one_command(looked):
    assert project.services(looked.clients, MINE).status == "ok"
    looked.project.services -= {"tpu", "cloudbuild"}
    check = project.services(looked.clients, MINE)
    assert (check.status, check.found) == ("fails", "not enabled: cloudbuild, tpu (needed)")
    assert check.command == (
        "gcloud services enable cloudbuild.googleapis.com tpu.googleapis.com --project=fake-project"
    )
    check = project.services(looked.clients, Settings(project="fake-project", backend="gce"))
    assert (check.status, check.found) == ("warning", "not enabled: cloudbuild, tpu")
    looked.project.services -= {"iap"}
    assert project.services(looked.clients, Settings(backend="gce")).status == "fails"
    assert project.services(looked.clients, Settings(backend="gce", external_ip=True)).status == "warning"


def test_all_permissions_are_told_in_one_line(looked):
    (check,) = project.permissions(looked.clients, MINE)
    assert check.status == "ok"
    assert check.found.startswith("you may make machines on Compute Engine, make machines with the Cloud TPU API,")
    assert looked.world.changes() == [], "asking what is allowed changes nothing"


def test_a_permission_that_lacks_is_told_with_the_smallest_role(looked):
    looked.project.lacks = {"iap.tunnelInstances.accessViaIAP", "storage.objects.create", "tpu.nodes.create"}
    by = {check.found.split(" (")[0]: check for check in project.permissions(looked.clients, MINE)}
    tunnel = by["you may not reach machines through IAP"]
    assert (tunnel.status, tunnel.remedy) == ("fails", "ask for roles/iap.tunnelResourceAccessor")
    assert tunnel.command == (
        "gcloud projects add-iam-policy-binding fake-project "
        '--member="user:$(gcloud config get account)" --role=roles/iap.tunnelResourceAccessor'
    )
    results = by["you may not keep results"]
    assert (results.status, results.remedy) == ("warning", "ask for roles/storage.objectUser")
    assert results.found.endswith("(storage.objects.create), unless it was granted on the bucket alone")
    assert by["you may not make machines with the Cloud TPU API"].status == "warning", "Compute Engine is left"


def test_no_way_to_make_machines_fails(looked):
    looked.project.lacks = {"compute.instances.create", "tpu.nodes.create"}
    assert {check.status for check in project.permissions(looked.clients, MINE)} == {"fails"}
    only = project.permissions(looked.clients, Settings(project="fake-project", backend="tpu-api"))
    assert [(check.status, check.remedy) for check in only] == [("fails", "ask for roles/tpu.admin")]


def test_a_permission_that_a_project_cannot_be_asked_about_spoils_no_other(looked):
    looked.project.untestable = {"iap.tunnelInstances.accessViaIAP"}
    looked.project.lacks = {"storage.buckets.create"}
    lacks, untested = project.permissions(looked.clients, MINE)
    assert lacks.found == "you may not make a bucket (storage.buckets.create)"
    assert untested.status == "skipped"
    assert untested.found == "the project cannot be asked about iap.tunnelInstances.accessViaIAP"


@pytest.mark.parametrize("need", [project.GCE, project.TPU_API, project.TUNNEL, *project.OTHERS])
def test_a_need_names_a_role_and_permissions(need):
    assert need.role.startswith("roles/")
    assert all(permission.count(".") >= 2 for permission in need.permissions)
