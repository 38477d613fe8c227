"""`taetpu tpu`: machines made, found and removed; what happens on them is in `remote`."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli import remote
from taetpu.cli.cloud import Here, here, tell
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
    if not agreed(offer.plan(), "Make it?", yes=yes or offer.only_finds, dry_run=dry_run):
        if as_json:
            show_json(offer.data())
        return
    with telling(lambda: reconcile.remains(place.cloud, offer.spec.stack)):
        machine = offer.set_up(offer.made())
    show_json(_machine(machine)) if as_json else _show([machine])
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
    if (not there or agreed("\n".join(lines), "Delete it?", yes=yes, dry_run=dry_run)) and not dry_run:
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

    cloud = here().cloud
    machines, unseen = cloud.machines(), cloud.unseen()
    if as_json:
        show_json({"machines": [_machine(m) for m in machines], "unseen": unseen})
        return
    left = [machine for machine in machines if machine.state is State.LOST and not machine.workers]
    whole = [machine for machine in machines if machine not in left]
    _show(whole) if whole else typer.echo("no TPU machine is there")
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
    doomed = reconcile.expired(machines, place.cloud.owner, place.cloud.waits.now())
    for machine in machines:
        if not machine.owner:
            tell(f"left alone: {machine.name} in {machine.zone} has no owner that taetpu knows")
    gone: list[Machine] = []
    lines = [f"delete {m.name}: {m.type} in {m.zone}, expired {_ago(m.expires)} ago" for m in doomed]
    if not doomed:
        tell("nothing of yours has expired")
    elif agreed("\n".join(lines), "Delete them?", yes=yes, dry_run=dry_run):
        gone = reconcile.collect(place.cloud, doomed)
    if as_json:
        show_json({"found": [_machine(m) for m in doomed], "removed": [_machine(m) for m in gone]})


@app.command()
def cost(as_json: AsJson = False) -> None:
    """What your machines cost an hour, have cost, and may cost yet.

    Example: taetpu tpu cost
    """
    place, rows = here(), []
    cloud = place.cloud
    alive = {machine.stack: machine for machine in cloud.machines() if machine.owner == cloud.owner}
    now = cloud.waits.now()
    for stack in sorted({*alive, *cloud.records.stacks()}):
        record, machine = cloud.records.read(stack), alive.get(stack)
        so_far = record.cost(now) if machine or record.since is not None else 0.0
        left = max(0.0, machine.left(now) or 0.0) / 3600 if machine else 0.0
        row: dict[str, Any] = {"tpu": stack, "state": str(machine.state) if machine else "gone"}
        row["USD an hour"] = record.usd_per_hour if machine else 0.0
        row["so far"] = None if so_far is None else so_far + record.spent
        row["at most yet"] = 0.0 if not left else None if record.usd_per_hour is None else record.usd_per_hour * left
        if machine or row["so far"]:
            rows.append(row)
    if as_json:
        show_json(rows)
    elif rows:
        show_table([{k: _usd(v) if k not in ("tpu", "state") else v for k, v in row.items()} for row in rows])
        say("By published rates, from when each was ready; disks, traffic and buckets are not in it.")
    else:
        typer.echo("nothing has been made yet")


def _machine(machine: "Machine") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(machine) | {"labels": dict(machine.labels), "state": str(machine.state)}


def _show(machines: list["Machine"]) -> None:
    now = time.time()
    show_table(
        [
            {
                "tpu": m.name,
                "type": m.type,
                "zone": m.zone,
                "state": str(m.state),
                "hosts": len(m.workers) or None,
                "owner": m.owner or "none known",
                "expires in": "" if m.expires is None else _ago(2 * now - m.expires),
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


def _ago(moment: float | None) -> str:
    """How long a moment (seconds since 1970) is past, in hours and minutes."""
    minutes = max(0, round((time.time() - (moment or time.time())) / 60))
    return f"{minutes // 60}:{minutes % 60:02d} h"


def _usd(value: float | None) -> str:
    return "no rate" if value is None else f"{value:.2f}"


app.command(context_settings=COMMAND)(remote.ssh)
app.command()(remote.sync)
app.command(context_settings=COMMAND)(remote.run)
app.command()(remote.logs)
app.command()(remote.stop)
app.command()(remote.clean)
app.command()(remote.status)
