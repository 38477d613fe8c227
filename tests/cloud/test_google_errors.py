"""Google's errors, in the words that were seen where they are known, each sorted by what can be done about it.

The source of a text stands beside it; "our reading" marks those that nobody reported.
"""

import json

import google.auth.exceptions as auth
import pytest
import requests
from google.api_core import exceptions as api
from google.cloud import compute_v1
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from taetpu.cloud.clients import FAKE
from taetpu.cloud.errors import (
    CloudError,
    Conflict,
    Disabled,
    Invalid,
    NotFound,
    NotOffered,
    Permission,
    Quota,
    Stockout,
    Transient,
    Unknown,
)
from taetpu.cloud.google_calls import explained, reading
from taetpu.cloud.google_errors import classify

ZONE = "us-east5-b"


def rpc(code, message, reason="", facts=None):
    """What the gRPC clients raise."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain="googleapis.com", metadata=facts or {})
    return api.from_grpc_status(code, message, details=[info] if reason else [], error_info=info if reason else None)


def rest(status, message, reason="", facts=None, name="", legacy=""):
    """What the REST clients raise, of an answer as the APIs write it."""
    error = {"code": status, "message": message, "status": name}
    if legacy:
        error["errors"] = [{"message": message, "domain": "global", "reason": legacy}]
    if reason:
        kind = "type.googleapis.com/google.rpc.ErrorInfo"
        error["details"] = [{"@type": kind, "reason": reason, "domain": "googleapis.com", "metadata": facts or {}}]
    return api.from_http_response(answer(status, json.dumps({"error": error})))


def answer(status, text):
    made = requests.Response()
    made.status_code, made._content = status, text.encode()
    made.request = requests.Request("POST", "https://compute.googleapis.com/compute/v1/projects/p").prepare()
    return made


def operation(code, message, **details):
    """An operation of Compute Engine that ended badly."""
    told = compute_v1.Errors(code=code, message=message)
    if details:
        told.error_details = [compute_v1.ErrorDetails(**details)]
    return compute_v1.Operation(error=compute_v1.Error(errors=[told]))


def status(code, message, *details):
    """An ended operation's error, as the Cloud TPU API has it."""
    made = status_pb2.Status(code=code, message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        made.details.append(packed)
    return made


NO_CAPACITY = (
    'There is no more capacity in the zone "us-east5-b"; you can try in another zone where Cloud TPU Nodes are offered '
    "(see https://cloud.google.com/tpu/docs/regions) [EID: 0x9f48947a7d57c8d]"
)
NOT_IN_ZONE = (
    'Cloud TPU received a bad request. The requested accelerator configuration for accelerator type, "v6e-1", could '
    'not be found in the zonal accelerator configurations for "asia-east1-a".; the accelerator v6e-1 was not found in '
    "zone asia-east1-a [EID: 0x362c45de1b38c529]"
)
POOL = (
    "The zone 'projects/p/zones/us-central1-a' does not have enough resources available to fulfill the request.  Try a "
    "different zone, or try again later."
)
UNUSED = (
    "Cloud TPU API has not been used in project 12345 before or it is disabled. Enable it by visiting "
    "https://console.developers.google.com/apis/api/tpu.googleapis.com/overview?project=12345 then retry."
)
LIMIT = "TPUV6EPreemptiblePerProjectPerRegionForTPUAPI"

TABLE = {
    # hashicorp/terraform-provider-google#21243
    "stockout in an operation": (status(8, NO_CAPACITY), Stockout, "us-east5-b has none left"),
    "stockout in the call": (rpc(8, NO_CAPACITY), Stockout, "us-east5-b has none left"),
    "stockout by REST": (rest(429, NO_CAPACITY, name="RESOURCE_EXHAUSTED"), Stockout, "us-east5-b has none left"),
    # skypilot-org/skypilot#4579
    "reservation used up": (
        status(9, "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 0x7]"),
        Stockout,
        "us-east5-b has none left",
    ),
    # a comment in skypilot's FailoverCloudErrorHandlerV2
    "preempted while it was made": (
        status(3, "Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: 0x7]"),
        Stockout,
        "us-east5-b has none left",
    ),
    # CCExtractor/sample-platform#901
    "Compute Engine's stockout": (operation("ZONE_RESOURCE_POOL_EXHAUSTED", POOL), Stockout, "has none left"),
    # GoogleCloudPlatform/ai-on-gke#849
    "Compute Engine's stockout in detail": (
        operation(
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "A ct6e-standard-4t VM instance is currently unavailable in the us-east5-b zone.",
            error_info=compute_v1.ErrorInfo(reason="resource_availability", metadatas={"vmType": "ct6e-standard-4t"}),
        ),
        Stockout,
        "has none left",
    ),
    # marin-community/marin#1612
    "quota by REST": (
        rest(429, f"Quota limit '{LIMIT}' has been exceeded. Limit: 0 in region us-east5.", name="RESOURCE_EXHAUSTED"),
        Quota,
        f"the project's quota {LIMIT} is used up",
    ),
    # marin-community/marin#87, and skypilot on the kind of detail
    "quota as QuotaFailure": (
        status(
            8,
            "Quota 'TPUV5sPreemptibleLitepodPerProjectPerRegionForTPUAPI' exhausted. Limit 10000 in region us-west4",
            error_details_pb2.QuotaFailure(violations=[{"subject": "p", "description": "used up"}]),
        ),
        Quota,
        "quota TPUV5sPreemptibleLitepodPerProjectPerRegionForTPUAPI is used up",
    ),
    # our reading: the reason that google/api/error_reason.proto has for resources
    "quota by its reason alone": (
        rpc(8, "Not enough.", "RESOURCE_QUOTA_EXCEEDED", {"quota_limit": "TPUs-per-project"}),
        Quota,
        "quota TPUs-per-project is used up",
    ),
    # a comment in skypilot's FailoverCloudErrorHandlerV2
    "Compute Engine's quota": (
        operation("QUOTA_EXCEEDED", "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-west1."),
        Quota,
        "quota CPUS is used up",
    ),
    "Compute Engine's quota in the call": (
        rest(403, "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-west1.", legacy="quotaExceeded"),
        Quota,
        "quota CPUS is used up",
    ),
    # google/api/error_reason.proto
    "rate limit by its limit": (
        rpc(8, "Quota exceeded.", "RATE_LIMIT_EXCEEDED", {"quota_limit": "ReadsPerMinutePerProject"}),
        Transient,
        "too many requests in a short time",
    ),
    # the form of marin-community/marin#6198
    "rate limit by its words": (
        rpc(8, "Quota exceeded for quota metric 'Create requests' and limit 'Create requests per minute' of service"),
        Transient,
        "too many requests in a short time",
    ),
    "Compute Engine's rate limit": (
        rest(403, "Rate Limit Exceeded", legacy="rateLimitExceeded"),
        Transient,
        "too many requests in a short time",
    ),
    # our reading
    "permission by its detail": (
        rpc(7, "Permission denied.", "IAM_PERMISSION_DENIED", {"permission": "tpu.nodes.create"}),
        Permission,
        "the permission tpu.nodes.create is missing",
    ),
    # the form that skypilot's instance_utils.py looks for
    "permission by its words": (
        rest(403, "Permission 'tpu.nodes.list' denied on 'projects/p/locations/us-east5-b'", name="PERMISSION_DENIED"),
        Permission,
        "the permission tpu.nodes.list is missing",
    ),
    # our reading of Compute Engine's words
    "Compute Engine's permission": (
        rest(403, "Required 'compute.firewalls.create' permission for 'projects/p/global/firewalls/x'"),
        Permission,
        "the permission compute.firewalls.create is missing",
    ),
    # our reading of the organisation policies' words
    "policy": (
        rest(412, "Constraint constraints/compute.vmExternalIpAccess violated.", legacy="conditionNotMet"),
        Permission,
        "the organisation's policy constraints/compute.vmExternalIpAccess forbids it",
    ),
    # the form quoted for compute.googleapis.com and others in public notes
    "API disabled by its words": (rpc(7, UNUSED), Disabled, "API tpu.googleapis.com is not enabled in project 12345"),
    # google/api/error_reason.proto
    "API disabled by its detail": (
        rest(403, UNUSED, "SERVICE_DISABLED", {"service": "tpu.googleapis.com", "consumer": "projects/12345"}),
        Disabled,
        "API tpu.googleapis.com is not enabled in project 12345",
    ),
    "billing": (rpc(7, "This API method requires billing to be enabled."), Permission, "no billing account"),
    # google-auth's own words
    "sign-in expired": (
        auth.RefreshError("Reauthentication is needed. Please run `gcloud auth application-default login`"),
        Permission,
        "the sign-in to Google Cloud has expired",
    ),
    # gRPC's own words around google-auth's
    "sign-in expired within gRPC": (
        rpc(14, "Getting metadata from plugin failed with error: ('invalid_grant: Bad Request', {})"),
        Permission,
        "the sign-in to Google Cloud has expired",
    ),
    "token refused": (
        rpc(16, "Request had invalid authentication credentials. Expected OAuth 2 access token."),
        Permission,
        "the sign-in to Google Cloud has expired",
    ),
    # google/api/error_reason.proto
    "scope": (
        rpc(7, "Request had insufficient authentication scopes.", "ACCESS_TOKEN_SCOPE_INSUFFICIENT", {}),
        Permission,
        "the credentials were not given the scope",
    ),
    # field notes on v6e zones, public, June 2026
    "type not in the zone": (rpc(3, NOT_IN_ZONE), NotOffered, "has no v6e-1"),
    "zone without the API": (
        rpc(3, 'Cloud TPU received a bad request. The requested zone "us-south1-a" is not supported. [EID: 0x1]'),
        NotOffered,
        "us-south1-a is closed to this project",
    ),
    "zone without flex-start": (
        status(3, 'FLEX_START provisioning model is not supported for accelerator type "v6e-1" in location "x"'),
        NotOffered,
        "us-east5-b has no flex-start for v6e-1",
    ),
    # skypilot-org/skypilot#3840
    "type in no zone": (
        rpc(3, "Cloud TPU received a bad request. the accelerator v4-129 was not found in zone us-central2-b"),
        Invalid,
        "there is no accelerator 'v4-129'",
    ),
    # public notes on Gemma and TPUs
    "zone closed": (
        rest(
            403,
            "Permission denied on 'locations/us-central2-b' (or it may not exist).",
            "LOCATION_POLICY_VIOLATED",
            {"location": "us-central2-b", "service": "tpu.googleapis.com"},
        ),
        NotOffered,
        "us-central2-b is closed to this project",
    ),
    # skypilot's FailoverCloudErrorHandlerV2
    "zone misspelt": (
        rest(403, "Location us-est5-b is not found or access is unauthorized."),
        Invalid,
        "'us-est5-b' is no zone that this project may use",
    ),
    # our reading of Compute Engine's words
    "machine type not in the zone": (
        rest(400, "Invalid value for field 'resource.machineType': 'zones/z/machineTypes/ct6e-standard-4t'. The "
             "referenced resource does not exist."),
        NotOffered,
        "us-east5-b has no ct6e-standard-4t",
    ),
    # our reading
    "runtime version": (
        rpc(3, 'Cloud TPU received a bad request. Runtime version "v2-alpha-tpu6e" was not found.'),
        Invalid,
        "there is no runtime version 'v2-alpha-tpu6e'",
    ),
    "not found": (rpc(5, "Resource 'projects/p/locations/z/nodes/lab' was not found"), NotFound, "was not found"),
    "name taken": (rest(409, "Resource 'x' already exists", name="ALREADY_EXISTS"), Conflict, "already exists"),
    "Compute Engine's name taken": (operation("RESOURCE_ALREADY_EXISTS", "It exists"), Conflict, "It exists"),
    # the form of Compute Engine's errors: a code of HTTP, and a name that says more
    "in use, told as a bad request": (
        rest(400, "The network resource 'x' is already being used by 'y'", legacy="resourceInUseByAnotherResource"),
        Conflict,
        "is already being used",
    ),
    "not ready, told as a bad request": (
        rest(400, "The resource 'x' is not ready", legacy="resourceNotReady"), Conflict, "is not ready",
    ),
    # tensorflow/tpu#124
    "a free trial": (
        rest(403, "cannot create a TPU Node on a project linked to a free-trial billing account, forbidden",
             legacy="forbidden"),
        Permission,
        "the project is paid for by a free trial, which has no TPUs",
    ),
    # after https://cloud.google.com/compute/docs/oslogin/manage-oslogin-in-an-org; the words are our reading
    "OS Login is insisted on": (
        rest(412, "Constraint constraints/compute.requireOsLogin violated.", legacy="conditionNotMet"),
        Permission,
        "the organisation's policy constraints/compute.requireOsLogin forbids it",
    ),
    "another state": (rest(400, "It is DELETING.", name="FAILED_PRECONDITION"), Conflict, "It is DELETING."),
    "collided": (rest(409, "Another operation is in progress.", name="ABORTED"), Transient, "in progress"),
    "unavailable": (rpc(14, "The service is currently unavailable."), Transient, "currently unavailable"),
    "an internal error": (rpc(13, "Internal error encountered."), Unknown, "Internal error"),
    # grpc's and requests' own words
    "no answer by gRPC": (rpc(14, "Socket closed"), Unknown, "it may have been done or not"),
    "no answer in time": (rpc(4, "Deadline Exceeded"), Unknown, "it may have been done or not"),
    "never sent by gRPC": (rpc(14, "failed to connect to all addresses; Connection refused"), Transient, ""),
    "no answer by REST": (
        requests.ConnectionError("('Connection aborted.', RemoteDisconnected('Remote end closed connection'))"),
        Unknown,
        "it may have been done or not",
    ),
    "no answer in time by REST": (requests.ReadTimeout("Read timed out."), Unknown, "it may have been done or not"),
    "never sent by REST": (
        requests.ConnectionError("Failed to establish a new connection: Temporary failure in name resolution"),
        Transient,
        "name resolution",
    ),
    "no network at sign-in": (auth.TransportError("Failed to resolve oauth2.googleapis.com"), Transient, "resolve"),
    "a page of HTML": (api.from_http_response(answer(502, "<html>Bad Gateway</html>")), Transient, "Bad Gateway"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "remedy"),
    [
        ("resource.disks[0].initializeParams.sourceImage", "see to --runtime, the name of an image family"),
        ("resource.networkInterfaces[0].subnetwork", "see to `subnetwork` in taetpu.toml"),
        ("resource.networkInterfaces[0].network", "see to `network` in taetpu.toml"),
        ("resource.other", "see to the option or setting that it is from; `taetpu doctor` looks at them"),
    ],
)
def test_a_field_that_is_refused_says_what_sets_it(field, remedy):
    # the words: https://github.com/GoogleCloudPlatform/cloud-foundation-toolkit/issues/95
    found = classify(
        rest(400, f"Invalid value for field '{field}': 'x'. The URL is malformed.", legacy="invalid"), ZONE
    )
    assert (type(found), found.remedy) == (Invalid, remedy)


def refused(address):
    with pytest.raises(requests.ConnectionError) as caught:
        requests.get(address, timeout=5)
    return caught.value


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (lambda: refused("http://127.0.0.1:1/x"), "Google does not answer (127.0.0.1: Connection refused)"),
        (
            lambda: auth.TransportError(
                "HTTPSConnectionPool(host='oauth2.googleapis.com', port=443): Max retries exceeded with url: /token "
                "(Caused by NameResolutionError(\"HTTPSConnection(host='oauth2.googleapis.com', port=443): Failed to "
                "resolve 'oauth2.googleapis.com' ([Errno -2] Name or service not known)\"))"
            ),
            "Google does not answer (oauth2.googleapis.com: Name or service not known)",
        ),
        (
            lambda: rpc(14, "failed to connect to all addresses; Connection refused"),
            "Google does not answer (failed to connect to all addresses; Connection refused)",
        ),
    ],
    ids=["by REST", "at sign-in", "by gRPC"],
)
def test_no_network_is_told_in_a_sentence_with_what_to_see_to(error, words):
    found = classify(error(), ZONE, "creating lab")
    assert (type(found), found.problem) == (Transient, f"creating lab in us-east5-b: {words}")
    assert found.remedy == "see to the connection, then give the same command again"


@pytest.mark.parametrize("name", TABLE)
def test_an_error_is_sorted_by_what_can_be_done(name):
    error, kind, words = TABLE[name]
    found = classify(error, ZONE, "creating lab")
    assert type(found) is kind, found
    assert words in found.problem
    assert found.problem.startswith("creating lab in us-east5-b: "), "what was done, and where"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("API disabled by its words", "gcloud services enable tpu.googleapis.com --project=12345"),
        ("API disabled by its detail", "gcloud services enable tpu.googleapis.com --project=12345"),
        ("sign-in expired", "gcloud auth application-default login"),
        ("sign-in expired within gRPC", "gcloud auth application-default login"),
        ("scope", "the scope `cloud-platform`"),
        ("permission by its detail", "roles/tpu.admin"),
        ("Compute Engine's permission", "roles/compute.securityAdmin"),
        ("quota by REST", f"ask for more of {LIMIT} in the console"),
        ("type not in the zone", "it is listed in asia-northeast1-b, europe-west4-a, us-central1-b"),
        ("type in no zone", "v4 counts cores; the nearest: v4-128, v4-256"),
        ("zone misspelt", "did you mean 'us-east5-b'?"),
        ("runtime version", "did you mean 'v2-alpha-tpuv6e'?"),
        ("stockout in the call", "--flex-start"),
        ("a free trial", "upgrade it to a paid account"),
        ("OS Login is insisted on", "which OS Login does not know"),
        ("no answer by gRPC", "it looks first whether it was done"),
    ],
)
def test_the_remedy_names_what_to_do(name, remedy):
    assert remedy in (classify(TABLE[name][0], ZONE, "creating lab").remedy or "")


def test_googles_own_words_are_kept_for_its_support():
    assert "[EID: 0x362c45de1b38c529]" in classify(TABLE["type not in the zone"][0], ZONE).problem
    by_rest = classify(TABLE["quota by REST"][0], ZONE).problem
    assert "https://" not in by_rest, "the address that was asked tells a user nothing"


def test_a_quota_of_one_zone_says_nothing_of_its_region():
    of_zone = rpc(8, "Quota 'TPUV5sLitepodServingPerProjectPerZoneForTPUAPI' exhausted. Limit 4 in zone us-central1-a")
    assert classify(of_zone, "us-central1-a").facts["region"] == ""
    of_region = classify(TABLE["quota by REST"][0], ZONE)
    assert "region" not in of_region.facts
    assert of_region.facts["quota_limit"] == LIMIT


@pytest.mark.parametrize("name", ["no answer by gRPC", "no answer by REST", "an internal error", "no answer in time"])
def test_a_question_without_an_answer_is_no_more_than_that(name):
    assert type(classify(TABLE[name][0], ZONE, reading=True)) is Transient


def test_an_error_of_ours_stays_as_it_is():
    mine = Conflict("taken")
    assert classify(mine, ZONE) is mine
    with pytest.raises(Conflict, match="taken"), explained(ZONE, "creating lab"):
        raise mine


def test_what_is_no_error_of_the_cloud_is_not_hidden():
    with pytest.raises(ZeroDivisionError), explained(ZONE):
        raise ZeroDivisionError


def test_a_question_is_asked_again_until_it_is_answered(monkeypatch):
    monkeypatch.setenv(FAKE, "http://127.0.0.1:9")
    answers = [TABLE["unavailable"][0], TABLE["rate limit by its words"][0], TABLE["no answer by REST"][0], "well"]

    def ask():
        told = answers.pop(0)
        if isinstance(told, Exception):
            raise told
        return told

    assert reading(ask, ZONE) == "well"
    assert answers == []


@pytest.mark.parametrize(
    "name", ["permission by its detail", "sign-in expired within gRPC", "not found", "quota by REST"]
)
def test_a_question_that_was_answered_is_not_asked_again(name, monkeypatch):
    monkeypatch.setenv(FAKE, "http://127.0.0.1:9")
    error, kind, _ = TABLE[name]
    asked = []

    def ask():
        asked.append(name)
        raise error

    with pytest.raises(CloudError) as told:
        reading(ask, ZONE, "looking")
    assert (type(told.value), asked) == (kind, [name])
