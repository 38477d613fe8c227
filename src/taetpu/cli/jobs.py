"""`taetpu tpu ssh | sync | run | logs | stop | clean`: what happens on a machine's hosts."""

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.cloud import DryRun, Tpu, Workers, chosen_workers, find_hosts, read_settings, tell
from taetpu.cli.options import integer, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taetpu.cloud.settings import Settings
    from taetpu.cloud.ssh import Hosts

# The words after the options are a command with options of its own.
COMMAND = {"allow_extra_args": True, "allow_interspersed_args": False}
WORDS = "[OPTIONS] COMMAND [ARGS]..."
DEBUG = {
    "TF_CPP_MIN_LOG_LEVEL": "0", "TPU_STDERR_LOG_LEVEL": "0", "TPU_MIN_LOG_LEVEL": "0", "TPU_LOG_DIR": "{job}",
    "XLA_FLAGS": "--xla_dump_to={job}/xla --xla_dump_hlo_as_text", "JAX_TRACEBACK_FILTERING": "off",
}  # fmt: skip
"""Variables of a job with --debug; `{job}` is its folder on the host."""
FETCHED = "taetpu-debug"

Debug = Annotated[
    bool,
    typer.Option(
        "--debug", help="For a crash or hang: verbose XLA and TPU logs and dumps, copied here when the job ends."
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return at once; `tpu logs -f` follows the job.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="A job; default: the newest.")]


def ssh(context: typer.Context, tpu: Tpu = None, worker: Annotated[int, integer(help="The host, from 0.")] = 0) -> None:
    """Open a shell on a host, or run a command there.

    Example: taetpu tpu ssh --worker 1 nproc
    """
    sys.exit(find_hosts(read_settings(), tpu).enter(worker, command_words(context)))


def sync(tpu: Tpu = None, worker: Workers = "all", dry_run: DryRun = False) -> None:
    """Copy this project to the hosts, without what git ignores. Files that are gone here are deleted there.

    Files that jobs wrote are kept. While a job runs nothing is deleted.

    Example: taetpu tpu sync
    """
    hosts = find_hosts(read_settings(), tpu)
    for line in bring(hosts, chosen_workers(hosts, worker), dry_run=dry_run):
        typer.echo(line)


def run(
    context: typer.Context,
    tpu: Tpu = None,
    worker: Workers = "all",
    detach: Detach = False,
    debug: Debug = False,
    dry_run: DryRun = False,
) -> None:
    """Copy this project to the hosts and run a command there.

    The job survives lost connections and Ctrl-C. It is refused while another job runs.

    Example: taetpu tpu run --detach python train.py --lr 3e-4
    """
    from taetpu.core.errors import UserError

    words = command_words(context)
    if not words:
        raise UserError("missing COMMAND", remedy="taetpu tpu run python train.py --lr 3e-4")
    settings = read_settings()
    hosts = find_hosts(settings, tpu)
    chosen = chosen_workers(hosts, worker)
    if not dry_run:
        refuse_running(hosts, chosen)
    for line in bring(hosts, chosen, dry_run=dry_run):
        typer.echo(line)
    if dry_run:
        tell(f"would run `{shlex.join(words)}` on {len(chosen)} host(s) of {hosts.name}")
        return
    run_job(settings, hosts, [words], chosen, detach=detach, debug=debug)


def logs(
    job: Job = "",
    tpu: Tpu = None,
    worker: Workers = "all",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
) -> None:
    """Print a job's log, of several hosts with their numbers.

    Example: taetpu tpu logs -f
    """
    from taetpu.cloud import jobs

    hosts = find_hosts(read_settings(), tpu)
    found = jobs.find(hosts, job, chosen_workers(hosts, worker))
    print_log(hosts, next(iter(found.values()))["name"], sorted(found), to_end=follow)


def stop(
    job: Job = "",
    tpu: Tpu = None,
    worker: Workers = "all",
    grace: Annotated[float, number(help="Seconds between SIGTERM and SIGKILL.")] = 30.0,
    dry_run: DryRun = False,
) -> None:
    """End a job: SIGTERM lets it store a checkpoint, SIGKILL follows.

    Example: taetpu tpu stop
    """
    from taetpu.cloud import jobs

    hosts = find_hosts(read_settings(), tpu)
    chosen = chosen_workers(hosts, worker)
    running = [one["name"] for one in jobs.running(hosts, chosen)]
    if not (name := job or (running[-1] if running else "")):
        tell(f"no job runs on {hosts.name}")
    elif dry_run:
        tell(f"would end {name} on {hosts.name}")
    else:
        ended = jobs.stop(hosts, name, chosen, grace=grace)
        tell(f"{name}: {', '.join(f'worker {number} {describe(one)}' for number, one in ended.items())}")


def clean(
    job: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Jobs; default: all that ended.")] = None,
    tpu: Tpu = None,
    worker: Workers = "all",
    dry_run: DryRun = False,
) -> None:
    """Delete the folders of jobs that ended, with their logs.

    Example: taetpu tpu clean
    """
    from taetpu.cloud import jobs

    hosts = find_hosts(read_settings(), tpu)
    chosen = chosen_workers(hosts, worker)
    if dry_run:
        told = jobs.state(hosts, chosen).values()
        gone = sorted({one["name"] for host in told for one in host["jobs"] if one["state"] != "running"})
        gone = [name for name in gone if not job or name in job]
    else:
        gone = jobs.clean(hosts, job or [], chosen)
    tell(f"{'would delete' if dry_run else 'deleted'} {', '.join(gone)}" if gone else "no job has ended")


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(context_settings=COMMAND, options_metavar="[OPTIONS] [COMMAND [ARGS]...]")(ssh)
    app.command(context_settings=COMMAND, options_metavar=WORDS)(run)
    for command in (sync, logs, stop, clean):
        app.command()(command)


# --- shared with `taetpu dev` ---------------------------------------------------------------------------------------


def command_words(context: typer.Context) -> list[str]:
    """Return the words after the options, with or without `--`."""
    return context.args[1:] if context.args[:1] == ["--"] else list(context.args)


def refuse_running(hosts: "Hosts", workers: "Sequence[int]") -> None:
    """Raise `Refused` where a job runs, before any of its files is touched."""
    from taetpu.cloud import jobs

    if running := jobs.running(hosts, workers):
        raise jobs.Refused(f"{hosts.name} runs the job {running[0]['name']}", remedy=jobs.BUSY)


def bring(hosts: "Hosts", workers: "Sequence[int]", *, dry_run: bool = False) -> list[str]:
    """Sync the project of this folder; the changed paths, or all that would be compared."""
    from taetpu.cloud import jobs, transfer

    root = transfer.project_folder(Path.cwd())
    if dry_run:
        return transfer.list_files(root)
    keep = bool(jobs.running(hosts, workers))
    return transfer.sync(hosts, root, transfer.remote_folder(root), workers, keep=keep)


def job_folder() -> str:
    """Return the folder on the hosts that corresponds to the current one."""
    from taetpu.cloud import transfer

    root = transfer.project_folder(Path.cwd())
    return f"{transfer.remote_folder(root)}/{Path.cwd().resolve().relative_to(root).as_posix()}".removesuffix("/.")


def run_job(
    settings: "Settings", hosts: "Hosts", commands: "list[list[str]]", workers: "Sequence[int]", *, detach: bool,
    debug: bool,
) -> None:  # fmt: skip
    """Start a job and, unless detached, print its log to its end.

    Raises:
        Failed: it ended with an error on a host.
    """
    from taetpu.cloud import jobs

    environment = DEBUG if debug else {}
    request = jobs.Request(commands, job_folder(), environment, settings.image, settings.secret_names)
    name = jobs.start(hosts, request, workers)
    tell(
        f"started job {name} on {hosts.name}; `taetpu tpu logs -f {name}` follows it, `taetpu tpu stop {name}` ends it"
    )
    if not detach:
        finish(hosts, name, workers, debug=debug)


def finish(hosts: "Hosts", name: str, workers: "Sequence[int]", *, debug: bool = False) -> None:
    """Print a job's log to its end. Ctrl-C leaves the job running and ends this process.

    Raises:
        Failed: it ended with an error on a host.
    """
    from taetpu.cloud import jobs, transfer
    from taetpu.core.errors import Failed

    try:
        print_log(hosts, name, workers, to_end=True)
    except KeyboardInterrupt:
        tell(f"\njob {name} is still running: `taetpu tpu logs -f {name}` follows it, `taetpu tpu stop {name}` ends it")
        sys.exit(128 + signal.SIGINT)
    ended = jobs.find(hosts, name, workers)
    if debug:
        for worker in workers:
            transfer.fetch(hosts, worker, f".taetpu/jobs/{name}", Path(FETCHED) / name / f"worker-{worker}")
        tell(f"logs and dumps: {Path(FETCHED) / name}")
    if any(one["rc"] != 0 for one in ended.values()):
        states = "; ".join(f"worker {worker} {describe(one)}" for worker, one in ended.items())
        raise Failed(f"job {name} failed: {states}")


def print_log(hosts: "Hosts", name: str, workers: "Sequence[int]", *, to_end: bool) -> None:
    """Print a job's log; with several hosts each line begins with the host's number."""
    from taetpu.cloud import jobs

    def write(worker: int, line: str) -> None:
        typer.echo(line if len(workers) == 1 else f"[{worker}] {line}")

    jobs.follow(hosts, name, write, workers, to_end=to_end)


def describe(job: "dict[str, Any]") -> str:
    """Return the state of a job in words."""
    return {"ended": f"ended with {job['rc']}", "lost": "was killed", "running": "running"}[job["state"]]
