"""What gcloud asks of a project: its number, its policy, its enabled services, the roles that it defines."""

from typing import Any

from tests.fake_google.server import Request, Route
from tests.fake_google.world import World

NUMBER = "1234567890"
ACCOUNT = f"{NUMBER}-compute@developer.gserviceaccount.com"
ALL_APIS = ("tpu.googleapis.com", "compute.googleapis.com", "iap.googleapis.com")


class Project:
    """The project. `bindings` is its policy: role to members."""

    def __init__(self, world: World):
        self.world, self.services = world, list(ALL_APIS)
        self.bindings = {"roles/editor": [f"serviceAccount:{ACCOUNT}"]}

    def routes(self) -> list[Route]:
        project = r"/v[13]/projects/(?P<project>[^/:]+)"
        calls = [
            ("projects.get", "GET", project, self.describe),
            ("projects.getIamPolicy", "POST", f"{project}:getIamPolicy", self.policy),
            ("services.list", "GET", f"{project}/services", self.list_services),
        ]
        return [Route("project", name, method, path, answer, changes=False) for name, method, path, answer in calls]

    def describe(self, request: Request) -> Any:
        return {"projectId": request.parts["project"], "projectNumber": NUMBER, "lifecycleState": "ACTIVE"}

    def policy(self, request: Request) -> Any:
        return {"bindings": [{"role": role, "members": members} for role, members in self.bindings.items()]}

    def list_services(self, request: Request) -> Any:
        names = [{"config": {"name": name}, "name": f"projects/{NUMBER}/services/{name}"} for name in self.services]
        return {"services": [{**one, "state": "ENABLED"} for one in names]}
