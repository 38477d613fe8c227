"""A project as Resource Manager, Service Usage and Cloud Billing tell of it: whether it is there, and what is allowed.

Paths and names are those of the APIs' published REST references (cloudresourcemanager v3, serviceusage v1) and of
`billing_v1.types.ProjectBillingInfo`.
"""

from dataclasses import dataclass, field
from typing import Any

from taetpu.cloud.fakes.paging import page
from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.world import Refused, World

SERVICES = (
    "artifactregistry", "cloudbilling", "cloudbuild", "cloudquotas", "cloudresourcemanager", "compute", "iap",
    "serviceusage", "storage", "tpu",
)  # fmt: skip


def disabled(service: str, project: str = "fake-project") -> Refused:
    """An API that is not enabled, as it tells it itself; `service` without `.googleapis.com`."""
    name = f"{service}.googleapis.com"
    message = f"{name} has not been used in project {project} before or it is disabled."
    return Refused(7, message, "SERVICE_DISABLED", {"service": name, "consumer": f"projects/{project}"})


@dataclass
class Project:
    """What is set of a project.

    Attributes:
        state: "ACTIVE" or "DELETE_REQUESTED"; "" where there is none of the name.
        services: that are enabled, without `.googleapis.com`.
        lacks: permissions that the caller has not.
        untestable: permissions that a project cannot be asked about.
    """

    state: str = "ACTIVE"
    billing: bool = True
    services: set[str] = field(default_factory=lambda: set(SERVICES))
    lacks: set[str] = field(default_factory=set)
    untestable: set[str] = field(default_factory=set)


def routes(world: World, project: Project | None = None) -> list[Route]:
    """The three services, about one project."""
    own = project or Project()

    def known(request: Request) -> None:
        if request.parts["project"] != world.project or not own.state:
            name = f"projects/{request.parts['project']}"
            raise Refused(7, f"Permission denied on resource '{name}' (or it may not exist).", "CONSUMER_INVALID")

    def described(request: Request) -> dict[str, Any]:
        known(request)
        return {"name": "projects/415104041262", "projectId": world.project, "state": own.state}

    def allowed(request: Request) -> dict[str, Any]:
        known(request)
        asked = request.json()["permissions"]
        if wrong := own.untestable & set(asked):
            raise Refused(3, f"Permission {min(wrong)} is not valid for this resource.")
        return {"permissions": [one for one in asked if one not in own.lacks]}

    def enabled(request: Request) -> dict[str, Any]:
        known(request)
        names = [f"projects/415104041262/services/{one}.googleapis.com" for one in sorted(own.services)]
        return page(request, "services", [{"name": name, "state": "ENABLED"} for name in names])

    def billed(request: Request) -> dict[str, Any]:
        known(request)
        account = "billingAccounts/012345-567890-ABCDEF" if own.billing else ""
        name = f"projects/{world.project}"
        bare = {"name": f"{name}/billingInfo", "projectId": world.project}
        return {**bare, "billingAccountName": account, "billingEnabled": own.billing}

    manager = "cloudresourcemanager"
    one = r"/projects/(?P<project>[^/:]+)"
    return [
        Route(manager, "projects.get", "GET", f"/v3{one}", described),
        Route(manager, "projects.testIamPermissions", "POST", f"/v3{one}:testIamPermissions", allowed, changes=False),
        Route("serviceusage", "services.list", "GET", f"/v1{one}/services", enabled),
        Route("cloudbilling", "projects.getBillingInfo", "GET", f"/v1{one}/billingInfo", billed),
    ]
