"""`taetpu tpu ssh | sync | run | logs | stop | clean`: work with shells, files and jobs on a machine's hosts."""

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.cloud import find_hosts, read_settings, select_hosts
from taetpu.cli.options import DryRun, Tpu, Workers, integer, number
from taetpu.cli.output import log
from taetpu.core.errors import Failed, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taetpu.cloud.settings import Settings
    from taetpu.cloud.ssh import Hosts

COMMAND = {"allow_extra_args": True, "allow_interspersed_args": False}
"""Typer settings for a command whose arguments are another command with its options."""
WORDS = "[OPTIONS] COMMAND [ARGS]..."
DEBUG = {
    "TF_CPP_MIN_LOG_LEVEL": "0", "TPU_STDERR_LOG_LEVEL": "0", "TPU_MIN_LOG_LEVEL": "0", "TPU_LOG_DIR": "{job}",
    "XLA_FLAGS": "--xla_dump_to={job}/xla --xla_dump_hlo_as_text", "JAX_TRACEBACK_FILTERING": "off",
}  # fmt: skip
"""Environment variables of a job started with `--debug`. `{job}` is the job's folder on the host."""
FETCHED = "taetpu-debug"

Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="For crashes and hangs: write verbose XLA and TPU logs and dumps, and copy them here at the end.",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return at once; `tpu logs -f` shows the log.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="The job. Default: the newest.")]


def ssh(context: typer.Context, tpu: Tpu = None, worker: Annotated[int, integer(help="The host, from 0.")] = 0) -> None:
    """Open a shell on a host, or run a command there.

    Example: taetpu tpu ssh --worker 1 nproc
    """
    sys.exit(find_hosts(read_settings(), tpu).enter(worker, command_words(context)))


def sync(tpu: Tpu = None, worker: Workers = "all", dry_run: DryRun = False) -> None:
    """Copy this project to the hosts, except for files that git ignores. Files deleted here are deleted there.

    Files that jobs wrote are kept. While a job runs nothing is deleted.

    Example: taetpu tpu sync
    """
    _, hosts, workers = select_hosts(tpu, worker)
    for line in sync_project(hosts, workers, dry_run=dry_run):
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

    The job survives lost connections and Ctrl-C. Only one job can run at a time.

    Example: taetpu tpu run --detach python train.py --lr 3e-4
    """
    words = command_words(context)
    if not words:
        raise UserError("missing COMMAND", remedy="taetpu tpu run python train.py --lr 3e-4")
    settings, hosts, workers = select_hosts(tpu, worker)
    if not dry_run:
        check_idle(hosts, workers)
    for line in sync_project(hosts, workers, dry_run=dry_run):
        typer.echo(line)
    if dry_run:
        log(f"would run `{shlex.join(words)}` on {len(workers)} host(s) of {hosts.name}")
        return
    run_job(settings, hosts, [words], workers, detach=detach, debug=debug)


def logs(
    job: Job = "",
    tpu: Tpu = None,
    worker: Workers = "all",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
) -> None:
    """Print a job's log.

    With several hosts, each line starts with the host's number.

    Example: taetpu tpu logs -f
    """
    from taetpu.cloud import jobs

    _, hosts, workers = select_hosts(tpu, worker)
    found = jobs.find(hosts, job, workers)
    print_log(hosts, next(iter(found.values()))["name"], sorted(found), to_end=follow)


def stop(
    job: Job = "",
    tpu: Tpu = None,
    worker: Workers = "all",
    grace: Annotated[float, number(help="Seconds between SIGTERM and SIGKILL.")] = 30.0,
    dry_run: DryRun = False,
) -> None:
    """Stop a job by SIGTERM, then SIGKILL.

    On SIGTERM a study stores a checkpoint.

    Example: taetpu tpu stop
    """
    from taetpu.cloud import jobs

    _, hosts, workers = select_hosts(tpu, worker)
    running = [one["name"] for one in jobs.running(hosts, workers)]
    if not (name := job or (running[-1] if running else "")):
        log(f"no job runs on {hosts.name}")
    elif dry_run:
        log(f"would stop {name} on {hosts.name}")
    else:
        ended = jobs.stop(hosts, name, workers, grace=grace)
        log(f"{name}: {', '.join(f'worker {number} {describe(one)}' for number, one in ended.items())}")


def clean(
    job: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="Jobs; default: all that have ended.")] = None,
    tpu: Tpu = None,
    worker: Workers = "all",
    dry_run: DryRun = False,
) -> None:
    """Delete the folders of jobs that have ended, with their logs.

    Example: taetpu tpu clean
    """
    from taetpu.cloud import jobs

    _, hosts, workers = select_hosts(tpu, worker)
    if dry_run:
        states = jobs.state(hosts, workers).values()
        gone = sorted({one["name"] for host in states for one in host["jobs"] if one["state"] != "running"})
        gone = [name for name in gone if not job or name in job]
    else:
        gone = jobs.clean(hosts, job or [], workers)
    log(f"{'would delete' if dry_run else 'deleted'} {', '.join(gone)}" if gone else "no job has ended")


def register(app: typer.Typer) -> None:
    """Add the commands to the group `tpu`."""
    app.command(context_settings=COMMAND, options_metavar="[OPTIONS] [COMMAND [ARGS]...]")(ssh)
    app.command(context_settings=COMMAND, options_metavar=WORDS)(run)
    for command in (sync, logs, stop, clean):
        app.command()(command)


# --- shared with `taetpu dev` ---------------------------------------------------------------------------------------


def command_words(context: typer.Context) -> list[str]:
    """Return the arguments after the options, without a leading `--`."""
    return context.args[1:] if context.args[:1] == ["--"] else list(context.args)


def check_idle(hosts: "Hosts", workers: "Sequence[int]") -> None:
    """Raise `Refused` if a job is running, so that its files are not changed."""
    from taetpu.cloud import jobs

    if running := jobs.running(hosts, workers):
        raise jobs.Refused(f"{hosts.name} runs the job {running[0]['name']}", remedy=jobs.BUSY)


def sync_project(hosts: "Hosts", workers: "Sequence[int]", *, dry_run: bool = False) -> list[str]:
    """Copy this project to the hosts and return the changed paths. A dry run only returns all paths of the project."""
    from taetpu.cloud import jobs, transfer

    root = transfer.project_folder(Path.cwd())
    if dry_run:
        return transfer.list_files(root)
    keep = bool(jobs.running(hosts, workers))
    return transfer.sync(hosts, root, transfer.remote_folder(root), workers, keep=keep)


def job_folder() -> str:
    """Return the folder on the hosts that corresponds to the current folder."""
    from taetpu.cloud import transfer

    root = transfer.project_folder(Path.cwd())
    return f"{transfer.remote_folder(root)}/{Path.cwd().resolve().relative_to(root).as_posix()}".removesuffix("/.")


def run_job(
    settings: "Settings", hosts: "Hosts", commands: "list[list[str]]", workers: "Sequence[int]", *, detach: bool,
    debug: bool,
) -> None:  # fmt: skip
    """Start a job. Unless `detach` is set, print its log until it ends.

    Raises:
        Failed: if the job failed on a host.
    """
    from taetpu.cloud import jobs

    environment = DEBUG if debug else {}
    request = jobs.Request(commands, job_folder(), environment, settings.image, settings.secret_names)
    name = jobs.start(hosts, request, workers)
    log(
        f"started job {name} on {hosts.name}; `taetpu tpu logs -f {name}` shows its log, "
        f"`taetpu tpu stop {name}` stops it"
    )
    if not detach:
        finish(hosts, name, workers, debug=debug)


def finish(hosts: "Hosts", name: str, workers: "Sequence[int]", *, debug: bool = False) -> None:
    """Print a job's log until the job ends. Ctrl-C exits with 130, and the job continues.

    Raises:
        Failed: if the job failed on a host.
    """
    from taetpu.cloud import jobs, transfer

    try:
        print_log(hosts, name, workers, to_end=True)
    except KeyboardInterrupt:
        log(
            f"\njob {name} is still running: `taetpu tpu logs -f {name}` shows its log, "
            f"`taetpu tpu stop {name}` stops it"
        )
        sys.exit(128 + signal.SIGINT)
    ended = jobs.find(hosts, name, workers)
    if debug:
        for worker in workers:
            transfer.fetch(hosts, worker, f".taetpu/jobs/{name}", Path(FETCHED) / name / f"worker-{worker}")
        log(f"logs and dumps: {Path(FETCHED) / name}")
    if any(one["rc"] != 0 for one in ended.values()):
        states = "; ".join(f"worker {worker} {describe(one)}" for worker, one in ended.items())
        raise Failed(f"job {name} failed: {states}")


def print_log(hosts: "Hosts", name: str, workers: "Sequence[int]", *, to_end: bool) -> None:
    """Print a job's log. If there are several hosts, each line starts with the host's number."""
    from taetpu.cloud import jobs

    def write(worker: int, line: str) -> None:
        typer.echo(line if len(workers) == 1 else f"[{worker}] {line}")

    jobs.follow(hosts, name, write, workers, to_end=to_end)


def describe(job: "dict[str, Any]") -> str:
    """Return a job's state as text."""
    return {"ended": f"ended with {job['rc']}", "lost": "was killed", "running": "running"}[job["state"]]
