"""`taetpu tpu ssh`, `sync`, `run`, `logs`, `stop`, `clean` and `status`: what happens on a TPU's hosts."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import DryRun
from taetpu.cli.options import AsJson
from taetpu.cli.tables import show_json, show_table

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.ssh import Slice

DEBUG = {
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TPU_STDERR_LOG_LEVEL": "0",
    "TPU_MIN_LOG_LEVEL": "0",
    "TPU_LOG_DIR": "{job}/tpu",
    "XLA_FLAGS": "--xla_dump_to={job}/xla --xla_dump_hlo_as_text",
    "JAX_TRACEBACK_FILTERING": "off",
}
"""What a job is given with --debug; `{job}` is its folder on the host."""

# What follows the options is a command of its own, and keeps its own options.
COMMAND = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

Stack = Annotated[str | None, typer.Option("--tpu", metavar="NAME", help="The TPU; else `stack` of the settings.")]
On = Annotated[str, typer.Option("--worker", metavar="N|all", help="One host of several, by its number from 0.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="The job; else the newest.")]
Beside = Annotated[bool, typer.Option("--beside", help="Although a job runs: this one does not use the TPU.")]
Debug = Annotated[bool, typer.Option("--debug", help="Let XLA and the TPU say more, and fetch it with XLA's dumps.")]


def ssh(
    context: typer.Context,
    tpu: Stack = None,
    worker: Annotated[int, typer.Option(help="One host of several, by its number from 0.")] = 0,
    forward: Annotated[
        list[str] | None, typer.Option("-L", metavar="PORT:HOST:PORT", help="Bring a port of the host here.")
    ] = None,
) -> None:
    """Log into a host, or run a command there.

    Example: taetpu tpu ssh --worker 1 -L 6006:localhost:6006
    """
    options = [word for one in forward or [] for word in ("-L", one)]
    slice_of(here(), tpu).enter(worker, options, _words(context))


def sync(tpu: Stack = None, worker: On = "all", dry_run: DryRun = False) -> None:
    """Make the hosts' copy of this project the same as here. What git ignores is neither sent nor deleted there.

    Example: taetpu tpu sync --dry-run
    """
    from taetpu.cloud import transfer

    slice = slice_of(here(), tpu)
    root = transfer.project(Path.cwd())
    changed = transfer.sync(slice, root, transfer.work(root), dry_run=dry_run, workers=workers(slice, worker))
    for line in changed:
        typer.echo(line)
    tell(f"{'would change' if dry_run else 'changed'} {len(changed)} paths of ~/{transfer.work(root)}")


def run(
    context: typer.Context,
    tpu: Stack = None,
    worker: On = "all",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for it.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove the job's folder once it has ended well.")] = False,
    debug: Debug = False,
    beside: Beside = False,
) -> None:
    """Sync this project and run a command in it on every host. It goes on when the connection is lost, or at Ctrl-C.

    Example: taetpu tpu run --detach python train.py --lr 3e-4
    """
    from taetpu.cloud import transfer
    from taetpu.core.errors import UserError

    words = _words(context)
    if not words:
        raise UserError("what shall be run is not said", remedy="taetpu tpu run python train.py --lr 3e-4")
    place = here()
    slice = slice_of(place, tpu)
    chosen = workers(slice, worker)
    root = transfer.project(Path.cwd())
    transfer.sync(slice, root, transfer.work(root), workers=chosen)
    name = begin(place, slice, [words], chosen, debug=debug, beside=beside)
    if not detach:
        finish(slice, name, chosen, clean=clean, debug=debug)


def logs(
    job: Job = "",
    tpu: Stack = None,
    worker: On = "all",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
) -> None:
    """What a job has written, on each host. A lost connection is made again, and no line comes twice.

    Example: taetpu tpu logs -f
    """
    from taetpu.cloud import jobs

    slice = slice_of(here(), tpu)
    found = jobs.job(slice, job, workers(slice, worker))
    name = next(iter(found.values()))["name"]
    _read(slice, name, sorted(found), follow)


def stop(
    job: Job = "",
    tpu: Stack = None,
    worker: On = "all",
    grace: Annotated[float, typer.Option(help="Seconds that it has to end by itself.")] = 30.0,
) -> None:
    """End a job. SIGTERM lets it write a checkpoint; SIGKILL comes after a while.

    Example: taetpu tpu stop
    """
    from taetpu.cloud import jobs

    slice = slice_of(here(), tpu)
    chosen = workers(slice, worker)
    name = next(iter(jobs.job(slice, job, chosen).values()))["name"]
    codes = jobs.stop(slice, name, grace=grace, workers=chosen)
    tell(f"{name} has ended: {_codes(codes)}")


def clean(
    job: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="The jobs; else all that ended.")] = None,
    tpu: Stack = None,
    worker: On = "all",
) -> None:
    """Remove the folders of jobs that have ended, with their logs.

    Example: taetpu tpu clean
    """
    from taetpu.cloud import jobs

    slice = slice_of(here(), tpu)
    gone = jobs.clean(slice, job or [], workers(slice, worker))
    tell(f"removed {', '.join(gone)}" if gone else "no job has ended that could be removed")


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
    found = jobs.status(_slice(place, machine)) if machine.state is State.READY else {}
    if as_json:
        hosts = [{"error": one.problem} if isinstance(one, CloudError) else one for one in found.values()]
        told = {"tpu": machine.name, "type": machine.type, "zone": machine.zone, "state": str(machine.state)}
        show_json(told | {"detail": machine.detail, "hosts": hosts})
        return
    detail = f" ({machine.detail})" if machine.detail else ""
    typer.echo(f"{machine.name}: {machine.type} in {machine.zone}, {machine.state}{detail}")
    if not found:
        return
    rows = [_host(worker, one) for worker, one in found.items()]
    show_table(rows)
    listed = [
        {"worker": worker, "job": job["name"], "state": _ended(job), "command": _command(job)}
        for worker, one in found.items()
        if not isinstance(one, CloudError)
        for job in one["jobs"]
    ]
    typer.echo("")
    show_table(listed) if listed else typer.echo("no job has been begun")


def slice_of(place: Here, name: str | None) -> "Slice":
    """The hosts of a TPU, as they were last seen; asked for where they were not.

    Raises:
        NotFound: there is none.
        Conflict: it is not ready.
    """
    from taetpu.cloud.backends.base import State
    from taetpu.cloud.errors import Conflict
    from taetpu.cloud.ssh import Slice

    if known := Slice.known(place.stack(name), place.settings):
        return known
    machine = machine_of(place, name)
    if machine.state is not State.READY:
        problem = f"{machine.name} in {machine.zone} is not ready: it is {machine.state} ({machine.detail})"
        raise Conflict(problem, remedy="`taetpu tpu up` waits for it, or makes another")
    return _slice(place, machine)


def machine_of(place: Here, name: str | None) -> "Machine":
    """A TPU by the API's word, the one that is ready if several are there.

    Raises:
        NotFound: there is none.
    """
    from taetpu.cloud.backends.base import State
    from taetpu.cloud.errors import NotFound

    stack = place.stack(name)
    there = sorted(place.cloud.of(stack), key=lambda machine: machine.state is not State.READY)
    if there:
        return there[0]
    names = ", ".join(sorted({m.stack for m in place.cloud.machines() if m.owner == place.cloud.owner}))
    raise NotFound(f"there is no TPU {stack!r} of yours", remedy=f"yours: {names}" if names else "`taetpu tpu up`")


def _slice(place: Here, machine: "Machine") -> "Slice":
    from taetpu.cloud.spec import Spec
    from taetpu.cloud.ssh import Slice

    return Slice.of(machine, Spec.user, place.settings)


def workers(slice: "Slice", chosen: str) -> list[int]:
    """The hosts that `--worker` means.

    Raises:
        UserError: it means none.
    """
    from taetpu.core.errors import UserError

    if chosen == "all":
        return list(slice.all)
    if not chosen.isdecimal():
        raise UserError(f"--worker {chosen!r} is no host", remedy="a number from 0, or all")
    return [slice.check(int(chosen))]


def begin(
    place: Here,
    slice: "Slice",
    commands: list[list[str]],
    chosen: list[int],
    *,
    debug: bool = False,
    beside: bool = False,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Begin a job in the folder on the hosts that stands for this one; its name."""
    from taetpu.cloud import jobs, transfer

    root = transfer.project(Path.cwd())
    folder = f"{transfer.work(root)}/{Path.cwd().resolve().relative_to(root).as_posix()}"
    given = (DEBUG if debug else {}) | dict(environment or {})
    asked = jobs.Asked(commands, folder.removesuffix("/."), given, place.settings.image)
    name = jobs.start(slice, asked, workers=chosen, beside=beside)
    tell(f"job {name} runs on {slice.stack}: `taetpu tpu logs -f {name}` reads it, `taetpu tpu stop {name}` ends it")
    return name


def finish(slice: "Slice", name: str, chosen: list[int], *, clean: bool = False, debug: bool = False) -> None:
    """Read a job to its end. Ctrl-C leaves it running.

    Raises:
        Failed: it did not end well everywhere.
    """
    from taetpu.cloud import jobs, transfer
    from taetpu.core.errors import Failed

    try:
        _read(slice, name, chosen, follow=True)
    except KeyboardInterrupt:
        tell(f"\n{name} goes on: `taetpu tpu stop {name}` ends it")
        raise
    told = jobs.job(slice, name, chosen)
    if debug:
        for worker in chosen:
            target = Path("taetpu-debug") / name / f"worker-{worker}"
            transfer.fetch(slice, worker, f".taetpu/jobs/{name}", target)
        tell(f"logs and dumps: taetpu-debug/{name}")
    if any(one["rc"] for one in told.values()) or any(one["state"] != "ended" for one in told.values()):
        states = "; ".join(f"worker {worker}: {_ended(one)}" for worker, one in told.items())
        raise Failed(f"the job {name} did not end well: {states}")
    if clean:
        jobs.clean(slice, [name], chosen)


def _read(slice: "Slice", name: str, chosen: list[int], follow: bool) -> None:
    """Print a job's logs; with several hosts each line has its host's number."""
    from taetpu.cloud import jobs

    def write(worker: int, line: str) -> None:
        sys.stdout.write(f"{line}\n" if len(chosen) == 1 else f"[{worker}] {line}\n")
        sys.stdout.flush()

    jobs.logs(slice, name, write, follow=follow, workers=chosen)


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


def _ended(job: Mapping[str, Any]) -> str:
    """How a job stands, in words."""
    words = {"running": "running", "lost": "killed", "ended": f"ended with {job['rc']}"}[job["state"]]
    return f"{words}, preempted" if job["preempted"] else words


def _command(job: Mapping[str, Any]) -> str:
    import shlex

    return "; ".join(shlex.join(command) for command in job["commands"])


def _codes(codes: Mapping[int, int]) -> str:
    return ", ".join(f"worker {worker} with {code}" for worker, code in codes.items())
