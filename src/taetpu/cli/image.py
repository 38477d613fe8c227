"""`taetpu image build | list | delete`: containers for jobs."""

from pathlib import Path
from typing import Annotated

import typer

from taetpu.cli.cloud import DryRun, Yes, confirm, print_commands, read_settings, tell
from taetpu.cli.options import AsJson
from taetpu.cli.tables import show_json, show_table

app = typer.Typer(help="Containers for jobs.\n\nExample: taetpu image build", no_args_is_help=True)


@app.command()
def build(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="With a Dockerfile.")] = Path(),
    write: Annotated[bool, typer.Option("--write", help="Name the image in taetpu.toml: jobs run in it.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Build a folder's Dockerfile with Cloud Build. The same content is built once.

    Example: taetpu image build --write
    """
    from taetpu.cloud import image
    from taetpu.cloud.gcloud import run
    from taetpu.cloud.settings import write_setting

    settings = read_settings()
    name, tag = folder.resolve().name.lower(), image.content_tag(folder)
    address = image.address(settings, name, tag)
    lines = image.repository_commands(settings)
    built = not lines and any(tag in one.get("tags", ()) for one in image.list_images(settings))
    if built:
        tell(f"{address} exists: its content is the same")
    else:
        lines.append(image.build_command(settings, folder, name, tag))
        if dry_run:
            print_commands(lines, settings.project)
            return
        most = image.BUILD_MINUTES * image.BUILD_RATE
        plan = f"build {address} with Cloud Build: at most ${most:.2f} in {image.BUILD_MINUTES} min, then its storage"
        if confirm(plan, "Build it?", yes=yes, dry_run=False):
            for line in lines:
                run(line, 60.0 * (image.BUILD_MINUTES + 5))
    if write and not dry_run:
        tell(f"the image is named in {write_setting(Path.cwd(), 'image', address)}")
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
        rows = [
            {
                "image": one["package"].rpartition("/")[2],
                "tags": ", ".join(one.get("tags") or ()),
                "created": one.get("createTime", ""),
            }
            for one in found
        ]
        show_table(rows)
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

    settings = read_settings()
    line = image.delete_command(address)
    if dry_run:
        print_commands([line], settings.project)
    elif confirm(f"delete {address}", "Delete it?", yes=yes, dry_run=False):
        change(line)
