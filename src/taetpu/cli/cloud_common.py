"""Functions that the cloud commands share: settings, machine specifications, confirmation and hosts."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from taetpu.cli.options import MachineOptions
from taetpu.cli.output import log, wrap
from taetpu.core.errors import UserError, suggest

if TYPE_CHECKING:
    from taetpu.cloud.gcloud import Command
    from taetpu.cloud.machine_api import Machine, Spec
    from taetpu.cloud.settings import Settings
    from taetpu.cloud.ssh import Hosts

LONGEST_HOURS, SHORTEST_HOURS = 168.0, 0.1


def read_settings(need_project: bool = True) -> "Settings":
    """Return the settings of the current folder, and set the project for gcloud.

    Raises:
        UserError: if the settings are invalid, or if `need_project` is set and they do not name a project.
    """
    from taetpu.cloud import settings
    from taetpu.cloud.gcloud import use_project

    current = settings.read_settings()
    if need_project and not current.project:
        raise UserError("no project is set", remedy='Set `project = "ID"` below [cloud] in taetpu.toml.')
    use_project(current.project)
    return current


def machine_name(settings: "Settings", name: str | None) -> str:
    """Return the name of the machine: `name` if given, else the name in the settings, else `tpu-OWNER`."""
    from taetpu.cloud.names_and_labels import check_name, default_name, label_value

    return check_name(name or settings.name or default_name(label_value(settings.owner)))


def build_spec(settings: "Settings", name: str, options: MachineOptions) -> "Spec":
    """Return the specification of the machine that the options and settings describe.

    Raises:
        UserError: if no slice is named or a value is invalid.
    """
    from taetpu.cloud import zone_rates
    from taetpu.cloud.machine_api import Spec
    from taetpu.cloud.names_and_labels import label_value
    from taetpu.core.chips import parse_slice

    if options.kind is None:
        remedy = "Add --type with a slice, such as v6e-8; `taetpu chips` lists all slices."
        raise UserError("missing --type", remedy=remedy)
    if options.spot and options.reservation:
        raise UserError("--spot and --reservation cannot be used together", remedy="Use only one of these options.")
    hours = settings.max_hours if options.max_hours is None else options.max_hours
    if not SHORTEST_HOURS <= hours <= LONGEST_HOURS:
        problem = f"--max-hours must be {SHORTEST_HOURS:g} to {LONGEST_HOURS:g}, got {hours:g}"
        raise UserError(problem, path=("--max-hours",), remedy="Use a value in this range.")
    tpu = parse_slice(options.kind)
    api = zone_rates.api_for(tpu, options.api or settings.api)
    return Spec(
        name, tpu, api, label_value(settings.owner), hours, options.runtime or zone_rates.runtime_for(tpu, api),
        spot=options.spot, reservation=options.reservation, service_account=settings.service_account,
        network=settings.network, subnetwork=settings.subnetwork, external_ip=settings.external_ip,
        user=settings.user,
    )  # fmt: skip


def with_idle_minutes(settings: "Settings", options: MachineOptions) -> "Settings":
    """Return the settings with `--idle-minutes` applied."""
    if options.idle_minutes is None:
        return settings
    return settings.model_copy(update={"idle_minutes": options.idle_minutes})


def candidate_zones(spec: "Spec", settings: "Settings", options: MachineOptions) -> list[str]:
    """Return the zones to try.

    The zones in `--zone` take precedence over the zones in the settings. If neither are given, all zones that offer
    the slice are returned, cheapest first. Zones in which the cost could exceed the limit are left out.

    Raises:
        UserError: if the name of a zone is invalid, or if the cost could exceed the limit in every zone.
    """
    from taetpu.cloud import zone_rates
    from taetpu.cloud.settings import check_zone

    named = [check_zone(zone) for zone in options.zone or []] or list(settings.zones)
    limit = settings.max_usd if options.max_usd is None else options.max_usd
    return zone_rates.filter_affordable(spec, named or zone_rates.zones_by_rate(spec.tpu, spec.spot), limit)


def describe_plan(spec: "Spec", zones: Sequence[str]) -> str:
    """Return lines that describe a machine's size, zones, costs and time of deletion."""
    from taetpu.cloud import zone_rates
    from taetpu.core.chips import table_date

    reserved = f"reservation {spec.reservation}" if spec.api == "gce" else "any reservation of the project"
    way = "spot" if spec.spot else reserved if spec.reservation else "on demand"
    size = f"{spec.tpu.chips} chips, {spec.tpu.hosts} host(s)"
    lines = [f"create {spec.name}: {spec.tpu.name}, {size}, {way}, {spec.api}"]
    lines += [f"  {'or' if zone != zones[0] else 'in'} {zone}: {zone_rates.cost(spec, zone)}" for zone in zones[:6]]
    if len(zones) > 6:
        lines.append(f"  or {len(zones) - 6} more zones")
    by = "Compute Engine" if spec.api == "gce" else "a timer on the machine"
    deletion = f"deleted {spec.hours:.3g} h after its start by {by}"
    lines.append(f"{deletion}; rates of {table_date()}, without disks and traffic")
    return "\n".join(lines)


def confirm(
    plan: str, question: str, commands: "Sequence[Command]" = (), *, yes: bool, dry_run: bool = False, typed: str = ""
) -> bool:
    """Print a plan and ask for confirmation. Exits with 1 on "no" and with 130 on Ctrl-C.

    Args:
        plan: description of the changes.
        question: the question that asks for confirmation.
        commands: gcloud commands that a dry run prints.
        yes: whether to skip the question.
        dry_run: whether to print the commands instead of asking.
        typed: a name that must be typed instead of "y", for changes that cannot be undone.

    Returns:
        True if the plan is confirmed, False after a dry run.

    Raises:
        UserError: if a question is necessary and standard input is not a terminal.
    """
    log("\n".join(wrap(line, hanging=4) for line in plan.splitlines()))
    if dry_run:
        log("dry run: nothing was changed")
        if commands:
            print_commands(commands)
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UserError("confirmation requires a terminal", remedy="Pass --yes or --dry-run.")
    try:
        if typed:
            agreed = typer.prompt(f"{question} Type {typed!r} to confirm", err=True) == typed
        else:
            agreed = typer.confirm(question, err=True)
    except typer.Abort:
        log("\nnothing was changed")
        sys.exit(130)
    if not agreed:
        log("nothing was changed")
        sys.exit(1)
    return True


def print_commands(commands: "Sequence[Command]") -> None:
    """Print the given gcloud commands for a shell, preceded by a line that sets the project."""
    typer.echo(f"export CLOUDSDK_CORE_PROJECT={shlex.quote(os.environ.get('CLOUDSDK_CORE_PROJECT', ''))}")
    for command in commands:
        typer.echo(command.shown)


def open_zones(settings: "Settings", zones: Sequence[str]) -> list[str]:
    """Return the given zones in which a machine can reach Google's APIs. A machine needs these APIs to delete itself.

    Raises:
        CloudError: if the network has no route to Google's APIs in any of the zones.
    """
    from taetpu.cloud.doctor import check_egress
    from taetpu.cloud.gcloud import CloudError

    check = check_egress(settings, zones)
    if check.status == "fails":
        closed = [zone for zone in zones if zone.rpartition("-")[0] in check.regions]
        if len(closed) == len(zones):
            raise CloudError(check.found, remedy=check.remedy)
        log(f"{check.found}; skipped zones: {', '.join(closed)}")
        return [zone for zone in zones if zone not in closed]
    if check.status == "warning":  # a TPU API machine checks at startup whether it can delete itself
        log(check.found)
    return list(zones)


def show_creation(spec: "Spec", zones: Sequence[str], settings: "Settings", more: str = "") -> None:
    """Print the plan for a machine, and the command that creates the machine in the first zone."""
    from taetpu.cloud.lifecycle import creation_command

    confirm(f"{describe_plan(spec, zones)}{more}", "", yes=False, dry_run=True)
    typer.echo("# Use this command now, because it contains the time of deletion. Later, repeat --dry-run.")
    print_commands([creation_command(spec, zones[0], settings)])


@contextmanager
def warn_of_costs(warning: str, name: str = "") -> Iterator[None]:
    """If the block is interrupted or fails, print a warning about resources that still cost money.

    Ctrl-C, SIGTERM and SIGHUP exit with 128 plus the signal's number. After a `UserError`, the warning is not
    printed. Instead, if `name` is given, the error's message also lists the remaining machines with that name.
    """
    received = signal.SIGINT

    def stop(number: int, frame: object) -> None:
        nonlocal received
        received = signal.Signals(number)
        raise KeyboardInterrupt

    numbers = [signum for signum in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        log(f"\n{warning}")
        sys.exit(128 + received)
    except UserError as error:
        if name:
            from taetpu.cloud.lifecycle import describe_remaining

            error.problem += describe_remaining(name)
        raise
    except Exception:
        log(f"\n{warning}")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def find_machine(settings: "Settings", name: str | None) -> "Machine":
    """Return the machine with the given name. Ready machines take precedence.

    Raises:
        CloudError: if no machine has this name, or if several ready machines have this name.
    """
    from taetpu.cloud.gcloud import CloudError
    from taetpu.cloud.lifecycle import check_one
    from taetpu.cloud.machine_api import list_machines

    wanted = machine_name(settings, name)
    machines = list_machines()
    there = sorted(
        (machine for machine in machines if machine.name == wanted), key=lambda machine: machine.state != "ready"
    )
    if not there:
        names = [machine.name for machine in machines]
        hint = suggest(wanted, names) if names else "Create a machine with `taetpu tpu up`."
        raise CloudError(f"no machine {wanted!r} in {settings.project}", remedy=hint)
    check_one([machine for machine in there if machine.state == "ready"])
    return there[0]


def find_hosts(settings: "Settings", name: str | None) -> "Hosts":
    """Return the hosts of a machine. They are read from the local cache if it contains them.

    Raises:
        CloudError: if the machine does not exist or is not ready.
    """
    from taetpu.cloud.gcloud import CloudError
    from taetpu.cloud.ssh import Hosts

    if known := Hosts.load(machine_name(settings, name), settings.project):
        return known
    machine = find_machine(settings, name)
    if machine.state != "ready":
        problem = f"{machine.name} in {machine.zone} is {machine.state} ({machine.detail})"
        raise CloudError(problem, remedy="Wait for the machine with `taetpu tpu up`.")
    return Hosts.configure(machine, settings.user, settings.project)


def select_hosts(name: str | None, worker: str) -> "tuple[Settings, Hosts, list[int]]":
    """Return the settings, the hosts of a machine, and the host numbers that `--worker` selects.

    Raises:
        UserError: if `worker` is neither the number of a host nor "all".
        CloudError: if the machine does not exist or is not ready.
    """
    settings = read_settings()
    hosts = find_hosts(settings, name)
    if worker == "all":
        return settings, hosts, list(hosts.all)
    if not (worker.isascii() and worker.isdecimal()):
        raise UserError(f"invalid --worker {worker!r}", path=("--worker",), remedy="Use a number from 0, or all.")
    return settings, hosts, [hosts.check_worker(int(worker))]
