"""Artifact Registry, and as much of a registry as a push ends with, as REST."""

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from taetpu.cloud.fakes.server import Answer, Request, Route
from taetpu.cloud.fakes.world import Pending, Refused, World

REPOSITORIES, VERSIONS = "artifactregistry.repositories", "artifactregistry.versions"
PAGE = 100


def routes(world: World) -> list[Route]:
    """The calls of the registry."""
    registry = _Registry(world)
    place = r"/v1/(?P<parent>projects/[^/]+/locations/(?P<zone>[^/]+))"
    repository = f"{place}/repositories/(?P<repository>[^/]+)"
    package = f"{repository}/packages/(?P<package>[^/]+)"
    calls = [
        ("artifactregistry", "repositories.create", "POST", f"{place}/repositories", registry.create),
        ("artifactregistry", "repositories.get", "GET", repository, registry.get),
        ("artifactregistry", "repositories.delete", "DELETE", repository, registry.drop),
        ("artifactregistry", "dockerImages.list", "GET", f"{repository}/dockerImages", registry.images),
        ("artifactregistry", "tags.get", "GET", f"{package}/tags/(?P<tag>[^/]+)", registry.tag),
        ("artifactregistry", "tags.delete", "DELETE", f"{package}/tags/(?P<tag>[^/]+)", registry.untag),
        ("artifactregistry", "versions.batchDelete", "POST", f"{package}/versions:batchDelete", registry.delete),
        ("artifactregistry", "operations.get", "GET", f"{place}/operations/(?P<operation>[^/]+)", registry.operation),
        ("docker", "manifests.put", "PUT", r"/v2/(?P<name>.+)/manifests/(?P<tag>[^/]+)", registry.manifest),
    ]
    return [Route(service, name, method, pattern, answer) for service, name, method, pattern, answer in calls]


class _Registry:
    def __init__(self, world: World):
        self.world = world

    def create(self, request: Request) -> Any:
        parent = request.parts["parent"]
        name = f"{parent}/repositories/{request.query['repositoryId']}"
        if name in self.world.table(REPOSITORIES):
            raise Refused(6, "the repository already exists", "ALREADY_EXISTS")
        given = request.json()
        given["format"] = {1: "DOCKER"}.get(given["format"], given["format"])  # the client tells enums by their numbers
        made = {"mode": "STANDARD_REPOSITORY", **given, "name": name, "createTime": _told(self.world.now())}

        def finish() -> Any:
            self.world.table(REPOSITORIES)[name] = made
            return {"@type": "type.googleapis.com/google.devtools.artifactregistry.v1.Repository", **made}

        return self._started("repositories.create", parent, finish)

    def get(self, request: Request) -> Any:
        return self._repository(request)

    def drop(self, request: Request) -> Any:
        """The repository goes with all that is in it."""
        name = self._repository(request)["name"]

        def finish() -> Any:
            self.world.table(REPOSITORIES).pop(name, None)
            versions = self.world.table(VERSIONS)
            for path in [path for path in versions if path.startswith(f"{name}/")]:
                del versions[path]
            return {"@type": "type.googleapis.com/google.protobuf.Empty"}

        return self._started("repositories.delete", request.parts["parent"], finish)

    def images(self, request: Request) -> Any:
        """Every image of the repository, in pages."""
        path = self._repository(request)["name"]
        found = [one for one in self.world.table(VERSIONS).values() if one.path.startswith(f"{path}/")]
        found.sort(key=lambda one: one.digest)
        start, size = int(request.query.get("pageToken") or 0), int(request.query.get("pageSize") or PAGE)
        more = {"nextPageToken": str(start + size)} if start + size < len(found) else {}
        return {"dockerImages": [one.resource() for one in found[start : start + size]], **more}

    def tag(self, request: Request) -> Any:
        package, tag = self._package(request), unquote(request.parts["tag"])
        for one in self._versions(package):
            if tag in one.tags:
                return {"name": f"{package}/tags/{tag}", "version": one.path}
        raise Refused(5, "Requested entity was not found.")

    def untag(self, request: Request) -> Any:
        package, tag = self._package(request), unquote(request.parts["tag"])
        for one in self._versions(package):
            if tag in one.tags:
                one.tags.remove(tag)
                return {}
        raise Refused(5, "Requested entity was not found.")

    def delete(self, request: Request) -> Any:
        """One that has tags is not deleted, nor is any of the rest then."""
        package, names = self._package(request), request.json()["names"]
        table = self.world.table(VERSIONS)
        if missing := [name for name in names if name not in table or not name.startswith(f"{package}/")]:
            raise Refused(5, f"version {missing[0]} was not found")
        if tagged := [name for name in names if table[name].tags]:
            raise Refused(9, f"cannot delete version {tagged[0]!r} because it is tagged")

        def finish() -> Any:
            for name in names:
                table.pop(name, None)
            return {"@type": "type.googleapis.com/google.protobuf.Empty"}

        return self._started("versions.batchDelete", request.parts["parent"], finish)

    def operation(self, request: Request) -> Any:
        pending = self.world.operations.get(request.parts["operation"])
        if pending is None:
            raise Refused(5, "Requested entity was not found.")
        pending.poll()
        return _operation(pending)

    def manifest(self, request: Request) -> Answer:
        """The end of a push, as the OCI distribution specification has it: the manifest of a name under a tag."""
        project, repository, package = unquote(request.parts["name"]).rsplit("/", 2)
        host = request.headers.get("x-registry", "")  # a real registry is told by its address
        region = host.removesuffix("-docker.pkg.dev")
        path = f"projects/{project}/locations/{region}/repositories/{repository}"
        if path not in self.world.table(REPOSITORIES):
            raise Refused(5, f'Repository "{repository}" not found')
        digest = push(self.world, f"{path}/packages/{package}", request.parts["tag"], request.body)
        return Answer(201, {"Docker-Content-Digest": digest})

    def _repository(self, request: Request) -> dict[str, Any]:
        name = f"{request.parts['parent']}/repositories/{unquote(request.parts['repository'])}"
        if name not in self.world.table(REPOSITORIES):
            raise Refused(5, f"Repository {name!r} was not found", "NOT_FOUND")
        return self.world.table(REPOSITORIES)[name]

    def _package(self, request: Request) -> str:
        return f"{self._repository(request)['name']}/packages/{unquote(request.parts['package'])}"

    def _versions(self, package: str) -> "list[Version]":
        return [one for one in self.world.table(VERSIONS).values() if one.package == package]

    def _started(self, call: str, parent: str, finish: Any) -> Any:
        zone = parent.rpartition("/")[2]
        return _operation(self.world.operation(call, zone, finish, parent=parent))


@dataclass
class Version:
    """An image in a repository. `package` is its path up to the digest."""

    package: str
    digest: str
    size: int
    uploaded: float
    tags: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"{self.package}/versions/{self.digest}"

    def resource(self) -> dict[str, Any]:
        _, project, _, region, _, repository, _, name = self.package.split("/")
        return {
            "name": f"{self.package.rpartition('/packages/')[0]}/dockerImages/{name}@{self.digest}",
            "uri": f"{region}-docker.pkg.dev/{project}/{repository}/{name}@{self.digest}",
            "tags": self.tags,
            "imageSizeBytes": str(self.size),
            "uploadTime": _told(self.uploaded),
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        }


def push(world: World, package: str, tag: str, manifest: bytes) -> str:
    """Put an image into a repository under a tag, which it takes from another; its digest."""
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    table = world.table(VERSIONS)
    for one in table.values():
        if one.package == package and tag in one.tags:
            one.tags.remove(tag)
    made = Version(package, digest, len(manifest), world.now())
    table.setdefault(made.path, made).tags.append(tag)
    return digest


def _operation(pending: Pending) -> dict[str, Any]:
    told: dict[str, Any] = {"name": f"{pending.about['parent']}/operations/{pending.name}", "done": pending.done}
    if pending.done:
        told |= {"error": _status(pending.error)} if pending.error else {"response": pending.result}
    return told


def _status(error: Refused) -> dict[str, Any]:
    """An operation's error, as google.rpc.Status has it."""
    kind = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "googleapis.com"}
    info = [{**kind, "reason": error.reason, "metadata": error.facts}] if error.facts else []
    return {"code": error.code, "message": error.message, "details": info}


def _told(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
