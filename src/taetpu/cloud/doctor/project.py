"""The project: whether it is there and paid for, which APIs answer, and what the caller may do.

Roles are the smallest of Google's predefined ones that hold the permissions, by the reference of roles; that a project
can be asked about each of them was not tried on the real cloud, and one that it cannot be asked about is skipped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.cloud.clients import Clients, imported
from taetpu.cloud.doctor.check import Check, fails, offered, ok, skipped, warning
from taetpu.cloud.errors import Invalid
from taetpu.cloud.rest import answered, ask, patience
from taetpu.cloud.settings import Settings
from taetpu.core.errors import UserError

CONSOLE = "https://console.cloud.google.com"


@dataclass(frozen=True)
class Need:
    """What the caller has to be allowed for something.

    Attributes:
        doing: "make machines".
        role: the smallest that has the permissions.
        on: what the role may be granted on instead of the project, so that the project does not know of it.
    """

    doing: str
    permissions: tuple[str, ...]
    role: str
    on: str = ""
    must: bool = False


GCE = Need(
    "make machines on Compute Engine",
    ("compute.instances.create", "compute.instances.delete", "compute.instances.get", "compute.instances.list",
     "compute.instances.setMetadata", "compute.disks.create", "compute.subnetworks.use"),
    "roles/compute.instanceAdmin.v1",
)  # fmt: skip
TPU_API = Need(
    "make machines with the Cloud TPU API",
    ("tpu.nodes.create", "tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list"),
    "roles/tpu.admin",
)
TUNNEL = Need(
    "reach machines through IAP",
    ("iap.tunnelInstances.accessViaIAP",),
    "roles/iap.tunnelResourceAccessor",
    "the machine",
    must=True,
)
OTHERS = (
    Need(
        "let machines act as a service account",
        ("iam.serviceAccounts.actAs",),
        "roles/iam.serviceAccountUser",
        "the account",
    ),
    Need(
        "keep results",
        ("storage.objects.create", "storage.objects.get", "storage.objects.list", "storage.objects.delete"),
        "roles/storage.objectUser",
        "the bucket",
    ),
    Need("make a bucket", ("storage.buckets.create",), "roles/storage.admin"),
    Need(
        "push images",
        ("artifactregistry.repositories.uploadArtifacts",),
        "roles/artifactregistry.writer",
        "the repository",
    ),
    Need("build images", ("cloudbuild.builds.create",), "roles/cloudbuild.builds.editor"),
    Need("read quotas", ("cloudquotas.quotas.get",), "roles/cloudquotas.viewer"),
    Need("look at firewalls", ("compute.firewalls.list", "compute.routers.list"), "roles/compute.networkViewer"),
)


def state(project: str, told: dict[str, Any]) -> Check:
    """Whether a project that was found is in use."""
    if told.get("state") == "ACTIVE":
        return ok("project", f"{project} is there")
    command = f"gcloud projects undelete {project}"
    return fails("project", f"{project} is to be deleted ({told.get('state', 'no state')})", command=command)


def unreadable(project: str, error: UserError) -> Check:
    """What it is when a project cannot be read."""
    if command := offered(error):
        return fails("project", error.problem, command=command)
    remedy = "look for its ID (not its name or number), and whether you are signed in as who may see it"
    return fails(
        "project", f"{project} is not there, or you may not see it: {error.problem}", remedy, "gcloud projects list"
    )


def billing(clients: Clients) -> Check:
    """Whether somebody pays."""
    library = imported("google.cloud.billing_v1")
    transports = imported("google.cloud.billing_v1.services.cloud_billing.transports")
    client = clients.rest(library.CloudBillingClient, transports.CloudBillingRestTransport)
    with answered("cloudbilling", "reading who pays"):
        told = client.get_project_billing_info(name=f"projects/{clients.project}", **patience())
    if told.billing_enabled:
        return ok("billing", f"{told.billing_account_name} pays")
    remedy = f"link an account: {CONSOLE}/billing/linkedaccount?project={clients.project}"
    return fails("billing", f"nobody pays for {clients.project}, so nothing can be made", remedy)


def services(clients: Clients, settings: Settings) -> Check:
    """Which APIs are enabled."""
    must = {"compute"} | ({"tpu"} if settings.backend != "gce" else set())
    must |= ({"iap"} if not settings.external_ip else set()) | ({"storage"} if settings.bucket else set())
    useful = must | {"artifactregistry", "cloudbilling", "cloudbuild", "cloudquotas", "iap", "storage", "tpu"}
    lacking = sorted(useful - set(_enabled(clients)))
    if not lacking:
        return ok("APIs", f"enabled: {', '.join(sorted(useful))}")
    named = " ".join(f"{one}.googleapis.com" for one in lacking)
    command = f"gcloud services enable {named} --project={clients.project}"
    told = f"not enabled: {', '.join(one + (' (needed)' if one in must else '') for one in lacking)}"
    return (fails if must & set(lacking) else warning)("APIs", told, command=command)


def _enabled(clients: Clients) -> Iterator[str]:
    """The services that are enabled, without `.googleapis.com`."""
    query = {"filter": "state:ENABLED", "pageSize": "200"}
    while True:
        told = ask(
            clients,
            "serviceusage",
            f"/v1/projects/{clients.project}/services",
            doing="reading what is enabled",
            query=query,
        ).data
        for service in told.get("services", []):
            yield service["name"].rpartition("/")[2].removesuffix(".googleapis.com")
        if not (token := told.get("nextPageToken")):
            return
        query["pageToken"] = token


def permissions(clients: Clients, settings: Settings) -> list[Check]:
    """What the caller may not do that commands need; one check that all is well otherwise."""
    makers = {"gce": [GCE], "tpu-api": [TPU_API]}.get(settings.backend, [GCE, TPU_API])
    needs = [*makers, *([] if settings.external_ip else [TUNNEL]), *OTHERS]
    granted, untested = _granted(clients, sorted({one for need in needs for one in need.permissions}))
    lacking = [(need, [p for p in need.permissions if p not in granted | untested]) for need in needs]
    lacking = [(need, those) for need, those in lacking if those]
    stuck = all(need in [one for one, _ in lacking] for need in makers)
    told = [_lacks(clients.project, need, those, stuck and need in makers) for need, those in lacking]
    if not told:
        told = [ok("permissions", f"you may {', '.join(need.doing for need in needs)}")]
    if untested:
        told.append(skipped("permissions", f"the project cannot be asked about {', '.join(sorted(untested))}"))
    return told


def _lacks(project: str, need: Need, those: Sequence[str], stuck: bool) -> Check:
    found = f"you may not {need.doing} ({', '.join(those)})"
    if need.on:
        found += f", unless it was granted on {need.on} alone"
    command = (
        f"gcloud projects add-iam-policy-binding {project} "
        f'--member="user:$(gcloud config get account)" --role={need.role}'
    )
    return (fails if need.must or stuck else warning)("permissions", found, f"ask for {need.role}", command)


def _granted(clients: Clients, asked: Sequence[str]) -> tuple[set[str], set[str]]:
    """Which permissions the caller has on the project, and which it cannot be asked about.

    A request that names one that the project does not know is refused as a whole; they are then asked one by one.
    """
    path = f"/v3/projects/{clients.project}:testIamPermissions"

    def test(names: Sequence[str]) -> set[str]:
        told = ask(
            clients, "cloudresourcemanager", path, doing="asking what you may", body={"permissions": list(names)}
        ).data
        return set(told.get("permissions", []))

    try:
        return test(asked), set()
    except Invalid:
        granted: set[str] = set()
        untested: set[str] = set()
        for name in asked:
            try:
                granted |= test([name])
            except Invalid:
                untested.add(name)
        return granted, untested
