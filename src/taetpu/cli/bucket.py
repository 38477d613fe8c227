"""`taetpu bucket create`, `status` and `delete`: where studies lie when their machines are gone."""

from typing import Annotated

import typer

from taetpu.cli.cloud import here, tell
from taetpu.cli.consent import DryRun, Yes, agreed
from taetpu.cli.options import AsJson
from taetpu.cli.tables import show_json, show_table

HELP = """A bucket for studies, made and deleted.

Example: taetpu bucket create my-studies --region us-east5
"""
app = typer.Typer(help=HELP, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The bucket; else `bucket` of the settings.")]


@app.command()
def create(
    name: Name = "",
    region: Annotated[str, typer.Option(help="Where: the region of your TPUs. Else that of the settings.")] = "",
    soft_delete_days: Annotated[
        int, typer.Option(help="For how long Google keeps, and bills, what was deleted: 0, or 7 to 89.")
    ] = 7,
    write: Annotated[
        bool, typer.Option("--write", help="Put its name, and region if none is set, into taetpu.toml.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a bucket, or find yours that is there. The same command again changes nothing.

    Example: taetpu bucket create my-studies --region us-east5 --write
    """
    from dataclasses import asdict

    from taetpu.cloud import bucket, settings_file

    place = here()
    want = bucket.wanted(place.settings, name, region, soft_delete_days)
    if warning := bucket.apart(want.region, place.settings.zones):
        tell(f"warning: {warning}")
    if bucket.check(bucket.find(place.clients, want.name), want):
        tell(f"gs://{want.name} is there already, as it should be")
    elif not agreed(place.noted("\n".join(want.told())), "Create it?", yes=yes, dry_run=dry_run):
        return
    elif bucket.create(place.clients, want):
        tell(f"made gs://{want.name}; studies go there with --root gs://{want.name}/studies")
    if write and not dry_run:
        tell(f"bucket is set in {settings_file.write('bucket', want.name)}")
        if not place.settings.region and not bucket.MULTI_REGION.fullmatch(want.region):
            tell(f"region is set in {settings_file.write('region', want.region)}: {want.region}")
    if as_json:
        show_json(asdict(want))


@app.command()
def status(name: Name = "", as_json: AsJson = False) -> None:
    """What a bucket is and how much is in it.

    Example: taetpu bucket status my-studies
    """
    from dataclasses import asdict

    from taetpu.cloud import bucket

    place = here()
    found = bucket.status(place.clients, bucket.named(place.settings, name))
    if as_json:
        show_json(asdict(found))
        return
    show_table(
        [
            {
                "bucket": f"gs://{found.name}",
                "region": found.location,
                "owner": found.labels.get("taetpu-owner", "none known"),
                "objects": found.objects,
                "size": size(found.bytes),
                "soft delete": f"{found.soft_delete_days:g} days" if found.soft_delete_days else "off",
            }
        ]
    )
    for label, text in sorted(found.labels.items()):
        typer.echo(f"label {label}={text}")
    for lock in found.held:
        typer.echo(f"at work, or killed within the last minute: {lock}")
    if found.public or not found.uniform:
        tell("warning: it can be opened to the public, or has access rules for single objects (ACLs)")
    if warning := bucket.apart(found.location, place.settings.zones):
        tell(f"warning: {warning}")


@app.command()
def delete(
    name: Name = "",
    force: Annotated[bool, typer.Option("--force", help="With --yes: also if there is something in it.")] = False,
    at_work: Annotated[bool, typer.Option("--at-work", help="Also while a study is at work in it.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete a bucket of yours with everything in it. `taetpu tpu down` never does.

    Example: taetpu bucket delete my-studies
    """
    from taetpu.cloud import bucket
    from taetpu.cloud.spec import label
    from taetpu.core.errors import UserError

    place = here()
    found = bucket.status(place.clients, bucket.named(place.settings, name))
    bucket.check_ours(found, label(place.settings.owner))
    lines = [f"delete gs://{found.name} with {found.objects:,} objects, {size(found.bytes)}"]
    lines += [f"a study is at work in it, or was killed within the last minute: {lock}" for lock in found.held]
    if found.soft_delete_days:
        lines.append(f"Google keeps what is deleted, and bills it, for {found.soft_delete_days:g} days more")
    if not at_work and not dry_run:
        bucket.check_idle(found)
    if yes and found.objects and not force and not dry_run:
        problem = f"gs://{found.name} is not empty: {found.objects:,} objects, {size(found.bytes)}"
        raise UserError(problem, remedy="--yes --force deletes them, too; without --yes its name has to be typed")
    if agreed("\n".join(lines), "Delete it?", yes=yes, dry_run=dry_run, typed=found.name):
        bucket.delete(place.clients, found.name, tell)
        tell(f"deleted gs://{found.name}")


def size(count: int) -> str:
    """Bytes in words: `1.3 GB`."""
    value, units = float(count), ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if value < 1000 or unit == units[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError
