"""What all cloud commands share: settings, options, the plan that is confirmed, the hosts that are meant."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.options import integer, number
from taetpu.cli.output import fitting

if TYPE_CHECKING:
    from taetpu.cloud.gcloud import Command
    from taetpu.cloud.machines import Machine, Spec
    from taetpu.cloud.settings import Settings
    from taetpu.cloud.ssh import Hosts

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would change, with the gcloud commands for it; change nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation, as in scripts.")]
Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The machine; default: `name` of the settings, else tpu-OWNER.")
]
Tpu = Annotated[str | None, typer.Option("--tpu", metavar="NAME", help="The machine; default: as for `tpu up`.")]
Workers = Annotated[
    str, typer.Option("--worker", metavar="N|all", help="One host of a slice that has several, from 0.")
]
Type = Annotated[str | None, typer.Option("--type", metavar="TPU", help="The slice, such as v6e-8 or v5e:2x4.")]
Zones = Annotated[
    list[str] | None,
    typer.Option(
        "--zone", metavar="ZONE", help="A zone to try; may be repeated. Default: all that have it, cheapest first."
    ),
]
ApiOption = Annotated[
    str, typer.Option("--api", metavar="gce|tpu-api", help="The API to use: each has a quota of its own.")
]
Spot = Annotated[bool, typer.Option("--spot", help="A spot machine: cheaper, and Google may take it away at any time.")]
Reservation = Annotated[
    str, typer.Option(metavar="NAME", help="Use chips of a reservation that your project has paid for.")
]
MaxHours = Annotated[float | None, number(help="Delete the machine after these hours, to bound its cost. Default: 4.")]
MaxUsd = Annotated[
    float | None, number(least=0, help="Refuse a machine that may cost more by its end. Default: no limit.")
]
IdleMinutes = Annotated[
    int | None,
    integer(least=0, help="Delete the machine after these minutes without a job or login; 0: never. Default: 30."),
]
Runtime = Annotated[
    str, typer.Option(help="Software version (tpu-api) or image family (gce), where the default does not suit.")
]

LONGEST_HOURS, SHORTEST_HOURS = 168.0, 0.1


def tell(line: str) -> None:
    """Print progress on standard error."""
    typer.echo(line, err=True)


def read_settings(need_project: bool = True) -> "Settings":
    """Return the settings of this folder, with gcloud set to their project.

    Raises:
        UserError: they are invalid, or name no project.
    """
    from taetpu.cloud import settings
    from taetpu.cloud.gcloud import use_project
    from taetpu.core.errors import UserError

    found = settings.read_settings()
    if need_project and not found.project:
        raise UserError("no project is set", remedy='Set `project = "ID"` below [cloud] in taetpu.toml.')
    use_project(found.project)
    return found


def machine_name(settings: "Settings", name: str | None) -> str:
    """Return the machine that is meant: the one named, else the settings', else `tpu-OWNER`."""
    from taetpu.cloud.labels import check_name, default_name, label_value

    return check_name(name or settings.name or default_name(label_value(settings.owner)))


def build_spec(
    settings: "Settings", name: str, kind: str | None, *, api: str = "", spot: bool = False, reservation: str = "",
    max_hours: float | None = None, runtime: str = "", study: str = "",
) -> "Spec":  # fmt: skip
    """Return the machine that the options and settings ask for.

    Raises:
        UserError: no slice is named, or a value is invalid.
    """
    from taetpu.cloud import rates
    from taetpu.cloud.labels import label_value
    from taetpu.cloud.machines import Spec
    from taetpu.core.chips import parse_slice
    from taetpu.core.errors import UserError

    if kind is None:
        raise UserError("missing --type", remedy="Name a slice, such as v6e-8; `taetpu chips` lists them.")
    if spot and reservation:
        raise UserError("--spot and --reservation exclude each other", remedy="Give one of them.")
    hours = settings.max_hours if max_hours is None else max_hours
    if not SHORTEST_HOURS <= hours <= LONGEST_HOURS:
        problem = f"--max-hours must be {SHORTEST_HOURS:g} to {LONGEST_HOURS:g}, got {hours:g}"
        raise UserError(problem, path=("--max-hours",), remedy="A machine needs minutes to be ready.")
    tpu = parse_slice(kind)
    chosen = rates.api_for(tpu, api or settings.api)
    return Spec(
        name, tpu, chosen, label_value(settings.owner), hours, runtime or rates.runtime_for(tpu, chosen), spot=spot,
        reservation=reservation, service_account=settings.service_account, network=settings.network,
        subnetwork=settings.subnetwork, external_ip=settings.external_ip, user=settings.user, study=study,
    )  # fmt: skip


def candidate_zones(spec: "Spec", zones: Sequence[str], settings: "Settings", max_usd: float | None) -> list[str]:
    """Return the zones to try, in order: those named, else the settings', else where it is offered, cheapest first.

    Raises:
        UserError: a zone's name is invalid, or every zone may cost more than allowed.
    """
    from taetpu.cloud import rates
    from taetpu.cloud.settings import check_zone

    named = [check_zone(zone) for zone in zones] or list(settings.zones)
    limit = settings.max_usd if max_usd is None else max_usd
    if named:
        return rates.filter_affordable(spec, named, limit)
    return rates.filter_affordable(spec, rates.zones_by_rate(spec.tpu, spec.spot), limit)


def describe_plan(spec: "Spec", zones: Sequence[str]) -> str:
    """Return what will be made, where, what it costs, and when it ends."""
    from taetpu.cloud import rates
    from taetpu.core.chips import table_date

    reserved = f"reservation {spec.reservation}" if spec.api == "gce" else "any reservation of the project"
    way = "spot" if spec.spot else reserved if spec.reservation else "on demand"
    size = f"{spec.tpu.chips} chips, {spec.tpu.hosts} host(s)"
    lines = [f"create {spec.name}: {spec.tpu.name}, {size}, {way}, {spec.api}"]
    lines += [f"  {'or' if zone != zones[0] else 'in'} {zone}: {rates.cost(spec, zone)}" for zone in zones[:6]]
    if len(zones) > 6:
        lines.append(f"  or {len(zones) - 6} more zones")
    by = "Compute Engine" if spec.api == "gce" else "a timer on the machine"
    lines.append(
        f"deleted {spec.hours:.3g} h after its start by {by}; rates of {table_date()}, without disks and traffic"
    )
    return "\n".join(lines)


def confirm(
    plan: str, question: str, commands: "Sequence[Command]" = (), *, yes: bool, dry_run: bool = False, typed: str = ""
) -> bool:
    """Print a plan and ask; False after a dry run. A refusal ends the process with 1, Ctrl-C with 130.

    Args:
        commands: what a dry run prints.
        typed: a name that must be typed instead of a yes, for what cannot be undone.

    Raises:
        UserError: there is no terminal to ask on.
    """
    from taetpu.core.errors import UserError

    tell(fitting(plan))
    if dry_run:
        tell("dry run: nothing was changed")
        if commands:
            print_commands(commands)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("confirmation is needed, and there is no terminal", remedy="Give --yes, or --dry-run.")
    try:
        if typed:
            agreed = typer.prompt(f"{question} Type {typed!r} to confirm", err=True) == typed
        else:
            agreed = typer.confirm(question, err=True)
    except typer.Abort:
        tell("\nnothing was changed")
        sys.exit(130)
    if not agreed:
        tell("nothing was changed")
        sys.exit(1)
    return True


def print_commands(commands: "Sequence[Command]") -> None:
    """Print gcloud commands as lines that can be pasted into a shell."""
    typer.echo(f"export CLOUDSDK_CORE_PROJECT={shlex.quote(os.environ.get('CLOUDSDK_CORE_PROJECT', ''))}")
    for one in commands:
        typer.echo(one.shown)


def open_zones(settings: "Settings", zones: Sequence[str]) -> list[str]:
    """Return the zones in which a machine can reach Google, without which it could not delete itself.

    Raises:
        CloudError: the network has no egress in any of their regions.
    """
    from taetpu.cloud.doctor import check_egress
    from taetpu.cloud.gcloud import CloudError

    check = check_egress(settings, zones)
    if check.status == "fails":
        closed = [zone for zone in zones if zone.rpartition("-")[0] in check.regions]
        if len(closed) == len(zones):
            raise CloudError(check.found, remedy=check.remedy)
        tell(f"{check.found}; passed over: {', '.join(closed)}")
        return [zone for zone in zones if zone not in closed]
    if check.status == "warning":  # a TPU API machine proves when it starts that it can delete itself
        tell(check.found)
    return list(zones)


def show_creation(spec: "Spec", zones: Sequence[str], settings: "Settings", more: str = "") -> None:
    """Print the plan of a machine and the commands that would make it; the second and later as comments."""
    from taetpu.cloud.provision import creation_command

    first, *others = (creation_command(spec, zone, settings) for zone in zones)
    confirm(f"{describe_plan(spec, zones)}{more}", "", yes=False, dry_run=True)
    typer.echo("# Paste it now: the time of its end is in the line and in its script. Later, repeat --dry-run.")
    print_commands([first])
    for one in others:
        typer.echo(f"# or, where there is no capacity: {one.shown}")


@contextmanager
def telling_what_runs(words: str, name: str = "") -> Iterator[None]:
    """Print what may still run and cost money, whatever ends the work.

    On Ctrl-C, SIGTERM or SIGHUP end with 128 + the signal. To a `UserError` add the machines of a name that remain.
    """
    from taetpu.core.errors import UserError

    received = signal.SIGINT

    def stop(number: int, frame: object) -> None:
        nonlocal received
        received = signal.Signals(number)
        raise KeyboardInterrupt

    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        tell(f"\n{words}")
        sys.exit(128 + received)
    except UserError as error:
        if name:
            from taetpu.cloud.provision import describe_remaining

            error.problem += describe_remaining(name)
        raise
    except Exception:
        tell(f"\n{words}")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def find_machine(settings: "Settings", name: str | None) -> "Machine":
    """Return a machine by name, the ready one beside others that are lost.

    Raises:
        CloudError: there is none, or several are ready.
    """
    from taetpu.cloud.gcloud import CloudError
    from taetpu.cloud.machines import list_machines
    from taetpu.cloud.provision import check_one
    from taetpu.core.errors import suggest

    wanted = machine_name(settings, name)
    machines = list_machines()
    there = sorted((one for one in machines if one.name == wanted), key=lambda one: one.state != "ready")
    if not there:
        hint = suggest(wanted, (one.name for one in machines)) if machines else "`taetpu tpu up` makes one."
        raise CloudError(f"no machine {wanted!r} in {settings.project}", remedy=hint)
    check_one([one for one in there if one.state == "ready"])
    return there[0]


def find_hosts(settings: "Settings", name: str | None) -> "Hosts":
    """Return the hosts of a machine: as last seen from here, else asked for.

    Raises:
        CloudError: there is no such machine, or it is not ready.
    """
    from taetpu.cloud.gcloud import CloudError
    from taetpu.cloud.ssh import Hosts

    if known := Hosts.load(machine_name(settings, name), settings.project):
        return known
    machine = find_machine(settings, name)
    if machine.state != "ready":
        problem = f"{machine.name} in {machine.zone} is {machine.state} ({machine.detail})"
        raise CloudError(problem, remedy="`taetpu tpu up` waits for it.")
    return Hosts.configure(machine, settings.user, settings.project)


def chosen_workers(hosts: "Hosts", worker: str) -> list[int]:
    """Return the hosts that `--worker` names.

    Raises:
        UserError: it names none.
    """
    from taetpu.core.errors import UserError

    if worker == "all":
        return list(hosts.all)
    if not (worker.isascii() and worker.isdecimal()):
        raise UserError(f"invalid --worker {worker!r}", path=("--worker",), remedy="Use a number from 0, or all.")
    return [hosts.check_worker(int(worker))]
