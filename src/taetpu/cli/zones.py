"""`taetpu tpu zones`: where a TPU is published, what the project may have of it, and what it costs."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import DryRun, Yes, agreed
from taetpu.cli.options import AsJson
from taetpu.cli.tables import say, show_json, show_table
from taetpu.cli.wanted import Wanted

if TYPE_CHECKING:
    from taetpu.cloud.quotas import Quotas
    from taetpu.cloud.spec import Provisioning
    from taetpu.cloud.zones import Probed, Row
    from taetpu.core.chips import Slice

SENTENCE = (
    "None of these says whether any is free just now: nothing tells that but a request. Published says who names the "
    "zone, quota what this project may have, and neither is a promise."
)


def zones(
    kind: Annotated[str, typer.Option("--type", help="The slice: v6e-8, v5e:2x4.")],
    all_regions: Annotated[bool, typer.Option("--all-regions", help="Look beyond `region` of the settings.")] = False,
    region: Annotated[str, typer.Option(help="Look in one region: us-east5.")] = "",
    spot: Annotated[bool, typer.Option("--spot", help="Quota and price of spot machines.")] = False,
    flex_start: Annotated[bool, typer.Option("--flex-start", help="Quota and price of flex-start.")] = False,
    probe: Annotated[bool, typer.Option("--probe", help="Make a spot machine in each and delete it at once.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Put these zones into taetpu.toml.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Where a TPU might be had, your quota there, and the price.

    Example: taetpu tpu zones --type v6e-8 --spot
    """
    from taetpu.cloud.settings import check_region
    from taetpu.cloud.zones import rows
    from taetpu.core.chips import resolve
    from taetpu.core.errors import UserError

    if all_regions and region:
        raise UserError("--region and --all-regions exclude each other", remedy="give one of them")
    if region:
        check_region(region, ("--region",))
    tpu, place = resolve(kind), here()
    way = Wanted(kind, spot=spot or probe, flex_start=flex_start).way()
    where = region or ("" if all_regions else place.settings.region)
    table = rows(tpu, place.cloud.backends, _quotas(place), _price(place, tpu, way), way, where, tell)
    if not table:
        at = f" in {where}" if where else ""
        raise UserError(f"nobody names a zone{at} that has {tpu.name}", remedy="--all-regions looks everywhere")
    probed = _probed(place, tpu, table, dry_run, yes) if probe else []
    if as_json:
        show_json({"type": tpu.name, "provisioning": way, "zones": [_data(row, probed) for row in table]})
    else:
        _show(table, probed, way)
    if write and (probed or not probe):
        _write(place, table, probed if probe else None, dry_run, yes)


def _quotas(place: Here) -> "Quotas | None":
    from taetpu.cloud import quotas
    from taetpu.cloud.errors import CloudError

    try:
        return quotas.read(place.clients)
    except CloudError as error:
        tell(f"quotas are not to be had: {error}")
        return None


def _price(place: Here, tpu: "Slice", way: "Provisioning") -> Any:
    from taetpu.cloud.prices import rate

    return lambda zone: rate(place.clients, tpu, zone, way)


def _probed(place: Here, tpu: "Slice", table: "list[Row]", dry_run: bool, yes: bool) -> "list[Probed]":
    """What came of asking for a machine in each row, if it is agreed to."""
    from taetpu.cloud import vm
    from taetpu.cloud.catalogue import runtime_of
    from taetpu.cloud.cost import Price
    from taetpu.cloud.spec import Spec, label
    from taetpu.cloud.zones import PROBE_HOURS
    from taetpu.cloud.zones import probe as ask

    own, lines = place.settings, [f"make a spot {tpu.name} in each of these and delete it at once:"]
    runtimes = [runtime_of(tpu, row.backend) for row in table]
    for row in table:
        cost = Price(tpu.chips, PROBE_HOURS, row.usd, row.source, row.guess).rate()
        lines.append(f"  {row.zone} by {row.backend}: {cost} while it is there")
    lines.append(f"should this be killed: after {PROBE_HOURS * 60:.0f} min Compute Engine's server deletes its own,")
    lines.append("and the guard on the machine that of the Cloud TPU API, if its account may; else `taetpu tpu gc`")
    if not agreed(place.noted("\n".join(lines)), "Ask for them?", yes=yes, dry_run=dry_run):
        return []
    found = []
    for row, runtime in zip(table, runtimes, strict=True):
        spec = Spec(
            "probe", tpu, row.backend, "spot", runtime=runtime, owner=label(own.owner),
            network=own.network, subnetwork=own.subnetwork, external_ip=own.external_ip,
            service_account=own.service_account,
        )  # fmt: skip
        backend, startup = place.cloud.backend(row.backend), partial(vm.startup, settings=own)
        found.append(ask(backend, spec, row.zone, place.cloud.waits, startup, tell))
    return found


def _show(table: "list[Row]", probed: "list[Probed]", way: str) -> None:
    show_table(
        [
            {
                "zone": row.zone,
                "by": row.backend,
                "published": row.published.removeprefix("by the ").removeprefix("in ").removeprefix("a "),
                "quota": "not known" if row.limit is None else _quota(row),
                "USD/chip-h": "no rate" if row.usd is None else f"{'~' if row.guess else ''}{row.usd:.4g}",
            }
            for row in table
        ]
    )
    typer.echo("")
    for source in dict.fromkeys(row.source for row in table):
        at = ", ".join(dict.fromkeys(row.zone for row in table if row.source == source))
        say(f"Price ({way}) in {at}: {source}.", hanging=2)
    for one in probed:
        what = "a spot machine was given, and is gone again" if one.made else "none was given"
        say(f"Asked for in {one.zone} by {one.backend}: {what} ({one.said}).", hanging=2)
    say(SENTENCE)


def _quota(row: "Row") -> str:
    assert row.limit is not None
    return row.limit.told() + (", too few" if row.limit.enough is False else "")


def _data(row: "Row", probed: "list[Probed]") -> dict[str, Any]:
    limit = row.limit
    tried = next((one for one in probed if (one.zone, one.backend) == (row.zone, row.backend)), None)
    return {
        "zone": row.zone,
        "backend": row.backend,
        "published": row.published,
        "quota": limit and {"value": limit.value, "unit": limit.unit, "needed": limit.needed, "names": limit.quotas},
        "usd_per_chip_hour": row.usd,
        "price_source": row.source,
        "price_is_a_guess": row.guess,
        "probe": tried and {"made": tried.made, "said": tried.said},
    }


def _write(place: Here, table: "list[Row]", probed: "list[Probed] | None", dry_run: bool, yes: bool) -> None:
    """Put zones into the settings' file: those that gave a machine, or all where none was asked for."""
    from pathlib import Path

    from taetpu.cloud import bucket, settings, settings_file

    given = None if probed is None else {one.zone for one in probed if one.made}
    wanted = list(dict.fromkeys(row.zone for row in table if given is None or row.zone in given))
    if not wanted:
        tell("no zone is written: none gave a machine")
        return
    path = settings.find(Path.cwd()) or Path.cwd() / settings.FILE
    old = ", ".join(place.settings.zones)
    plan = f"{path}: zones = {f'{old} -> ' if old else ''}{', '.join(wanted)}"
    if warning := bucket.apart(bucket.region(place.clients, place.settings.bucket), tuple(wanted)):
        plan += f"\nwarning: {warning}"
    if agreed(plan, "Write them?", yes=yes, dry_run=dry_run):
        tell(f"zones is set in {settings_file.write('zones', wanted)}")
