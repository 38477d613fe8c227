"""The project API for gcloud: number, policy, enabled services and custom roles."""

from typing import Any

from tests.fake_google.server import Request, Route
from tests.fake_google.world import Refused, World

NUMBER = "1234567890"
ACCOUNT = f"{NUMBER}-compute@developer.gserviceaccount.com"
ALL_APIS = ("tpu.googleapis.com", "compute.googleapis.com", "iap.googleapis.com")


class Project:
    """The project. `bindings` is its policy: role to members, all on `condition`."""

    def __init__(self, world: World):
        self.world, self.services = world, list(ALL_APIS)
        self.bindings = {"roles/editor": [f"serviceAccount:{ACCOUNT}"]}
        self.secrets = ["wandb"]
        self.condition: dict[str, str] = {}

    def routes(self) -> list[Route]:
        project = r"/v[13]/projects/(?P<project>[^/:]+)"
        calls = [
            ("projects.get", "GET", project, self.describe),
            ("projects.getIamPolicy", "POST", f"{project}:getIamPolicy", self.policy),
            ("secrets.get", "GET", f"{project}/secrets/(?P<name>[^/]+)", self.secret),
            ("services.list", "GET", f"{project}/services", self.list_services),
        ]
        return [Route("project", name, method, path, answer, changes=False) for name, method, path, answer in calls]

    def describe(self, request: Request) -> Any:
        return {"projectId": request.parts["project"], "projectNumber": NUMBER, "lifecycleState": "ACTIVE"}

    def policy(self, request: Request) -> Any:
        more = {"condition": self.condition} if self.condition else {}
        return {"bindings": [{"role": role, "members": members, **more} for role, members in self.bindings.items()]}

    def secret(self, request: Request) -> Any:
        if request.parts["name"] not in self.secrets:
            raise Refused(5, f"Secret [{request.path.removeprefix('/v1/')}] not found.")
        return {"name": request.path.removeprefix("/v1/")}

    def list_services(self, request: Request) -> Any:
        names = [{"config": {"name": name}, "name": f"projects/{NUMBER}/services/{name}"} for name in self.services]
        return {"services": [{**one, "state": "ENABLED"} for one in names]}
