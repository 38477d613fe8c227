"""`taetpu image build`, `push`, `list` and `delete`: what jobs run in, made and removed."""

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import DryRun, Yes, agreed
from taetpu.cli.options import AsJson
from taetpu.cli.tables import fitting, say, show_json, show_table

if TYPE_CHECKING:
    from taetpu.cloud.image.context import Context
    from taetpu.cloud.image.registry import Image, Registry
    from taetpu.core.chips import Chip

app = typer.Typer(
    help="Container images for TPU machines, in Artifact Registry.\n\nExample: taetpu image build --write",
    no_args_is_help=True,
)

Region = Annotated[str, typer.Option(help="Where the repository is; else the settings' region, or their first zone's.")]
Type = Annotated[str, typer.Option("--type", help="The slice it is for, as in v6e-8: says what --torch auto is.")]
PyTorch = Annotated[str, typer.Option(help="none, torch_xla, torch_tpu, or auto: what suits --type.")]
Index = Annotated[str, typer.Option("--torch-index", help="One more index of packages, e.g. of CPU builds.")]
Base = Annotated[str, typer.Option("--python", help="The base image, a slim Python of 3.12 or later.")]
BaseDigest = Annotated[str, typer.Option("--python-digest", help="sha256:...; else what the tag means that day.")]
Write = Annotated[bool, typer.Option("--write", help="Put its address into taetpu.toml, as image.")]
Local = Annotated[str, typer.Option("--engine", help="cloud-build, or docker or podman on this machine.")]


@app.command()
def build(
    kind: Type = "",
    torch: PyTorch = "none",
    torch_index: Index = "",
    python: Base = "",
    python_digest: BaseDigest = "",
    engine: Local = "cloud-build",
    region: Region = "",
    timeout: Annotated[int, typer.Option(min=1, max=1440, help="Minutes after which Cloud Build ends it.")] = 60,
    write: Write = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build the image of the package that runs here. One that is there already is not; docker's is then to be pushed.

    Example: taetpu image build --type v6e-8 --torch auto --write
    """
    from taetpu.cloud.image import engine as engines

    _check_engine(engine)
    place = here()
    context = _context(kind, torch, torch_index, python, python_digest)
    registry = _registry(place, region)
    image = f"{registry.repository.image}:{context.tag}"
    if digest := registry.find(context.tag):
        tell(f"{context.tag} is in the registry already: nothing is built")
        _show(registry, context.tag, digest, built=False, write=write and not dry_run, as_json=as_json)
        return
    if engine == "cloud-build":
        _by_cloud_build(place, registry, context, timeout, write, dry_run, as_json)
        return
    local = engines.engine(engine, tell)
    if local.has(image):
        tell(f"{image} is here already: nothing is built")
    else:
        tell(fitting(_plan(image, context, f"by {engine} on this machine")))
        if dry_run:
            tell("dry run: nothing was changed")
            return
        local.build(context, image)
    tell("`taetpu image push` with the same options puts it into the registry")
    show_json({"image": image, "tag": context.tag, "digest": None}) if as_json else typer.echo(image)


@app.command()
def push(
    kind: Type = "",
    torch: PyTorch = "none",
    torch_index: Index = "",
    python: Base = "",
    python_digest: BaseDigest = "",
    engine: Local = "docker",
    region: Region = "",
    write: Write = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put what `build --engine docker` made into the registry. Give it the same options; it never builds.

    Example: taetpu image push --engine podman --write
    """
    from taetpu.cloud.errors import NotFound, Unknown
    from taetpu.cloud.image import engine as engines
    from taetpu.core.errors import UserError

    if engine == "cloud-build":
        raise UserError("Cloud Build pushes what it builds itself", remedy="--engine docker or podman")
    _check_engine(engine)
    place = here()
    context = _context(kind, torch, torch_index, python, python_digest)
    registry = _registry(place, region)
    image = f"{registry.repository.image}:{context.tag}"
    digest = registry.find(context.tag)
    if digest:
        tell(f"{context.tag} is in the registry already: nothing is pushed")
    else:
        local = engines.engine(engine, tell)
        if not local.has(image):
            problem = f"{engine} has no {image}"
            raise NotFound(problem, remedy=f"`taetpu image build --engine {engine}` with the same options makes it")
        missing = "" if registry.there() else f"make the repository {registry.repository.path}\n"
        tell(f"{missing}push {image}")
        if dry_run:
            tell("dry run: nothing was changed")
            return
        registry.ensure(place.settings.owner)
        local.push(image, place.clients)
        digest = registry.find(context.tag)
        if not digest:
            raise Unknown(f"{image} was pushed, and is not in the registry", remedy="give the same command again")
    _show(registry, context.tag, digest, built=False, write=write and not dry_run, as_json=as_json)


@app.command("list")
def list_images(region: Region = "", as_json: AsJson = False) -> None:
    """Images of the repository: tags, size, age, and who uses them.

    Example: taetpu image list
    """
    place = here()
    registry = _registry(place, region)
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


@app.command()
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
    registry = _registry(place, region)
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


def _by_cloud_build(
    place: Here, registry: "Registry", context: "Context", minutes: int, write: bool, dry_run: bool, as_json: bool
) -> None:
    from taetpu.cloud.image.cloudbuild import FOLDER, CloudBuild, needs_bucket
    from taetpu.cloud.reconcile import Waits

    bucket = needs_bucket(place.settings.bucket)
    if not registry.there():
        tell(f"make the repository {registry.repository.path}")
    plan = _plan(f"{registry.repository.image}:{context.tag}", context, f"by Cloud Build from gs://{bucket}/{FOLDER}")
    billed = "  Google bills build minutes and the registry's storage past what is free; no rate is looked up"
    tell(fitting(f"{plan}\n{billed}"))
    if dry_run:
        tell("dry run: nothing was changed")
        return
    registry.ensure(place.settings.owner)
    builder = CloudBuild(place.clients, registry, bucket, minutes, Waits.here(), tell)
    _show(registry, context.tag, builder.build(context), built=True, write=write, as_json=as_json)


def _context(kind: str, torch: str, index: str, python: str, digest: str) -> "Context":
    """What the options ask for.

    Raises:
        UserError: one of them is nothing that can be built.
    """
    from taetpu.cloud.image.context import Recipe, context, doubts, torch_of
    from taetpu.core.chips import resolve
    from taetpu.core.errors import UserError

    chip: Chip | None = resolve(kind).generation if kind else None
    chosen = torch_of(torch, chip)
    if doubt := doubts(chosen, chip):
        tell(doubt)
    if digest and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        remedy = "sha256: and 64 hexadecimal digits, as `docker buildx imagetools inspect` prints it"
        raise UserError(f"{digest!r} is no digest", remedy=remedy)
    return context(Recipe(chosen, index if chosen != "none" else "", python, digest))


def _registry(place: Here, region: str) -> "Registry":
    from taetpu.cloud.image.registry import Registry, repository
    from taetpu.cloud.reconcile import Waits

    clients = place.clients
    return Registry(clients, repository(place.settings, region), Waits.here(), tell)


def _check_engine(engine: str) -> None:
    from taetpu.cloud.image.engine import ENGINES
    from taetpu.core.errors import UserError, suggest

    if engine not in ("cloud-build", *ENGINES):
        raise UserError(f"there is no engine {engine!r}", remedy=suggest(engine, ["cloud-build", *ENGINES]))


def _plan(image: str, context: "Context", how: str) -> str:
    """What a build would do, in lines."""
    arguments = ", ".join(f"{name}={value}" for name, value in context.arguments.items())
    lines = [f"build {image}", f"  {how}, of {len(context.files)} files, {context.size / 1e6:.1f} MB, {arguments}"]
    if "PYTHON_DIGEST" not in context.arguments:
        lines.append("  the base image is what its tag means on that day; --python-digest pins it")
    return "\n".join(lines)


def _show(registry: "Registry", tag: str, digest: str, *, built: bool, write: bool, as_json: bool) -> None:
    """The address of what is in the registry; and into the settings with it, if that is asked for."""
    address = f"{registry.repository.image}@{digest}"
    show_json({"image": address, "tag": tag, "digest": digest, "built": built}) if as_json else typer.echo(address)
    if write:
        from taetpu.cloud.settings_file import write as write_setting

        tell(f"image is set in {write_setting('image', address)}")


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
    found = re.fullmatch(r"(\d+)([dh])", text)
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
