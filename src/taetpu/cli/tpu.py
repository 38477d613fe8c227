"""`taetpu tpu`: create, list and delete machines. The commands for hosts are in the module `tpu_hosts`."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli import tpu_hosts as job_commands
from taetpu.cli.cloud_common import (
    build_spec,
    candidate_zones,
    confirm,
    describe_plan,
    find_machine,
    machine_name,
    open_zones,
    read_settings,
    show_creation,
    warn_of_costs,
    with_idle_minutes,
)
from taetpu.cli.options import AsJson, DryRun, MachineOptions, Name, Spot, Yes, takes_options
from taetpu.cli.output import log, print_json, print_table, print_text

if TYPE_CHECKING:
    from taetpu.cloud.machine_api import Machine

app = typer.Typer(help="Cloud TPUs.\n\nExample: taetpu tpu up --type v6e-8 --spot")


@app.command()
def zones(
    kind: Annotated[str, typer.Option("--type", help="The slice, such as v6e-8 or v5e:2x4.")],
    spot: Spot = False,
    as_json: AsJson = False,
) -> None:
    """List the zones that offer a slice, with rates. Only `taetpu tpu up` shows whether a zone has capacity.

    Example: taetpu tpu zones --type v6e-8 --spot
    """
    from taetpu.cloud import zone_rates
    from taetpu.core.chips import parse_slice, table_date

    tpu = parse_slice(kind)
    settings = read_settings(need_project=False)
    rows, cells = [], []
    for zone in zone_rates.zones_by_rate(tpu, spot):
        rate = zone_rates.rate(tpu, zone, spot)
        usd = {
            "usd_per_chip_hour": rate.usd,
            "usd_per_hour": zone_rates.Cost(tpu.chips, settings.max_hours, rate).hourly,
        }
        rows.append({"zone": zone, **usd, "other_region": rate.elsewhere})
        sign = "~" if rate.elsewhere else ""
        cells.append({"zone": zone} | {name: f"{sign}{_rounded(value)}" for name, value in usd.items()})
    if as_json:
        print_json({"type": tpu.name, "spot": spot, "dated": table_date(), "zones": rows})
        return
    print_table(cells)
    print_text(
        f"Rates of {table_date()}. If a rate is unknown, ~ marks the highest known rate. Zones may lack capacity."
    )


@dataclass(frozen=True, kw_only=True)
class UpOptions(MachineOptions):
    """Options of `taetpu tpu up`."""

    name: Name = None


@app.command()
@takes_options
def up(options: UpOptions) -> None:
    """Create a machine, or wait for it if it exists. Can be repeated safely.

    Example: taetpu tpu up --type v6e-8 --spot --max-usd 20
    """
    from taetpu.cloud import lifecycle, startup

    settings = with_idle_minutes(read_settings(), options)
    spec = build_spec(settings, machine_name(settings, options.name), options)
    zones = candidate_zones(spec, settings, options)
    if options.dry_run:
        show_creation(spec, zones, settings)
        return
    if existing := lifecycle.find_existing(spec):
        log(f"{spec.name} exists in {existing.zone}: {existing.detail}; --max-hours does not change its deletion time")
    else:
        zones = open_zones(settings, zones)
        confirm(describe_plan(spec, zones), "Create it?", yes=options.yes)
    with warn_of_costs(lifecycle.describe_possible(spec.name), spec.name):
        machine = lifecycle.make(spec, zones, settings, log, lambda created: startup.prepare(created, settings, log))
    print_machines([machine])


@app.command()
def down(name: Name = None, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete a machine and its queued resource in all zones. Buckets are kept.

    Example: taetpu tpu down my-tpu --yes
    """
    from taetpu.cloud import lifecycle
    from taetpu.cloud.machine_api import check_reached, delete_command, find
    from taetpu.cloud.names_and_labels import label_value

    settings = read_settings()
    name = machine_name(settings, name)
    unreachable: list[str] = []
    if not dry_run:
        lifecycle.await_changes(name, log)
    existing = find(name, unreachable=unreachable)
    mine = lifecycle.select_owned(existing, label_value(settings.owner))
    if not existing:
        log(f"no machine {name!r}")
    lines = [delete_command(machine) for machine in mine]
    doomed = mine and confirm(_describe_deletion(mine), "Delete it?", lines, yes=yes, dry_run=dry_run)
    if doomed or not (existing or dry_run):  # this also ends an `up` that is still creating a machine
        with warn_of_costs(f"{name} may still exist and cost money, so repeat the command"):
            lifecycle.down(name, label_value(settings.owner), settings, log)
    check_reached(unreachable)


@app.command()
def status(name: Name = None, as_json: AsJson = False) -> None:
    """Show a machine and the jobs on its hosts.

    Example: taetpu tpu status
    """
    from taetpu.cloud import host_jobs
    from taetpu.cloud.ssh import Hosts

    settings = read_settings()
    machine = find_machine(settings, name)
    hosts: dict[int, Any] = {}
    if machine.state == "ready":
        hosts = host_jobs.state(Hosts.configure(machine, settings.user, settings.project))
    if as_json:
        print_json(asdict(machine) | {"hosts": hosts})
        return
    print_machines([machine])
    jobs_there = [(worker, job) for worker, host in hosts.items() for job in host["jobs"]]
    rows = [
        {"worker": worker, "job": job["name"], "state": job_commands.describe(job), "command": shlex.join(first)}
        for worker, job in jobs_there
        for first in (job["commands"] or [[""]])[:1]
    ]
    typer.echo("")
    print_table(rows) if rows else typer.echo("no jobs")


@app.command("list")
def list_machines(as_json: AsJson = False) -> None:
    """List the project's TPU machines of all owners.

    Example: taetpu tpu list
    """
    from taetpu.cloud.machine_api import check_reached, list_machines

    read_settings()
    unreachable: list[str] = []
    machines = list_machines(unreachable=unreachable)
    if as_json:
        print_json([asdict(machine) for machine in machines])
    elif machines:
        print_machines(machines)
    else:
        typer.echo("no TPU machines")
    check_reached(unreachable)


@app.command()
def gc(dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete your expired machines, but no machines of other owners.

    Example: taetpu tpu gc --dry-run
    """
    from taetpu.cloud import lifecycle
    from taetpu.cloud.machine_api import check_reached, delete_command
    from taetpu.cloud.names_and_labels import label_value

    settings = read_settings()
    unreachable: list[str] = []
    doomed = lifecycle.list_expired(label_value(settings.owner), unreachable)
    if not doomed:
        log("none of your machines has expired")
    lines = [delete_command(machine) for machine in doomed]
    if doomed and confirm(_describe_deletion(doomed), "Delete them?", lines, yes=yes, dry_run=dry_run):
        with warn_of_costs("machines may still exist and cost money, so repeat the command"):
            lifecycle.delete_all(doomed, settings, log)
    check_reached(unreachable)


@app.command()
def cost(as_json: AsJson = False) -> None:
    """Show the hourly and maximum cost of your machines.

    Example: taetpu tpu cost
    """
    from taetpu.cloud import zone_rates
    from taetpu.cloud.machine_api import list_machines
    from taetpu.cloud.names_and_labels import hours_left, label_value
    from taetpu.core.chips import table_date

    settings = read_settings()
    rows = []
    for machine in (candidate for candidate in list_machines() if candidate.owner == label_value(settings.owner)):
        hourly, left = zone_rates.hourly_cost(machine), hours_left(machine.labels)
        most = None if hourly is None or left is None or left < 0 else hourly * left
        row = {"name": machine.name, "state": machine.state, "usd_per_hour": hourly, "hours_left": left}
        rows.append(row | {"usd_at_most": most})
    if as_json:
        print_json(rows)
    elif rows:
        print_table([{name: _rounded(value) for name, value in row.items()} for row in rows])
        print_text(
            f"Rates of {table_date()}, without disks, traffic and storage. hours_left: hours until the deletion "
            "deadline."
        )
    else:
        typer.echo("you have no machines")


def _rounded(value: Any) -> Any:
    return "unknown" if value is None else f"{value:.2f}" if isinstance(value, float) else value


def _describe_deletion(machines: "Sequence[Machine]") -> str:
    lines = (
        f"{machine.name}: {machine.type} in {machine.zone}, {machine.detail}, of {machine.owner or 'unknown'}"
        for machine in machines
    )
    return "\n".join(f"delete {line}" for line in lines)


def print_machines(machines: "Sequence[Machine]") -> None:
    """Print a table of machines."""
    from taetpu.cloud.names_and_labels import hours_left

    def ends(machine: "Machine") -> str:
        left = hours_left(machine.labels)
        return "unknown" if left is None else f"in {max(0.0, left):.1f} h"

    print_table(
        {
            "name": machine.name, "type": machine.type, "zone": machine.zone, "state": machine.state,
            "hosts": len(machine.workers) or None, "owner": machine.owner or "unknown", "ends": ends(machine),
        }
        for machine in machines
    )  # fmt: skip


job_commands.register(app)
