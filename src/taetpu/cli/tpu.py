"""`taetpu tpu`: machines made, found and removed; what happens on them is in `remote`."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli import remote
from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import DryRun, Yes, agreed
from taetpu.cli.options import AsJson
from taetpu.cli.tables import say, show_json, show_table

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.cost import Price
    from taetpu.cloud.spec import Spec

app = typer.Typer(help="Cloud TPUs: from zones to teardown.", no_args_is_help=True)

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The TPU; else `stack` of the settings.")]
Zones = Annotated[
    list[str] | None, typer.Option("--zone", help="Where it may be, the preferred first. May be repeated.")
]


@app.command()
def up(
    name: Name = None,
    kind: Annotated[str | None, typer.Option("--type", help="The slice: v6e-8, v5e:2x4.")] = None,
    zone: Zones = None,
    backend: Annotated[str | None, typer.Option(help="gce or tpu-api; else the one that suits the chip.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Cheaper, and may be taken back at any time.")] = False,
    flex_start: Annotated[bool, typer.Option("--flex-start", help="Wait for it, then keep it for its time.")] = False,
    reservation: Annotated[str, typer.Option(help="Take it out of this reservation.")] = "",
    max_hours: Annotated[float | None, typer.Option(help="Delete it after so many hours.")] = None,
    max_usd: Annotated[float | None, typer.Option(help="Refuse it if its worst case costs more.")] = None,
    idle_minutes: Annotated[int | None, typer.Option(help="Delete it once idle for so long; 0: never.")] = None,
    runtime: Annotated[str, typer.Option(help="The software version or image family.")] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a TPU, or find the one that is there. The same command again changes nothing.

    Example: taetpu tpu up --type v6e-8 --spot --max-usd 20
    """
    place = here()
    spec = _spec(place, name, kind, backend, provisioning(spot, flex_start, reservation), reservation, runtime)
    spec = _limited(spec, place, max_hours, idle_minutes)
    zones = _zones(place, spec, zone)
    prices = {zone: _price(place, spec, zone) for zone in zones}
    _check(place, spec, prices, max_usd)
    if not agreed(_plan(spec, prices), "Create it?", yes=yes, dry_run=dry_run):
        return
    machine = _made(place, spec, zones, prices)
    show_json(_machine(machine)) if as_json else _show([machine])
    _show_orphans(place, machine)


def _made(place: Here, spec: "Spec", zones: list[str], prices: dict[str, "Price"]) -> "Machine":
    """The machine, set up so that jobs can run on it."""
    from taetpu.cloud import reconcile, ssh, vm

    key = ssh.public_key()
    rates = [price.per_hour for price in prices.values() if price.per_hour is not None]
    rate = max(rates) if rates else None
    machine = reconcile.up(place.cloud, spec, zones, vm.startup(spec, place.settings), key, rate)
    tell(f"{machine.name} is ready in {machine.zone} by the API's word; waiting until it answers")
    vm.prepare(ssh.Slice.of(machine, spec.user, place.settings), spec, tell)
    return machine


@app.command()
def down(name: Name = None, dry_run: DryRun = False, yes: Yes = False) -> None:
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
    if there and not agreed("\n".join(lines), "Delete it?", yes=yes, dry_run=dry_run):
        return
    if not dry_run:
        reconcile.down(place.cloud, stack)
        ssh.forget(stack)


@app.command("list")
def list_machines(as_json: AsJson = False) -> None:
    """Every TPU machine of the project that can be seen, yours or not, in all zones.

    Example: taetpu tpu list
    """
    place = here()
    machines, parts = place.cloud.machines(), [part for b in place.cloud.backends for part in b.parts()]
    if as_json:
        show_json({"machines": [_machine(m) for m in machines], "parts": parts})
        return
    _show(machines) if machines else typer.echo("no TPU machine is there")
    for part in parts:
        say(f"left over: {part} (`taetpu tpu gc` removes it)")


@app.command()
def gc(dry_run: DryRun = False, yes: Yes = False) -> None:
    """Remove your machines that should be gone by their label. What is not yours is never touched.

    Example: taetpu tpu gc --dry-run
    """
    from taetpu.cloud import reconcile

    place = here()
    machines = place.cloud.machines()
    doomed = reconcile.expired(machines, place.cloud.owner, place.cloud.waits.now())
    for machine in machines:
        if not machine.owner:
            tell(f"left alone: {machine.name} in {machine.zone} has no owner that taetpu knows")
    if not doomed:
        tell("nothing of yours has expired")
        return
    lines = [f"delete {m.name}: {m.type} in {m.zone}, expired {_ago(m.expires)} ago" for m in doomed]
    if agreed("\n".join(lines), "Delete them?", yes=yes, dry_run=dry_run):
        reconcile.collect(place.cloud, doomed)


@app.command()
def cost(as_json: AsJson = False) -> None:
    """What your machines cost an hour, have cost, and may cost yet.

    Example: taetpu tpu cost
    """
    from taetpu.cloud.cost import spent

    place, rows = here(), []
    cloud = place.cloud
    alive = {machine.stack: machine for machine in cloud.machines() if machine.owner == cloud.owner}
    now = cloud.waits.now()
    for stack in sorted({*alive, *cloud.records.stacks()}):
        record, machine = cloud.records.read(stack), alive.get(stack)
        so_far = spent(record.usd_per_hour, record.since, now) if machine else 0.0
        left = max(0.0, (machine.expires or now) - now) / 3600 if machine else 0.0
        row: dict[str, Any] = {"tpu": stack, "state": str(machine.state) if machine else "gone"}
        row["USD an hour"] = record.usd_per_hour if machine else 0.0
        row["so far"] = None if so_far is None else so_far + record.spent
        row["at most yet"] = None if record.usd_per_hour is None else record.usd_per_hour * left
        rows.append(row)
    if as_json:
        show_json(rows)
    elif rows:
        show_table([{k: _usd(v) if k not in ("tpu", "state") else v for k, v in row.items()} for row in rows])
        say("By published rates, from when each was ready; disks, traffic and buckets are not in it.")
    else:
        typer.echo("nothing has been made yet")


def provisioning(spot: bool, flex_start: bool, reservation: str) -> str:
    """How it is to be paid for.

    Raises:
        UserError: more than one way is asked for.
    """
    from taetpu.core.errors import UserError

    ways = {"spot": spot, "flex-start": flex_start, "reservation": bool(reservation)}
    asked = [way for way, wanted in ways.items() if wanted]
    if len(asked) > 1:
        raise UserError(f"--{' and --'.join(asked)} exclude each other", remedy="give one of them")
    return asked[0] if asked else "on-demand"


def _spec(
    place: Here, name: str | None, kind: str | None, backend: str | None, way: str, reservation: str, runtime: str
) -> "Spec":
    from taetpu.cloud.catalogue import backend_for, runtime_of
    from taetpu.cloud.spec import Spec, label
    from taetpu.core.chips import resolve
    from taetpu.core.errors import UserError

    if kind is None:
        raise UserError("which TPU is not said", remedy="--type, e.g. v6e-8; `taetpu chips` lists them")
    tpu, own = resolve(kind), place.settings
    made_by = backend_for(tpu, backend or own.backend)
    return Spec(
        place.stack(name), tpu, made_by, way, reservation, runtime=runtime or runtime_of(tpu, made_by),
        owner=label(own.owner), network=own.network, subnetwork=own.subnetwork, external_ip=own.external_ip,
        service_account=own.service_account, image=own.image,
    )  # fmt: skip


def _limited(spec: "Spec", place: Here, max_hours: float | None, idle_minutes: int | None) -> "Spec":
    """The spec with its limits in time."""
    from dataclasses import replace

    from taetpu.core.errors import UserError

    hours = place.settings.max_hours if max_hours is None else max_hours
    if not 0 < hours <= 168:
        raise UserError(f"--max-hours {hours:g} is no time that a TPU may be kept", remedy="more than 0, at most 168")
    minutes = place.settings.idle_minutes if idle_minutes is None else idle_minutes
    return replace(spec, hours=hours, idle_minutes=minutes or None)


def _zones(place: Here, spec: "Spec", wanted: list[str] | None) -> list[str]:
    """Where to ask, in order.

    Raises:
        UserError: the slice is listed nowhere.
    """
    from taetpu.cloud.catalogue import offer, rate
    from taetpu.core.errors import UserError

    if chosen := wanted or place.settings.zones:
        return list(chosen)
    listed = place.cloud.backend(spec.backend).zones(spec.tpu) or sorted(offer(spec.tpu).zones)
    if not listed:
        raise UserError(f"{spec.backend} lists {spec.tpu.name} in no zone", remedy="`taetpu tpu zones` shows where")

    def costs(zone: str) -> tuple[bool, float]:
        usd = rate(spec.tpu, zone, spec.provisioning)
        return usd is None, usd or 0.0

    return sorted(listed, key=costs)


def _price(place: Here, spec: "Spec", zone: str) -> "Price":
    from taetpu.cloud.cost import Price
    from taetpu.cloud.prices import rate

    usd, source = rate(place.clients, spec.tpu, zone, spec.provisioning)
    return Price(spec.tpu.chips, spec.hours, usd, source)


def _check(place: Here, spec: "Spec", prices: dict[str, "Price"], max_usd: float | None) -> None:
    """Refuse zones that may cost more than is allowed; those that may not are kept."""
    from taetpu.cloud.cost import check
    from taetpu.cloud.errors import Invalid

    limits = place.settings if max_usd is None else place.settings.model_copy(update={"max_usd": max_usd})
    refused: list[Invalid] = []
    for zone in list(prices):
        try:
            check(prices[zone], spec, zone, limits)
        except Invalid as error:
            refused.append(error)
            del prices[zone]
    if not prices and refused:
        raise refused[0]


def _plan(spec: "Spec", prices: dict[str, "Price"]) -> str:
    """What `up` would do, in lines."""
    idle = f"; deleted once idle for {spec.idle_minutes} min" if spec.idle_minutes else ""
    lines = [
        f"{spec.stack}: {spec.tpu.name} ({spec.tpu.chips} chips, {spec.tpu.hosts} host(s)), {spec.provisioning}",
        f"by {spec.backend} with {spec.runtime}; deleted after {spec.hours:g} h{idle}",
    ]
    for zone, price in prices.items():
        lines.append(f"  {zone}: {price.told()}")
    return "\n".join(lines)


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


app.command(context_settings=remote.COMMAND)(remote.ssh)
app.command()(remote.sync)
app.command(context_settings=remote.COMMAND)(remote.run)
app.command()(remote.logs)
app.command()(remote.stop)
app.command()(remote.clean)
app.command()(remote.status)
