"""Images built by Google's Cloud Build, which needs no docker here.

The files go to the bucket's `tmp/` folder, where the build's log is written too; what it pushes to Artifact Registry
it pushes itself. A command that is interrupted leaves its build running: the next one with the same content finds it
by its tag and follows it.
"""

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from taetpu.cloud.clients import Clients, imported
from taetpu.cloud.errors import BuildFailed, CloudError, NotFound, Transient, Unknown
from taetpu.cloud.google_calls import explained, reading
from taetpu.cloud.image.context import Context
from taetpu.cloud.image.registry import Registry
from taetpu.cloud.project import Waits

FOLDER = "tmp/images"
"""In the bucket. What lies below `tmp/` is removed by the bucket's own rule."""

DOCKER = "gcr.io/cloud-builders/docker"
"""Google's own builder. Only reading from gcr.io: it is Artifact Registry that serves such names of Google's now."""

ALIVE = {"PENDING", "QUEUED", "WORKING", "STATUS_UNKNOWN"}
LINES = 15
"""Of a failed step's log, shown with the error."""


@dataclass(frozen=True)
class CloudBuild:
    """Builds in one project, with what they need in one bucket.

    Attributes:
        minutes: after which a build is ended by the service.
    """

    clients: Clients
    registry: Registry
    bucket: str
    minutes: int
    waits: Waits
    tell: Callable[[str], None]

    @cached_property
    def _client(self) -> Any:
        library = imported("google.cloud.devtools.cloudbuild_v1")
        transports = imported("google.cloud.devtools.cloudbuild_v1.services.cloud_build.transports")
        return self.clients.rest(library.CloudBuildClient, transports.CloudBuildRestTransport)

    @property
    def _parent(self) -> str:
        """Builds run wherever Google has room: some regions run none for projects with a small quota."""
        return f"projects/{self.clients.project}/locations/global"

    def build(self, context: Context) -> str:
        """Build and push; the digest.

        Raises:
            BuildFailed: a step failed, or the build took too long; with the last lines of its log.
            CloudError: the service refuses, or does not answer.
        """
        number = self._running(context.tag)
        if number:
            self.tell(f"build {number} of the same content is running already: following it")
        else:
            self._upload(context)
            number = self._started(context)
            self.tell(f"build {number} has begun")
        ended = self._followed(number)
        with suppress(CloudError), explained():  # the bucket's rule removes it otherwise
            self._object(f"{context.tag}.tar.gz").delete(retry=None)
        if ended.status.name != "SUCCESS":
            raise self._failed(ended)
        digest = next((image.digest for image in ended.results.images), "") or self.registry.find(context.tag)
        if not digest:
            raise Unknown(f"build {number} has ended well, and {context.tag} is not in the registry")
        return digest

    def _object(self, name: str) -> Any:
        return self.clients.storage.bucket(self.bucket).blob(f"{FOLDER}/{name}")

    def _upload(self, context: Context) -> None:
        """Put the files into the bucket, unless they are there: their name says what they are."""
        doing = f"uploading what the image is made of to gs://{self.bucket}/{FOLDER}"
        taken = imported("google.api_core.exceptions").PreconditionFailed
        with explained(doing=doing), suppress(taken):
            self._object(f"{context.tag}.tar.gz").upload_from_string(
                context.archive(), content_type="application/gzip", if_generation_match=0
            )

    def described(self, context: Context) -> dict[str, Any]:
        """The build, as the API takes it."""
        image = f"{self.registry.repository.image}:{context.tag}"
        arguments = [f"--build-arg={name}={value}" for name, value in sorted(context.arguments.items())]
        return {
            "source": {"storage_source": {"bucket": self.bucket, "object_": f"{FOLDER}/{context.tag}.tar.gz"}},
            "steps": [{"name": DOCKER, "id": "build", "args": ["build", f"--tag={image}", *arguments, "."]}],
            "images": [image],
            "tags": ["taetpu", context.tag],
            "timeout": {"seconds": self.minutes * 60},
            "logs_bucket": f"gs://{self.bucket}/{FOLDER}",
            "options": {"logging": "GCS_ONLY", "log_streaming_option": "STREAM_ON"},
        }

    def _started(self, context: Context) -> str:
        """Begin the build; its number, also where the answer was lost."""
        try:
            with explained(doing="beginning a build"):
                operation = self._client.create_build(
                    request={"parent": self._parent, "build": self.described(context)}
                )
                return operation.metadata.build.id
        except (Transient, Unknown) as error:
            self.tell(f"no clear answer ({error.problem}): looking whether the build has begun")
            for _ in self.waits.until(self.waits.settle):
                if number := self._running(context.tag):
                    return number
            raise

    def _running(self, tag: str) -> str:
        """The number of a build of the same content that has not ended; "" for none."""
        request = {"parent": self._parent, "filter": f'tags="{tag}"'}
        found = reading(
            lambda: list(self._client.list_builds(request=request, retry=None)), doing="looking for running builds"
        )
        return next((one.id for one in found if one.status.name in ALIVE and tag in one.tags), "")

    def _followed(self, number: str) -> Any:
        """The build once it has ended; its log is told on the way."""
        name, said = f"{self._parent}/builds/{number}", 0
        for _ in self.waits.until(math.inf):
            build = reading(
                lambda: self._client.get_build(request={"name": name}, retry=None), doing=f"following build {number}"
            )
            ended = build.status.name not in ALIVE
            lines = self._log(number)
            whole = lines if ended and lines[-1:] != [""] else lines[:-1]  # the last one may be half written
            for line in whole[said:]:
                self.tell(line)
            said = max(said, len(whole))
            if ended:
                return build
        raise AssertionError("waiting without an end has ended")

    def _log(self, number: str) -> list[str]:
        """What the log has so far. A log that is not there yet, or that the caller may not read, has no lines."""
        with suppress(CloudError), explained(reading=True):
            return self._object(f"log-{number}.txt").download_as_bytes(retry=None).decode(errors="replace").split("\n")
        return []

    def _failed(self, build: Any) -> BuildFailed:
        """Why a build failed: the step, the end of what it printed, and where all of it stands."""
        number, status = build.id, build.status.name
        where = f"gs://{self.bucket}/{FOLDER}/log-{number}.txt"
        if status == "TIMEOUT":
            problem = f"build {number} took more than {self.minutes} minutes and was ended; log: {where}"
            return BuildFailed(problem, remedy=f"give it more, e.g. --timeout {2 * self.minutes}")
        bad = [i for i, step in enumerate(build.steps) if step.status.name in ("FAILURE", "INTERNAL_ERROR", "TIMEOUT")]
        step = f"step {bad[0]} ({build.steps[bad[0]].id or build.steps[bad[0]].name})" if bad else "no step of it"
        reason = build.failure_info.detail or build.status_detail or status
        lines = [line for line in self._log(number) if line.strip()]
        own = [line for line in lines if bad and re.match(rf"Step #{bad[0]}\b", line)] or lines
        shown = "".join(f"\n    {line}" for line in own[-LINES:])
        problem = f"build {number} ended with {status}: {step} failed, {reason}; log: {where}{shown}"
        remedies = {"CANCELLED": "somebody cancelled it; the same command begins another", "EXPIRED": "try again later"}
        return BuildFailed(problem, remedy=remedies.get(status, "see what the log says, then give the same command"))


def needs_bucket(bucket: str) -> str:
    """The bucket that a build needs.

    Raises:
        NotFound: none is named.
    """
    if not bucket:
        remedy = 'bucket = "..." in taetpu.toml (`taetpu bucket create` makes one), or --engine docker'
        raise NotFound("Cloud Build needs a bucket to build from, and none is named", remedy=remedy)
    return bucket.removeprefix("gs://").rstrip("/")
