"""`taetpu image build` and `push`: what jobs run in, made; see `images` for what there is of it."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli import images
from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import DryRun, Yes, agreed
from taetpu.cli.images import Region, registry_of
from taetpu.cli.options import AsJson, integer
from taetpu.cli.tables import show_json

if TYPE_CHECKING:
    from taetpu.cloud.image.context import Context
    from taetpu.cloud.image.registry import Registry
    from taetpu.core.chips import Chip

app = typer.Typer(
    help="Container images for TPU machines, in Artifact Registry.\n\nExample: taetpu image build --write",
    no_args_is_help=True,
)

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
    timeout: Annotated[int, integer(least=1, most=1440, help="Minutes after which Cloud Build ends it.")] = 60,
    write: Write = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Build the image of the package that runs here. One that is there already is not; docker's is then to be pushed.

    Example: taetpu image build --type v6e-8 --torch auto --write
    """
    from taetpu.cloud.image import engine as engines

    _check_engine(engine)
    place = here()
    context = _context(kind, torch, torch_index, python, python_digest)
    registry = registry_of(place, region)
    image = f"{registry.repository.image}:{context.tag}"
    if digest := registry.find(context.tag):
        tell(f"{context.tag} is in the registry already: nothing is built")
        _show(registry, context.tag, digest, built=False, write=write and not dry_run, as_json=as_json)
        return
    if engine == "cloud-build":
        if digest := _by_cloud_build(place, registry, context, timeout, yes, dry_run):
            _show(registry, context.tag, digest, built=True, write=write, as_json=as_json)
        return
    local = engines.engine(engine, tell)
    if local.has(image):
        tell(f"{image} is here already: nothing is built")
    else:
        plan = _plan(image, context, f"by {engine} on this machine, where it costs nothing")
        if not agreed(plan, "Build it?", yes=yes, dry_run=dry_run):
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
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Put what `build --engine docker` made into the registry. Give it the same options; it never builds.

    Example: taetpu image push --engine podman --write
    """
    from taetpu.cloud import charges
    from taetpu.cloud.errors import NotFound, Unknown
    from taetpu.cloud.image import engine as engines
    from taetpu.core.errors import UserError

    if engine == "cloud-build":
        raise UserError("Cloud Build pushes what it builds itself", remedy="--engine docker or podman")
    _check_engine(engine)
    place = here()
    context = _context(kind, torch, torch_index, python, python_digest)
    registry = registry_of(place, region)
    image = f"{registry.repository.image}:{context.tag}"
    digest = registry.find(context.tag)
    if digest:
        tell(f"{context.tag} is in the registry already: nothing is pushed")
    else:
        local = engines.engine(engine, tell)
        if not local.has(image):
            problem = f"{engine} has no {image}"
            raise NotFound(problem, remedy=f"`taetpu image build --engine {engine}` with the same options makes it")
        plan = f"{_missing(registry)}push {image}\n  {charges.images()}"
        if not agreed(place.noted(plan), "Push it?", yes=yes, dry_run=dry_run):
            return
        registry.ensure(place.settings.owner)
        local.push(image, place.clients)
        digest = registry.find(context.tag)
        if not digest:
            raise Unknown(f"{image} was pushed, and is not in the registry", remedy="give the same command again")
    _show(registry, context.tag, digest, built=False, write=write and not dry_run, as_json=as_json)


def _by_cloud_build(
    place: Here, registry: "Registry", context: "Context", minutes: int, yes: bool, dry_run: bool
) -> str:
    """The digest of what was built; "" where that was not agreed to."""
    from taetpu.cloud import charges
    from taetpu.cloud.image.cloudbuild import FOLDER, CloudBuild, needs_bucket
    from taetpu.cloud.project import Waits

    bucket = needs_bucket(place.settings.bucket)
    plan = _plan(f"{registry.repository.image}:{context.tag}", context, f"by Cloud Build from gs://{bucket}/{FOLDER}")
    plan = f"{_missing(registry)}{plan}\n  {charges.build(minutes)}\n  {charges.images()}"
    if not agreed(place.noted(plan), "Build it?", yes=yes, dry_run=dry_run):
        return ""
    registry.ensure(place.settings.owner)
    return CloudBuild(place.clients, registry, bucket, minutes, Waits.here(), tell).build(context)


def _missing(registry: "Registry") -> str:
    """The line of a plan that makes the repository; "" where it is there."""
    return "" if registry.there() else f"make the repository {registry.repository.path}\n"


def _context(kind: str, torch: str, index: str, python: str, digest: str) -> "Context":
    """What the options ask for.

    Raises:
        UserError: one of them is nothing that can be built.
    """
    from taetpu.cloud.image.context import Recipe, check_python, context, doubts, torch_of
    from taetpu.core.chips import resolve
    from taetpu.core.errors import UserError

    chip: Chip | None = resolve(kind).generation if kind else None
    chosen = torch_of(torch, chip)
    if doubt := doubts(chosen, chip):
        tell(doubt)
    if digest and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        remedy = "sha256: and 64 hexadecimal digits, as `docker buildx imagetools inspect` prints it"
        raise UserError(f"{digest!r} is no digest", path=("--python-digest",), remedy=remedy)
    if python:
        check_python(python)
    return context(Recipe(chosen, index if chosen != "none" else "", python, digest))


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


app.command("list")(images.list_images)
app.command()(images.delete)
