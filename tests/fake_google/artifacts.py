"""Artifact Registry (REST v1) as gcloud 528 calls it: repositories, and Docker images of one version and one tag."""

from typing import Any

from tests.fake_google.server import Request, Route
from tests.fake_google.world import Refused, World

REPOSITORIES, IMAGES = "artifacts.repositories", "artifacts.images"
VERSION = "sha256:" + 64 * "a"


class Artifacts:
    """The service."""

    def __init__(self, world: World):
        self.world = world

    def push(self, region: str, image: str, tag: str) -> None:
        """Put an image into the repository `taetpu`, as Cloud Build does."""
        repository = f"projects/{self.world.project}/locations/{region}/repositories/taetpu"
        self.world.table(REPOSITORIES)[repository] = {"name": repository, "format": "DOCKER"}
        self.world.table(IMAGES)[f"{repository}/packages/{image}"] = tag

    def routes(self) -> list[Route]:
        place = r"/v1/projects/[^/]+/locations/[^/]+"
        repository = rf"{place}/repositories/[^/]+"
        package = rf"(?P<package>{repository}/packages/[^/]+)"
        calls = [
            ("repositories.list", "GET", f"{place}/repositories", self.repositories),
            ("repositories.get", "GET", repository, self.repository),
            ("repositories.create", "POST", f"{place}/repositories", self.create),
            ("dockerImages.list", "GET", f"{repository}/dockerImages", self.images),
            ("tags.list", "GET", f"{package}/tags", lambda request: {"tags": [self._tag(request)]}),
            ("tags.get", "GET", f"{package}/tags/[^/]+", self._tag),
            ("tags.delete", "DELETE", f"{package}/tags/[^/]+", lambda request: {}),
            ("versions.list", "GET", f"{package}/versions", lambda request: {"versions": [self._version(request)]}),
            ("versions.get", "GET", f"{package}/versions/[^/]+", self._version),
            ("versions.delete", "DELETE", f"{package}/versions/[^/]+", self.delete),
        ]
        return [Route("artifacts", name, method, path, answer) for name, method, path, answer in calls]

    def repositories(self, request: Request) -> Any:
        return {"repositories": self._below(REPOSITORIES, request)}

    def repository(self, request: Request) -> Any:
        if (found := self.world.table(REPOSITORIES).get(_name(request.path))) is None:
            raise Refused(5, "Requested entity was not found.")
        return found

    def create(self, request: Request) -> Any:
        name = f"{_name(request.path)}/{request.query['repositoryId']}"
        self.world.table(REPOSITORIES)[name] = {"name": name, "format": "DOCKER"}
        return self._operation(request)

    def images(self, request: Request) -> Any:
        place = _name(request.path).removesuffix("/dockerImages")
        _, project, _, region, _, repository = place.split("/")
        start = f"{place}/packages/"
        return {
            "dockerImages": [
                {
                    "name": f"{place}/dockerImages/{image}@{VERSION}", "tags": [tag],
                    "uri": f"{region}-docker.pkg.dev/{project}/{repository}/{image}@{VERSION}",
                    "uploadTime": "2026-11-22T10:00:00Z", "updateTime": "2026-11-22T10:00:00Z",
                }
                for name, tag in self.world.table(IMAGES).items()
                if name.startswith(start) and (image := name.removeprefix(start))
            ]
        }  # fmt: skip

    def delete(self, request: Request) -> Any:
        del self.world.table(IMAGES)[self._package(request)]
        return self._operation(request)

    def _operation(self, request: Request) -> dict[str, str]:
        """An operation, which is asked for at the same path as one of the TPU API."""
        place = _name(request.path).partition("/repositories")[0]
        return {"name": f"{place}/operations/{self.world.operation(request.method, '', dict).name}"}

    def _package(self, request: Request) -> str:
        if (name := _name(request.parts["package"])) not in self.world.table(IMAGES):
            raise Refused(5, "Requested entity was not found.")
        return name

    def _tag(self, request: Request) -> dict[str, str]:
        package = self._package(request)
        tag = self.world.table(IMAGES)[package]
        return {"name": f"{package}/tags/{tag}", "version": f"{package}/versions/{VERSION}"}

    def _version(self, request: Request) -> dict[str, Any]:
        package = self._package(request)
        when = {"createTime": "2026-11-22T10:00:00Z", "updateTime": "2026-11-22T10:00:00Z"}
        size = {"metadata": {"imageSizeBytes": "1000", "mediaType": "application/vnd.docker.distribution.manifest.v2"}}
        return {"name": f"{package}/versions/{VERSION}", "relatedTags": [self._tag(request)], **when, **size}

    def _below(self, table: str, request: Request) -> list[Any]:
        start = f"{_name(request.path)}/"
        return [one for name, one in self.world.table(table).items() if name.startswith(start)]


def _name(path: str) -> str:
    return path.removeprefix("/v1/")
