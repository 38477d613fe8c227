"""`taetpu tpu ssh`, `sync`, `run`, `logs`, `stop`, `clean` and `status`: what happens on a TPU's hosts."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from taetpu.cli.cloud import here, lasting, tell
from taetpu.cli.consent import DryRun
from taetpu.cli.hosts import (
    Beside,
    Debug,
    On,
    Stack,
    asking,
    begin,
    bring,
    ended,
    enter_host,
    fetch,
    finish,
    hosts_of,
    machine_of,
    read,
    slice_of,
    synced,
    workers,
    would_run,
)  # fmt: skip
from taetpu.cli.options import AsJson, integer, number
from taetpu.cli.tables import show_json, show_table

Job = Annotated[str, typer.Argument(metavar="JOB", help="The job; else the newest.")]


def ssh(
    context: typer.Context,
    tpu: Stack = None,
    worker: Annotated[int, integer(help="One host of several, by its number from 0.")] = 0,
    forward: Annotated[
        list[str] | None, typer.Option("-L", metavar="PORT:HOST:PORT", help="Bring a port of the host here.")
    ] = None,
) -> None:
    """Log into a host, or run a command there. Of ssh's own options it takes -L.

    Example: taetpu tpu ssh --worker 1 -L 6006:localhost:6006
    """
    options = [word for one in forward or [] for word in ("-L", one)]
    place = here()
    enter_host(place, slice_of(place, tpu), worker, options, _words(context))


@asking
def sync(tpu: Stack = None, worker: On = "all", dry_run: DryRun = False) -> None:
    """Bring this project to the hosts, without what git ignores. What was sent and is gone here is removed there.

    Whatever jobs wrote stays, except where a file of the project has its name. While a job runs nothing is removed.

    Example: taetpu tpu sync --dry-run
    """
    slice = slice_of(here(), tpu)
    synced(slice, workers(slice, worker), dry_run=dry_run)


@asking
def run(
    context: typer.Context,
    tpu: Stack = None,
    worker: On = "all",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for it.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove the job's folder once it has ended well.")] = False,
    debug: Debug = False,
    beside: Beside = False,
    dry_run: DryRun = False,
) -> None:
    """Sync this project and run a command in it on every host. It goes on when the connection is lost, or at Ctrl-C.

    Where a job runs or the TPU is in use nothing is sent.

    Example: taetpu tpu run --detach python train.py --lr 3e-4
    """
    from taetpu.cloud import jobs
    from taetpu.core.errors import UserError

    words = _words(context)
    if not words:
        raise UserError("what shall be run is not said", remedy="taetpu tpu run python train.py --lr 3e-4")
    place = here()
    slice = slice_of(place, tpu)
    chosen = workers(slice, worker)
    if dry_run:
        would_run(slice, bring(slice, chosen, dry_run=True)[0], [words], chosen)
        return
    if not beside:
        jobs.check(slice, chosen)  # before a file of a job that runs is touched
    bring(slice, chosen)
    name = begin(place, slice, [words], chosen, debug=debug, beside=beside)
    if not detach:
        finish(slice, name, chosen, clean=clean, debug=debug)


@asking
def logs(
    job: Job = "",
    tpu: Stack = None,
    worker: On = "all",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Then fetch its folder, with XLA's dumps.")] = False,
) -> None:
    """What a job has written, on each host. A lost connection is made again, and no line comes twice.

    Example: taetpu tpu logs -f
    """
    from taetpu.cloud import jobs

    slice = slice_of(here(), tpu)
    found = jobs.job(slice, job, workers(slice, worker))
    name = next(iter(found.values()))["name"]
    read(slice, name, sorted(found), follow)
    if debug:
        fetch(slice, name, sorted(found))


@asking
def stop(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job; else the newest that runs.")] = "",
    tpu: Stack = None,
    worker: On = "all",
    grace: Annotated[float, number(help="Seconds that it has to end by itself.")] = 30.0,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """End a job. SIGTERM lets it write a checkpoint; SIGKILL comes after a while. None that runs is fine.

    Example: taetpu tpu stop
    """
    from taetpu.cloud import jobs

    slice = slice_of(here(), tpu)
    name, codes = jobs.stop(slice, job, grace=grace, workers=workers(slice, worker), dry_run=dry_run)
    if as_json:
        show_json({"job": name or None, "codes": codes})
    elif not name:
        tell(f"no job runs on {slice.stack}")
    elif dry_run and None in codes.values():
        hosts = ", ".join(slice.place(worker) for worker, code in codes.items() if code is None)
        tell(f"would end {name} on {hosts}: SIGTERM, and SIGKILL after {grace:g} s; dry run: nothing was changed")
    else:
        tell(f"{name} has ended: {_codes(codes)}")


@asking
def clean(
    job: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="The jobs; else all that ended.")] = None,
    tpu: Stack = None,
    worker: On = "all",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove the folders of jobs that have ended, with their logs. What they wrote elsewhere stays.

    Example: taetpu tpu clean
    """
    from taetpu.cloud import jobs

    slice = slice_of(here(), tpu)
    gone = jobs.clean(slice, job or [], workers(slice, worker), dry_run=dry_run)
    if as_json:
        show_json({"would remove" if dry_run else "removed": gone})
    else:
        does = "dry run: would remove" if dry_run else "removed"
        tell(f"{does} {', '.join(gone)}" if gone else "no job has ended that could be removed")


def status(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The TPU; else the settings'.")] = None,
    as_json: AsJson = False,
) -> None:
    """A TPU, its hosts, their jobs, and how its chips are used. Of chips, what libtpu tells.

    Example: taetpu tpu status
    """
    from taetpu.cloud import jobs
    from taetpu.cloud.backends.base import State
    from taetpu.cloud.errors import CloudError

    place = here()
    machine = machine_of(place, name)
    found = jobs.status(hosts_of(place, machine)) if machine.state is State.READY else {}
    if as_json:
        hosts = [{"error": one.problem} if isinstance(one, CloudError) else one for one in found.values()]
        told = {"tpu": machine.name, "type": machine.type, "zone": machine.zone, "state": str(machine.state)}
        show_json(told | {"detail": machine.detail, "hosts": hosts})
        return
    detail = f" ({machine.detail})" if machine.detail else ""
    end = lasting(machine, place.cloud.waits.now())
    typer.echo(f"{machine.name}: {machine.type} in {machine.zone}, {machine.state}{detail}")
    if end:
        typer.echo(f"deleted {end}")
    if not found:
        return
    rows = [_host(worker, one) for worker, one in found.items()]
    show_table(rows)
    listed = [
        {"worker": worker, "job": job["name"], "state": ended(job), "command": _command(job)}
        for worker, one in found.items()
        if not isinstance(one, CloudError)
        for job in one["jobs"]
    ]
    typer.echo("")
    show_table(listed) if listed else typer.echo("no job has been begun")


def _words(context: typer.Context) -> list[str]:
    """The command that stands behind the options, with or without `--`."""
    return context.args[1:] if context.args[:1] == ["--"] else list(context.args)


def _host(worker: int, told: Any) -> dict[str, Any]:
    from taetpu.cloud.errors import CloudError

    row: dict[str, Any] = {"worker": worker, "chips": None}
    row |= dict.fromkeys(("in use by", "memory", "busy", "disk", "guard"), "")
    if isinstance(told, CloudError):
        return row | {"guard": told.problem}
    usage = told["usage"]
    if usage:
        used, whole = (sum(one[key] for one in usage) / 2**30 for key in ("memory_usage", "total_memory"))
        row |= {"memory": f"{used:.1f} of {whole:.0f} GiB"}
        row |= {"busy": f"{sum(one['duty_cycle_pct'] for one in usage) / len(usage):.0f} %"}
    else:
        row |= {"memory": "not known", "busy": "not known"}
    held = told["holders"]
    by = "not known" if held is None else ", ".join(sorted({f"{name} ({pid})" for pid, name, _ in held})) or "nobody"
    row |= {"chips": told["chips"], "in use by": by, "disk": f"{told['free'] / 1e9:.0f} GB"}
    return row | {"guard": told["guard"]}


def _command(job: Mapping[str, Any]) -> str:
    import shlex

    return "; ".join(shlex.join(command) for command in job["commands"])


def _codes(codes: Mapping[int, int | None]) -> str:
    return ", ".join(f"worker {worker} with {code}" for worker, code in codes.items())
