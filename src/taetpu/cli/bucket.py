"""`taetpu bucket create | status | delete`: where studies on TPUs keep their results."""

from typing import Annotated

import typer

from taetpu.cli.cloud import DryRun, Yes, confirm, read_settings, tell
from taetpu.cli.options import AsJson
from taetpu.cli.output import show_json, show_table

app = typer.Typer(help="The bucket for studies.\n\nExample: taetpu bucket create --yes", no_args_is_help=True)

Bucket = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Default: `bucket` of the settings, else PROJECT-taetpu.")
]


@app.command()
def create(
    name: Bucket = None,
    region: Annotated[str, typer.Option(help="Default: the region of the settings' first zone.")] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Create a private bucket that machines can write to. One that exists is kept.

    Example: taetpu bucket create my-studies --region us-east5
    """
    from taetpu.cloud import bucket
    from taetpu.cloud.gcloud import change
    from taetpu.cloud.labels import OWNER, label_value
    from taetpu.cloud.provision import default_account
    from taetpu.store.gcs_client import check_bucket_name

    settings = read_settings()
    wanted, place = check_bucket_name(name or settings.bucket), region or settings.default_region
    account = settings.service_account or default_account(settings.project)
    lines = [bucket.create_command(wanted, place), bucket.label_command(wanted, label_value(settings.owner))]
    if found := bucket.describe(wanted):
        tell(f"gs://{wanted} exists")
        if not found.get("labels", {}).get(OWNER):
            tell(f"it has no owner. If it is yours, `{lines[1].shown}` makes it one that `bucket delete` deletes")
        lines = []
    lines.append(bucket.grant_command(wanted, account))
    rate = f"${bucket.STANDARD_RATE:.3f} per GB and month in most US regions ({bucket.RATE_DATE}), empty nothing"
    plan = f"create gs://{wanted} in {place}: {rate}\nlet {account} read and write it"
    if confirm(plan, "Create it?", lines, yes=yes, dry_run=dry_run):
        for line in lines:
            change(line)
        if wanted != settings.bucket:
            tell(f'Set `bucket = "{wanted}"` below [cloud] in taetpu.toml to store studies there.')


@app.command()
def status(name: Bucket = None, as_json: AsJson = False) -> None:
    """Show a bucket's region, size and cost.

    Example: taetpu bucket status
    """
    from taetpu.cloud import bucket
    from taetpu.cloud.gcloud import CloudError

    settings = read_settings()
    wanted = name or settings.bucket
    found = bucket.describe(wanted)
    if found is None:
        raise CloudError(f"gs://{wanted} is not in {settings.project}", remedy="`taetpu bucket create` makes it.")
    size = bucket.usage(wanted)
    cells = {"bucket": wanted, "region": found.get("location", "").lower(), "bytes": size}
    cells["usd_per_month"] = round(size / 1e9 * bucket.STANDARD_RATE, 2)
    show_json(cells) if as_json else show_table([cells])


@app.command()
def delete(name: Bucket = None, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a bucket with all studies in it. This cannot be undone.

    Example: taetpu bucket delete my-studies
    """
    from taetpu.cloud import bucket
    from taetpu.cloud.gcloud import CloudError, change
    from taetpu.cloud.labels import OWNER, label_value

    settings = read_settings()
    wanted = name or settings.bucket
    found = bucket.describe(wanted)
    if found is None:
        tell(f"gs://{wanted} is not in {settings.project}")
        return
    owner = found.get("labels", {}).get(OWNER, "")
    if owner != label_value(settings.owner):
        problem = f"gs://{wanted} belongs to {owner or 'an unknown owner'}"
        raise CloudError(problem, remedy=f"Its owner can delete it: {bucket.delete_command(wanted).shown}")
    line = bucket.delete_command(wanted)
    plan = f"delete gs://{wanted} with everything in it, {bucket.usage(wanted) / 1e9:.3f} GB"
    if confirm(plan, "Delete it for ever?", [line], yes=yes, dry_run=dry_run, typed=wanted):
        change(line)
