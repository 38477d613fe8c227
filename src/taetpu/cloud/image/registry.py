"""Images in Artifact Registry: the repository, what is in it under the name `taetpu`, and its removal.

Whatever else a repository holds is somebody else's and is never touched.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from taetpu.cloud.backends.base import Machine
from taetpu.cloud.catalogue import region as region_of
from taetpu.cloud.clients import Clients, imported
from taetpu.cloud.errors import Conflict, Invalid, NotFound, Unknown
from taetpu.cloud.google_calls import explained, reading
from taetpu.cloud.project import Waits
from taetpu.cloud.settings import Settings, check_region
from taetpu.cloud.spec import IMAGE, OWNER, image_label, label

NAME = "taetpu"
BATCH = 50
"""Versions deleted in one call; how many the service takes at most is not published."""


@dataclass(frozen=True)
class Repository:
    """Where images are kept. `REGION-docker.pkg.dev/PROJECT/REPOSITORY/taetpu` is what docker calls it."""

    project: str
    region: str
    name: str

    @property
    def host(self) -> str:
        return f"{self.region}-docker.pkg.dev"

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def path(self) -> str:
        return f"{self.parent}/repositories/{self.name}"

    @property
    def package(self) -> str:
        return f"{self.path}/packages/{NAME}"

    @property
    def image(self) -> str:
        """The address of our images, without a tag or a digest. A domain's project has its colon as a slash."""
        return f"{self.host}/{self.project.replace(':', '/')}/{self.name}/{NAME}"


@dataclass(frozen=True)
class Image:
    """One image of ours.

    Attributes:
        size: bytes, packed, as it lies in the registry.
        uploaded: seconds since 1970.
    """

    digest: str
    tags: tuple[str, ...]
    size: int
    uploaded: float


MULTI_REGION = ("asia", "europe", "us")
"""Places of more than one region, by https://docs.cloud.google.com/artifact-registry/docs/repositories/repo-locations."""


def repository(settings: Settings, region: str = "") -> Repository:
    """Where the images of these settings are kept: in the region given, the settings' own, or that of the first zone.

    Raises:
        Invalid: no region is said, or the repository's name is none.
        UserError: the region is none.
    """
    refuse_container_registry(settings.repository)
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", settings.repository):
        remedy = 'its name alone, as in repository = "taetpu": the project and the region have settings of their own'
        raise Invalid(f"{settings.repository!r} cannot be the name of a repository", remedy=remedy)
    where = region or settings.region or (region_of(settings.zones[0]) if settings.zones else "")
    if not where:
        remedy = "--region, or region or zones in taetpu.toml; it should be the TPU's, so that pulling it costs nothing"
        raise Invalid("no region is said for the image", remedy=remedy)
    if where not in MULTI_REGION:
        check_region(where, ("--region",))
    return Repository(settings.project, where, settings.repository)


def refuse_container_registry(address: str) -> None:
    """Refuse what would go to Container Registry.

    Raises:
        Invalid: it would. Source: https://cloud.google.com/artifact-registry/docs/transition/setup-gcr-repo
    """
    if re.match(r"(https?://)?([a-z]+\.)?gcr\.io(/|$)", address.strip()):
        problem = (
            f"{address!r} is in Container Registry, which was shut down on 2025-03-18: nothing can be written there"
        )
        raise Invalid(
            problem, remedy="REGION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE, as `taetpu image build` makes it"
        )


class Registry:
    """The images of one repository.

    Raises:
        CloudError: the service refuses, or does not answer.
    """

    def __init__(self, clients: Clients, repository: Repository, waits: Waits, tell: Callable[[str], None]):
        self.clients, self.repository, self.waits, self.tell = clients, repository, waits, tell

    @cached_property
    def _client(self) -> Any:
        library = imported("google.cloud.artifactregistry_v1")
        transports = imported("google.cloud.artifactregistry_v1.services.artifact_registry.transports")
        return self.clients.rest(library.ArtifactRegistryClient, transports.ArtifactRegistryRestTransport)

    def there(self) -> bool:
        """Whether there is such a repository for images.

        Raises:
            Conflict: it is for something else, or takes no images of ours.
        """
        name = self.repository.name
        try:
            found = reading(lambda: self._client.get_repository(name=self.repository.path), doing=f"looking for {name}")
        except NotFound:
            return False
        kind, mode = found.format_.name, found.mode.name
        if kind != "DOCKER" or mode in ("VIRTUAL_REPOSITORY", "REMOTE_REPOSITORY"):
            what = f"of format {kind}" if kind != "DOCKER" else f"a {mode.partition('_')[0].lower()} one"
            problem = f"the repository {name!r} in {self.repository.region} is {what}, which takes no images"
            raise Conflict(problem, remedy='another name: repository = "..." in taetpu.toml')
        return True

    def ensure(self, owner: str) -> None:
        """Make the repository if it is not there, with the owner's label."""
        if self.there():
            return
        place = f"{self.repository.name} in {self.repository.region}"
        self.tell(f"making the repository {place}")
        described = {
            "format_": "DOCKER",
            "description": "Images for TPU machines, made by taetpu",
            "labels": {OWNER: label(owner)},
        }
        doing = f"making the repository {place}"
        try:
            with explained(doing=doing):
                operation = self._client.create_repository(
                    parent=self.repository.parent, repository_id=self.repository.name, repository=described
                )
            self._finished(operation, doing)
        except (Conflict, Unknown):  # another command made it just now, or the answer was lost
            if not any(self.there() for _ in self.waits.until(self.waits.settle)):
                raise

    def find(self, tag: str) -> str | None:
        """The digest of what has the tag; None where nothing has."""
        name = f"{self.repository.package}/tags/{tag}"
        try:
            found = reading(lambda: self._client.get_tag(name=name), doing=f"looking for the tag {tag}")
        except NotFound:
            return None
        return found.version.rpartition("/")[2]

    def images(self) -> list[Image]:
        """All of ours, the newest first. No repository is no images."""
        ours = [one for one in self._all() if one.uri.startswith(f"{self.repository.image}@")]
        return sorted(map(_image, ours), key=lambda image: -image.uploaded)

    def check_alone(self, owner: str) -> bool:
        """Whether the repository is there, to be deleted with our images.

        Raises:
            Conflict: it is not the owner's, or other images are in it.
        """
        if not self.there():
            return False
        path, name = self.repository.path, f"{self.repository.name} in {self.repository.region}"
        labels = reading(lambda: self._client.get_repository(name=path), doing=f"looking for {name}").labels
        if labels.get(OWNER) != label(owner):
            whose = f"{labels[OWNER]}'s" if OWNER in labels else "not one that taetpu made"
            raise Conflict(f"the repository {name} is {whose}", remedy="delete it in the console, if it is yours")
        others = [one.uri for one in self._all() if not one.uri.startswith(f"{self.repository.image}@")]
        if others:
            problem = f"other images are in the repository {name}: {others[0]}"
            raise Conflict(problem, remedy="leave --repository out: images of ours alone are deleted then")
        return True

    def remove(self) -> None:
        """Delete the repository with whatever is in it, see `check_alone`."""
        doing = f"deleting the repository {self.repository.name}"
        with suppress(NotFound):
            with explained(doing=doing):
                operation = self._client.delete_repository(name=self.repository.path)
            self._finished(operation, doing)

    def _all(self) -> list[Any]:
        with suppress(NotFound):
            parent = self.repository.path
            return reading(lambda: list(self._client.list_docker_images(parent=parent)), doing="listing images")
        return []

    def delete(self, images: Sequence[Image]) -> None:
        """Remove images with their tags. What is gone already is fine.

        Raises:
            Unknown: some are still there; the message names them. The same command goes on.
        """
        for image in images:
            for tag in image.tags:  # a version that has tags is not deleted
                with suppress(NotFound), explained(doing=f"deleting the tag {tag}"):
                    self._client.delete_tag(name=f"{self.repository.package}/tags/{tag}")
        doing = f"deleting images of {self.repository.name}"
        for i in range(0, len(images), BATCH):
            names = [f"{self.repository.package}/versions/{image.digest}" for image in images[i : i + BATCH]]
            with suppress(NotFound):
                with explained(doing=doing):
                    request = {"parent": self.repository.package, "names": names}
                    operation = self._client.batch_delete_versions(request=request)
                self._finished(operation, doing)
        doomed = {image.digest for image in images}
        if left := [image.digest for image in self.images() if image.digest in doomed]:
            problem = f"still in {self.repository.name}: {', '.join(left)}"
            raise Unknown(problem, remedy="give the same command again, or delete them in the console")

    def _finished(self, operation: Any, doing: str) -> None:
        """Wait until an operation has ended.

        Raises:
            Unknown: it has not after all patience.
            CloudError: it ended badly.
        """
        for _ in self.waits.until(self.waits.ready):
            if reading(operation.done, doing=doing):
                with explained(doing=doing):
                    operation.result(timeout=1)
                return
        remedy = "give the same command again: it looks first whether it was done"
        raise Unknown(f"{doing} takes more than {self.waits.ready:.0f} s", remedy=remedy)


def _image(one: Any) -> Image:
    return Image(one.uri.rpartition("@")[2], tuple(sorted(one.tags)), one.image_size_bytes, one.upload_time.timestamp())


def users(images: Iterable[Image], address: str, machines: Iterable[Machine]) -> dict[str, list[str]]:
    """Who uses each image, by digest: the settings, whose `image` is the address, and machines made with it."""
    by_label: Mapping[str, list[str]] = {}
    for machine in machines:
        by_label.setdefault(machine.labels.get(IMAGE, ""), []).append(f"{machine.name} in {machine.zone}")
    found: dict[str, list[str]] = {}
    for image in images:
        named = address.endswith((f"/{NAME}@{image.digest}", *(f"/{NAME}:{tag}" for tag in image.tags)))
        found[image.digest] = [*(["taetpu.toml"] if named else []), *by_label.get(image_label(image.digest), [])]
    return found


def chosen(images: Sequence[Image], words: Sequence[str], older_than: float | None, now: float) -> list[Image]:
    """The images of these tags or digests (a digest's first 12 digits will do), and those older than so many seconds.

    Raises:
        NotFound: a word names none.
    """
    picked: dict[str, Image] = {}
    for word in words:
        refuse_container_registry(word)
        short = word.rpartition("@")[2].removeprefix("sha256:")
        digest = re.fullmatch(r"[0-9a-f]{12,64}", short) is not None
        hits = [i for i in images if word.rpartition(":")[2] in i.tags or (digest and i.digest[7:].startswith(short))]
        if not hits:
            known = ", ".join(tag for image in images for tag in image.tags) or "none is there"
            raise NotFound(f"there is no image {word!r}", remedy=f"`taetpu image list` shows them; tags: {known}")
        picked |= {image.digest: image for image in hits}
    if older_than is not None:
        picked |= {image.digest: image for image in images if now - image.uploaded > older_than}
    return list(picked.values())
