"""`taetpu doctor`, `bucket` and `image`: the account, the bucket and the containers that cloud commands use."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from taetpu.cli.cloud_common import confirm, read_settings
from taetpu.cli.options import AsJson, DryRun, Yes
from taetpu.cli.output import log, print_json, print_table, print_text
from taetpu.core.errors import Failed

# --- doctor ----------------------------------------------------------------------------------------------------------


def doctor(as_json: AsJson = False) -> None:
    """Check the account, project and network, and look for key files.

    Example: taetpu doctor
    """
    from taetpu.cloud.doctor import Check, run_checks

    done: list[Check] = []
    for check in run_checks(read_settings(need_project=False), Path.cwd()):
        done.append(check)
        if not as_json:
            print_text(f"{check.status:<8} {check.name}: {check.found}", hanging=9)
            if check.remedy:
                typer.echo(f"         {check.remedy}")
    if as_json:
        print_json([asdict(check) for check in done])
    if failed := [check.name for check in done if check.status == "fails"]:
        raise Failed(f"{len(failed)} check(s) failed: {', '.join(failed)}")


# --- bucket ----------------------------------------------------------------------------------------------------------

bucket_app = typer.Typer(help="The bucket for studies.\n\nExample: taetpu bucket create --yes")

Bucket = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="The bucket. Default: `bucket` from the settings, else PROJECT-taetpu."),
]


@bucket_app.command("create")
def create_bucket(
    name: Bucket = None,
    region: Annotated[
        str, typer.Option(help="The bucket's region. Default: the region of the first zone in the settings.")
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Create a private bucket that machines can write to.

    An existing bucket is kept.

    Example: taetpu bucket create my-studies --region us-east5
    """
    from taetpu.cloud import bucket
    from taetpu.cloud.deletion_rights import default_account
    from taetpu.cloud.gcloud import change
    from taetpu.cloud.names_and_labels import label_value
    from taetpu.store.gcs_client import check_bucket_name

    settings = read_settings()
    name, place = check_bucket_name(name or settings.bucket), region or settings.default_region
    account = settings.service_account or default_account(settings.project)
    lines = [bucket.create_command(name, place), bucket.label_command(name, label_value(settings.owner))]
    if bucket.describe(name):
        log(f"gs://{name} exists")
        lines = []
    lines.append(bucket.grant_command(name, account))
    rate = f"${bucket.STANDARD_RATE:.3f} per GB and month in most US regions ({bucket.RATE_DATE})"
    plan = f"create gs://{name} in {place}: {rate}\nlet {account} read and write the bucket"
    if confirm(plan, "Create it?", lines, yes=yes, dry_run=dry_run):
        for line in lines:
            change(line)
        if name != settings.bucket:
            log(f'Set `bucket = "{name}"` below [cloud] in taetpu.toml to store studies there.')


@bucket_app.command("status")
def bucket_status(name: Bucket = None, as_json: AsJson = False) -> None:
    """Show a bucket's region, size and cost.

    Example: taetpu bucket status
    """
    from taetpu.cloud import bucket
    from taetpu.cloud.gcloud import CloudError

    settings = read_settings()
    name = name or settings.bucket
    description = bucket.describe(name)
    if description is None:
        remedy = "Create the bucket with `taetpu bucket create`."
        raise CloudError(f"gs://{name} is not in {settings.project}", remedy=remedy)
    size = bucket.usage(name)
    cells = {"bucket": name, "region": description.get("location", "").lower(), "bytes": size}
    cells["usd_per_month"] = round(size / 1e9 * bucket.STANDARD_RATE, 2)
    print_json(cells) if as_json else print_table([cells])


@bucket_app.command("delete")
def delete_bucket(name: Bucket = None, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a bucket with all studies in it. This cannot be undone.

    Example: taetpu bucket delete my-studies
    """
    from taetpu.cloud import bucket
    from taetpu.cloud.gcloud import CloudError, change
    from taetpu.cloud.names_and_labels import OWNER, label_value

    settings = read_settings()
    name = name or settings.bucket
    description = bucket.describe(name)
    if description is None:
        log(f"gs://{name} is not in {settings.project}")
        return
    owner = description.get("labels", {}).get(OWNER, "")
    if owner != label_value(settings.owner):
        problem = f"gs://{name} belongs to {owner or 'an unknown owner'}"
        raise CloudError(problem, remedy=f"Ask the owner to run `{bucket.delete_command(name).shown}`.")
    line = bucket.delete_command(name)
    plan = f"delete gs://{name} with everything in it, {bucket.usage(name) / 1e9:.3f} GB"
    if confirm(plan, "Delete it permanently?", [line], yes=yes, dry_run=dry_run, typed=name):
        change(line)


# --- image -----------------------------------------------------------------------------------------------------------

image_app = typer.Typer(help="Containers for jobs.\n\nExample: taetpu image build")


@image_app.command("build")
def build_image(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with a Dockerfile.")] = Path(),
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Build a folder's Dockerfile with Cloud Build.

    Nothing is built if an image with the same content exists. Set `image` in taetpu.toml to run jobs in the image.

    Example: taetpu image build
    """
    from taetpu.cloud import container_image
    from taetpu.cloud.gcloud import run

    settings = read_settings()
    name, tag = folder.resolve().name.lower(), container_image.content_tag(folder)
    address = container_image.address(settings, name, tag)
    lines = container_image.repository_commands(settings)
    built = not lines and any(tag in image.get("tags", ()) for image in container_image.list_images(settings))
    if built:
        log(f"{address} exists with the same content")
    else:
        lines.append(container_image.build_command(settings, folder, name, tag))
        minutes = container_image.BUILD_MINUTES
        most = minutes * container_image.BUILD_RATE
        plan = f"build {address} with Cloud Build: at most ${most:.2f} in {minutes} min, plus storage"
        if not confirm(plan, "Build it?", lines, yes=yes, dry_run=dry_run):
            return
        for line in lines:
            run(line, 60.0 * (container_image.BUILD_MINUTES + 5))
    typer.echo(address)


@image_app.command("list")
def list_images() -> None:
    """List the images in the project's repository.

    Example: taetpu image list
    """
    from taetpu.cloud import container_image

    settings = read_settings()
    images = [] if container_image.repository_commands(settings) else container_image.list_images(settings)
    if images:
        rows = [
            (image["package"].rpartition("/")[2], image.get("tags") or (), image.get("createTime", ""))
            for image in images
        ]
        print_table([{"image": name, "tags": ", ".join(tags), "created": made} for name, tags, made in rows])
    else:
        typer.echo("no images")


@image_app.command("delete")
def delete_image(
    address: Annotated[str, typer.Argument(metavar="IMAGE", help="The address that `image build` prints.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete an image and its tags.

    Example: taetpu image delete us-east5-docker.pkg.dev/my-project/taetpu/lab:0123456789abcdef
    """
    from taetpu.cloud import container_image
    from taetpu.cloud.gcloud import change

    read_settings()
    line = container_image.delete_command(address)
    if confirm(f"delete {address}", "Delete it?", [line], yes=yes, dry_run=dry_run):
        change(line)
