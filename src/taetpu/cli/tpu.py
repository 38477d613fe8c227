"""`taetpu tpu`: machines made, found and removed; what happens on them is in `remote`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli import machine_costs, remote
from taetpu.cli.cloud import Here, here, hours, lasting, tell
from taetpu.cli.consent import DryRun, Yes, agreed
from taetpu.cli.hosts import COMMAND
from taetpu.cli.leaving import telling
from taetpu.cli.offer import Offer
from taetpu.cli.options import AsJson
from taetpu.cli.tables import filled, say, show_json, show_table
from taetpu.cli.wanted import (
    BackendOption,
    FlexStart,
    IdleMinutes,
    MaxHours,
    MaxRate,
    MaxUsd,
    Reservation,
    Runtime,
    Spot,
    Type,
    Wanted,
    Zones,
)  # fmt: skip

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine

app = typer.Typer(
    help="Cloud TPUs: from zones to teardown.\n\nExample: taetpu tpu up --type v6e-8 --spot", no_args_is_help=True
)

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="The TPU; else `stack` of the settings.")]


@app.command()
def up(
    name: Name = None,
    kind: Type = None,
    zone: Zones = None,
    backend: BackendOption = None,
    spot: Spot = False,
    flex_start: FlexStart = False,
    reservation: Reservation = "",
    max_hours: MaxHours = None,
    max_usd: MaxUsd = None,
    max_rate: MaxRate = None,
    idle_minutes: IdleMinutes = None,
    runtime: Runtime = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a TPU, or find the one that is there. The same command again changes nothing.

    Example: taetpu tpu up --type v6e-8 --spot --max-usd 20
    """
    from taetpu.cloud import reconcile

    place = here()
    wanted = Wanted(
        kind, zone, backend, spot, flex_start, reservation, max_hours, max_usd, max_rate, idle_minutes, runtime
    )  # fmt: skip
    offer = Offer.of(place, wanted.spec(place, name), wanted)
    if not agreed(place.noted(offer.plan()), "Make it?", yes=yes or offer.only_finds, dry_run=dry_run):
        if as_json:
            show_json(offer.data())
        return
    with telling(lambda: reconcile.remains(place.cloud, offer.spec.stack)):
        machine = offer.set_up(offer.made())
    show_json(_machine(machine)) if as_json else _show(place, [machine])
    _show_orphans(place, machine)


@app.command()
def down(name: Name = None, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove a TPU and all that was made with it. Results in buckets stay. Nothing there is fine.

    Example: taetpu tpu down my-tpu --yes
    """
    from taetpu.cloud import reconcile, ssh

    place = here()
    stack = place.stack(name)
    there = place.cloud.of(stack)
    if not there:
        tell(f"nothing is there of {stack!r}")
    lines = [f"delete {m.name}: {m.type} in {m.zone}, {m.detail or m.state}" for m in there]
    gone: list[Machine] = []
    if (not there or agreed(place.noted("\n".join(lines)), "Delete it?", yes=yes, dry_run=dry_run)) and not dry_run:
        places = sorted({*(m.zone for m in there), *place.cloud.records.read(stack).zones})
        left = f"{stack} may still be there{', in ' if places else ''}{' or '.join(places)}, and cost money"
        with telling(lambda: f"{left}: the same command goes on, `taetpu tpu list` shows what is there"):
            gone = reconcile.down(place.cloud, stack)
            ssh.forget(stack)
    if as_json:
        show_json({"found": [_machine(m) for m in there], "removed": [_machine(m) for m in gone]})


@app.command("list")
def list_machines(as_json: AsJson = False) -> None:
    """Every TPU machine of the project, yours or not, in all zones.

    Example: taetpu tpu list
    """
    from taetpu.cloud.backends.base import State

    place = here()
    cloud = place.cloud
    machines, unseen = cloud.machines(), cloud.unseen()
    if as_json:
        show_json({"machines": [_machine(m) for m in machines], "unseen": unseen})
        return
    left = [machine for machine in machines if machine.state is State.LOST and not machine.workers]
    whole = [machine for machine in machines if machine not in left]
    _show(place, whole) if whole else typer.echo("no TPU machine is there")
    for machine in whole:
        if machine.state is not State.READY:
            say(f"{machine.name} in {machine.zone}: {machine.detail}", hanging=2)
    for machine in left:
        remedy = f" (`taetpu tpu down {machine.stack}` removes it)" if machine.owner == cloud.owner else ""
        say(f"left over: {machine.name} in {machine.zone}: {machine.detail}{remedy}", hanging=2)
    _show_unseen(unseen)


@app.command()
def gc(dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove your machines that should be gone by their label. What is not yours is never touched.

    Example: taetpu tpu gc --dry-run
    """
    from taetpu.cloud import reconcile

    place = here()
    machines = place.cloud.machines()
    _show_unseen(place.cloud.unseen())
    now = place.cloud.waits.now()
    doomed = reconcile.expired(machines, place.cloud.owner, now)
    for machine in machines:
        if not machine.owner:
            tell(f"left alone: {machine.name} in {machine.zone} has no owner that taetpu knows")
    gone: list[Machine] = []
    lines = [f"delete {m.name}: {m.type} in {m.zone}, expired {hours(now - (m.expires or now))} ago" for m in doomed]
    if not doomed:
        tell("nothing of yours has expired")
    elif agreed(place.noted("\n".join(lines)), "Delete them?", yes=yes, dry_run=dry_run):
        gone = reconcile.collect(place.cloud, doomed)
    if as_json:
        show_json({"found": [_machine(m) for m in doomed], "removed": [_machine(m) for m in gone]})


@app.command()
def cost(as_json: AsJson = False) -> None:
    """What your machines cost an hour, have cost, and may cost yet.

    Example: taetpu tpu cost
    """
    rows, warnings = machine_costs.rows(here())
    for warning in warnings:
        tell(filled(f"warning: {warning}", 0, 2))
    if as_json:
        show_json([row.data() for row in rows])
    elif rows:
        show_table([row.cells() for row in rows])
        say(machine_costs.LINE)
    else:
        typer.echo("nothing has been made yet")


def _machine(machine: "Machine") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(machine) | {"labels": dict(machine.labels), "state": str(machine.state)}


def _show(place: Here, machines: list["Machine"]) -> None:
    now = place.cloud.waits.now()
    show_table(
        [
            {
                "tpu": m.name,
                "type": m.type,
                "zone": m.zone,
                "state": str(m.state),
                "hosts": len(m.workers) or None,
                "owner": m.owner or "none known",
                "deleted": lasting(m, now),
            }
            for m in machines
        ]
    )


def _show_unseen(unseen: Mapping[str, Sequence[str]]) -> None:
    """Where nobody could look: what is there is not known."""
    for backend, zones in unseen.items():
        tell(filled(f"not seen: {backend} did not answer for {', '.join(zones)}; what is there is not known", 0, 2))


def _show_orphans(place: Here, machine: "Machine") -> None:
    """What else of yours is running: it costs money."""
    others = [m for m in place.cloud.machines() if m.owner == machine.owner and m.stack != machine.stack]
    for other in others:
        tell(f"also running: {other.name} ({other.type}) in {other.zone}, {other.detail or other.state}")


app.command(context_settings=COMMAND)(remote.ssh)
app.command()(remote.sync)
app.command(context_settings=COMMAND)(remote.run)
app.command()(remote.logs)
app.command()(remote.stop)
app.command()(remote.clean)
app.command()(remote.status)
