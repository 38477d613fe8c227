"""Cloud Build, as REST.

A build does what one would: it fetches the archive, looks for what the Dockerfile copies, writes its log into the
bucket and pushes. Nothing is run, and every build gives another digest, as real ones do. A fault `inside` of
`builds.create` ends one with the status that is the fault's reason, its message as the log's last lines.
"""

import fnmatch
import io
import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taetpu.cloud.fakes.images import REPOSITORIES, push
from taetpu.cloud.fakes.objects import Stored
from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.storage import OBJECTS
from taetpu.cloud.fakes.world import Pending, Refused, World

ENDS = {"FAILURE", "INTERNAL_ERROR", "TIMEOUT", "CANCELLED", "EXPIRED"}


def routes(world: World) -> list[Route]:
    """The calls of the service. Archives and logs are objects of the fake Cloud Storage of the same world."""
    builds, place = _Builds(world), r"/v1/(?P<parent>projects/[^/]+/locations/(?P<zone>[^/]+))"
    calls = [
        ("builds.create", "POST", f"{place}/builds", builds.create),
        ("builds.list", "GET", f"{place}/builds", builds.listed),
        ("builds.get", "GET", f"{place}/builds/(?P<build>[^/]+)", builds.get),
    ]
    return [Route("cloudbuild", name, method, pattern, answer) for name, method, pattern, answer in calls]


@dataclass
class Build:
    """One build: what was asked for, and what became of it."""

    given: Mapping[str, Any]
    pending: Pending
    begun: float
    status: str = "QUEUED"
    detail: str = ""
    digest: str = ""

    def resource(self) -> dict[str, Any]:
        failed = self.status in ENDS - {"CANCELLED", "EXPIRED"}
        step = {"status": self.status if failed else "SUCCESS"} if self.status in (*ENDS, "SUCCESS") else {}
        told = {**self.given, "status": self.status, "steps": [{**one, **step} for one in self.given["steps"]]}
        if self.status == "FAILURE":
            told["failureInfo"] = {"type": "USER_BUILD_STEP", "detail": self.detail}
        if self.digest:
            told["results"] = {"images": [{"name": name, "digest": self.digest} for name in self.given["images"]]}
        return told


class _Builds:
    def __init__(self, world: World):
        self.world = world
        self.builds: dict[str, Build] = {}

    def create(self, request: Request) -> Any:
        given, number = request.json(), f"build-{len(self.builds) + 1:04d}"
        source = given["source"]["storageSource"]
        if f"{source['bucket']}/{source['object']}" not in self.world.table(OBJECTS):
            raise Refused(3, f"source object gs://{source['bucket']}/{source['object']} was not found")
        given |= {"id": number, "name": f"{request.parts['parent']}/builds/{number}", "projectId": self.world.project}
        pending = self.world.operation("builds.create", request.parts["zone"], lambda: None)
        self.builds[number] = Build(given, pending, self.world.now())
        metadata = {"@type": "type.googleapis.com/google.devtools.cloudbuild.v1.BuildOperationMetadata"}
        told = self.builds[number].resource()
        return {"name": f"operations/build/{self.world.project}/{number}", "metadata": {**metadata, "build": told}}

    def listed(self, request: Request) -> Any:
        wanted = re.fullmatch(r'tags="(.*)"', request.query.get("filter", ""))
        found = [one for one in self.builds.values() if wanted is None or wanted[1] in one.given.get("tags", ())]
        return {"builds": [one.resource() for one in found]}

    def get(self, request: Request) -> Any:
        build = self.builds.get(request.parts["build"])
        if build is None:
            raise Refused(5, "Requested entity was not found.")
        if build.status not in (*ENDS, "SUCCESS"):
            self._go_on(build)
        return build.resource()

    def _go_on(self, build: Build) -> None:
        """One step further each time that somebody asks: queued, working, ended."""
        if self.world.now() - build.begun > int(str(build.given.get("timeout", "3600s")).removesuffix("s")):
            self._end(build, "TIMEOUT", ["TIMEOUT"])
        elif build.pending.poll():
            error = build.pending.error
            if error:
                status = error.reason if error.reason in ENDS else "FAILURE"
                self._end(build, status, error.message.splitlines())
            else:
                self._work(build)
        else:
            build.status = "WORKING"
            self._log(build, ["FETCHSOURCE", "BUILD", 'Step #0 - "build": Sending build context'])

    def _work(self, build: Build) -> None:
        """What the service would do, as far as nothing has to run for it."""
        try:
            files = self._files(build.given["source"]["storageSource"])
            missing = [name for name in _copied(files["Dockerfile"].decode()) if not fnmatch.filter(files, name)]
            if missing:
                raise Refused(9, f"COPY failed: no source files were specified: {missing[0]}")
            for image in build.given["images"]:
                build.digest = self._pushed(build, image)
        except (KeyError, tarfile.TarError) as error:
            self._end(build, "FAILURE", [f"unable to prepare context: {error}"])
        except Refused as refused:
            self._end(build, "FAILURE", [refused.message])
        else:
            self._end(build, "SUCCESS", ["PUSH", "DONE"])

    def _files(self, source: Mapping[str, str]) -> dict[str, bytes]:
        stored = self.world.table(OBJECTS)[f"{source['bucket']}/{source['object']}"]
        with tarfile.open(fileobj=io.BytesIO(stored.data), mode="r:gz") as tar:
            return {one.name: file.read() for one in tar if (file := tar.extractfile(one))}

    def _pushed(self, build: Build, image: str) -> str:
        found = re.fullmatch(r"([a-z0-9-]+)-docker\.pkg\.dev/([^/]+)/([^/]+)/([^/:]+):(.+)", image)
        if found is None:
            raise Refused(9, f"denied: {image} is no address of Artifact Registry")
        region, project, repository, name, tag = found.groups()
        path = f"projects/{project}/locations/{region}/repositories/{repository}"
        if path not in self.world.table(REPOSITORIES):
            raise Refused(9, f'name unknown: Repository "{repository}" not found')
        manifest = json.dumps({"image": image, "build": build.given["id"]}).encode()
        return push(self.world, f"{path}/packages/{name}", tag, manifest)

    def _end(self, build: Build, status: str, lines: list[str]) -> None:
        build.status, build.detail = status, lines[-1] if status == "FAILURE" else ""
        self._log(build, [f'Step #0 - "build": {line}' for line in lines] if status != "SUCCESS" else lines)

    def _log(self, build: Build, lines: list[str]) -> None:
        """Add lines to the log in the bucket."""
        bucket, _, folder = build.given["logsBucket"].removeprefix("gs://").partition("/")
        name = f"{folder}/log-{build.given['id']}.txt".lstrip("/")
        objects, now = self.world.table(OBJECTS), self.world.now()
        before = objects[f"{bucket}/{name}"].data if f"{bucket}/{name}" in objects else b""
        data = before + "".join(f"{line}\n" for line in lines).encode()
        objects[f"{bucket}/{name}"] = Stored(bucket, name, data, int(now * 1e6), now, now, type="text/plain")


def _copied(dockerfile: str) -> list[str]:
    """What a Dockerfile copies out of its context."""
    lines = [line.split() for line in dockerfile.splitlines() if line.startswith("COPY ")]
    return [name for words in lines for name in words[1:-1] if not name.startswith("--")]
