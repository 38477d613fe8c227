"""`taetpu image build | list | delete`: containers for jobs."""

from pathlib import Path
from typing import Annotated

import typer

from taetpu.cli.cloud import DryRun, Yes, confirm, read_settings, tell
from taetpu.cli.options import AsJson
from taetpu.cli.output import show_json, show_table

app = typer.Typer(help="Containers for jobs.\n\nExample: taetpu image build", no_args_is_help=True)


@app.command()
def build(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="With a Dockerfile.")] = Path(),
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Build a folder's Dockerfile with Cloud Build. The same content is built once.

    Jobs run in the image that `image` in taetpu.toml names.

    Example: taetpu image build
    """
    from taetpu.cloud import image
    from taetpu.cloud.gcloud import run

    settings = read_settings()
    name, tag = folder.resolve().name.lower(), image.content_tag(folder)
    address = image.address(settings, name, tag)
    lines = image.repository_commands(settings)
    built = not lines and any(tag in one.get("tags", ()) for one in image.list_images(settings))
    if built:
        tell(f"{address} exists: its content is the same")
    else:
        lines.append(image.build_command(settings, folder, name, tag))
        most = image.BUILD_MINUTES * image.BUILD_RATE
        plan = f"build {address} with Cloud Build: at most ${most:.2f} in {image.BUILD_MINUTES} min, then its storage"
        if not confirm(plan, "Build it?", lines, yes=yes, dry_run=dry_run):
            return
        for line in lines:
            run(line, 60.0 * (image.BUILD_MINUTES + 5))
    typer.echo(address)


@app.command("list")
def list_images(as_json: AsJson = False) -> None:
    """List the images of the project's repository.

    Example: taetpu image list
    """
    from taetpu.cloud import image

    settings = read_settings()
    found = [] if image.repository_commands(settings) else image.list_images(settings)
    if as_json:
        show_json(found)
    elif found:
        rows = [(one["package"].rpartition("/")[2], one.get("tags") or (), one.get("createTime", "")) for one in found]
        show_table([{"image": name, "tags": ", ".join(tags), "created": made} for name, tags, made in rows])
    else:
        typer.echo("no images")


@app.command()
def delete(
    address: Annotated[str, typer.Argument(metavar="IMAGE", help="As `image build` prints it.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete an image with its tags.

    Example: taetpu image delete us-east5-docker.pkg.dev/my-project/taetpu/lab:0123456789abcdef
    """
    from taetpu.cloud import image
    from taetpu.cloud.gcloud import change

    read_settings()
    line = image.delete_command(address)
    if confirm(f"delete {address}", "Delete it?", [line], yes=yes, dry_run=dry_run):
        change(line)
