"""`taetpu image list` and `delete`: what is in the registry, who uses it, and its removal."""

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import DryRun, Yes, agreed
from taetpu.cli.options import AsJson
from taetpu.cli.tables import say, show_json, show_table

if TYPE_CHECKING:
    from taetpu.cloud.image.registry import Image, Registry

Region = Annotated[str, typer.Option(help="Where the repository is; else the settings' region, or their first zone's.")]


def list_images(region: Region = "", as_json: AsJson = False) -> None:
    """Images of the repository: tags, size, age, and who uses them.

    Example: taetpu image list
    """
    place = here()
    registry = registry_of(place, region)
    images = registry.images()
    used, asked = _users(place, images)
    if as_json:
        show_json([_image(registry, image, used) for image in images])
        return
    if not images:
        typer.echo(f"no image is in {registry.repository.image}")
        return
    show_table([_row(image, used) for image in images])
    typer.echo("")
    say(f"{registry.repository.image}, {sum(image.size for image in images) / 1e9:.1f} GB together.")
    if not asked:
        say("The machines could not be asked which they use.")


def delete(
    names: Annotated[list[str] | None, typer.Argument(metavar="TAG|DIGEST", help="Which.")] = None,
    older_than: Annotated[str, typer.Option(help="All that are older, as in 30d or 12h.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also those that are in use.")] = False,
    local: Annotated[bool, typer.Option("--local", help="Also the copies that docker or podman has here.")] = False,
    repository: Annotated[bool, typer.Option("--repository", help="With --all: the empty repository too.")] = False,
    region: Region = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove images from the registry. Other people's, and other repositories', are never touched.

    Example: taetpu image delete --older-than 30d --dry-run
    """
    from taetpu.cloud.errors import Conflict
    from taetpu.cloud.image.registry import chosen
    from taetpu.core.errors import UserError

    if not (names or older_than or everything):
        raise UserError("which images is not said", remedy="tags or digests, --older-than 30d, or --all")
    if repository and not everything:
        raise UserError("--repository goes with all images", remedy="--all --repository, or leave --repository out")
    place, age = here(), _seconds(older_than)
    registry = registry_of(place, region)
    images = registry.images()
    doomed = images if everything else chosen(images, names or [], age, time.time())
    used, asked = _users(place, doomed)
    kept = [image for image in doomed if used[image.digest]]
    if kept and not force:
        who = "; ".join(f"{_name(image)} by {', '.join(used[image.digest])}" for image in kept)
        remedy = "--force deletes them all the same: a machine that starts again will not find its own"
        raise Conflict(f"in use: {who}", remedy=remedy)
    if doomed and not asked and not force:
        problem = "the machines could not be asked whether they use these images"
        raise Conflict(problem, remedy="`taetpu doctor` says why; --force deletes them all the same")
    copies = _copies(registry, doomed, all_of_them=everything)
    repository = repository and registry.check_alone(place.settings.owner)
    if not doomed and not repository and not (local and copies):
        tell(f"nothing to delete is in {registry.repository.image}")
    lines = [f"delete {_name(image)}: {image.size / 1e9:.2f} GB, {_age(image.uploaded)} old" for image in doomed]
    held = [(command, name) for command, found in copies.items() for name in found]
    lines += [f"{'remove' if local else 'stays:'} the copy that {command} has of {name}" for command, name in held]
    if held and not local:
        lines.append("--local removes the copies too")
    if repository:
        lines.append(f"delete the repository {registry.repository.name} in {registry.repository.region}")
    work = bool(doomed) or repository or (local and bool(held))
    if work and not agreed("\n".join(lines), "Delete them?", yes=yes, dry_run=dry_run):
        return
    if work:
        registry.delete(doomed)
        if repository:
            registry.remove()
        if local:
            _forget(copies)


def registry_of(place: Here, region: str) -> "Registry":
    from taetpu.cloud.image.registry import Registry, repository
    from taetpu.cloud.project import Waits

    clients = place.clients
    return Registry(clients, repository(place.settings, region), Waits.here(), tell)


def _users(place: Here, images: "list[Image]") -> tuple[dict[str, list[str]], bool]:
    """Who uses each image, by digest; and whether the machines could be asked."""
    from taetpu.cloud.errors import CloudError
    from taetpu.cloud.image.registry import users

    try:
        machines, asked = place.cloud.machines(), True
    except CloudError as error:
        tell(f"the machines could not be asked: {error.problem}")
        machines, asked = [], False
    return users(images, place.settings.image, machines), asked


def _copies(registry: "Registry", images: "list[Image]", *, all_of_them: bool) -> dict[str, list[str]]:
    """Local copies of images by the engine that has them, under their full names."""
    from taetpu.cloud.image.engine import present
    from taetpu.core.errors import UserError

    tags = {tag for image in images for tag in image.tags}
    found: dict[str, list[str]] = {}
    for local in present(tell):
        try:
            here = local.copies(registry.repository.image)
        except UserError:  # an engine that does not run has nothing to remove
            continue
        if names := [f"{registry.repository.image}:{tag}" for tag in here if all_of_them or tag in tags]:
            found[local.command] = names
    return found


def _forget(copies: dict[str, list[str]]) -> None:
    from taetpu.cloud.image.engine import engine

    for command, names in copies.items():
        engine(command, tell).remove(names)


def _seconds(text: str) -> float | None:
    """A length of time as it is written: 30d, 12h.

    Raises:
        UserError: it is none.
    """
    from taetpu.core.errors import UserError

    if not text:
        return None
    found = re.fullmatch(r"([0-9]+)([dh])", text)
    if found is None:
        raise UserError(f"--older-than {text!r} is no length of time", remedy="days or hours, as in 30d or 12h")
    return int(found[1]) * {"d": 86400.0, "h": 3600.0}[found[2]]


def _name(image: "Image") -> str:
    return ", ".join(image.tags) or image.digest[:19]


def _row(image: "Image", used: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "tags": ", ".join(image.tags) or "none",
        "digest": image.digest[7:19],
        "GB": f"{image.size / 1e9:.2f}",
        "age": _age(image.uploaded),
        "used by": ", ".join(used[image.digest]),
    }


def _image(registry: "Registry", image: "Image", used: dict[str, list[str]]) -> dict[str, Any]:
    address = f"{registry.repository.image}@{image.digest}"
    plain = {"image": address, "tags": list(image.tags), "bytes": image.size, "uploaded": image.uploaded}
    return plain | {"used_by": used[image.digest]}


def _age(moment: float) -> str:
    """How long ago, in days, or hours of the first two."""
    hours = max(0.0, time.time() - moment) / 3600
    return f"{hours / 24:.0f} d" if hours >= 48 else f"{hours:.0f} h"
