"""`taetpu tpu ssh | sync | run | logs | stop | clean` and `taetpu dev`: shells, files and jobs on a machine's hosts.

`taetpu tpu sync` and `taetpu tpu run` copy the whole project. `taetpu dev` copies single files.
"""

import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taetpu.cli.cloud_common import find_hosts, read_settings, select_hosts
from taetpu.cli.options import Tpu, Workers, integer, number
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
POLL = 0.5
"""Seconds between scans of the project for `sync --watch`."""

Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="For crashes and hangs, write verbose logs and dumps of XLA and the TPU, and copy them here at the end.",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return at once; `tpu logs -f` shows the log.")]
Watch = Annotated[bool, typer.Option("--watch", help="Repeat after each local change until Ctrl-C.")]
Forward = Annotated[
    list[str] | None,
    typer.Option(
        "--forward", "-L", metavar="PORT[:HOST:PORT]",
        help="Make a port of the host (default: the same one) reachable at PORT of this computer. Can be repeated.",
    ),
]  # fmt: skip
Job = Annotated[str, typer.Argument(metavar="JOB", help="The job. Default: the newest job.")]


def ssh(
    context: typer.Context,
    tpu: Tpu = None,
    worker: Annotated[int, integer(help="The host, from 0.")] = 0,
    forward: Forward = None,
) -> None:
    """Open a shell on a host, or run a command there.

    Example: taetpu tpu ssh --worker 1 nproc
    """
    from taetpu.cloud.port_forwarding import parse_forward

    forwards = [parse_forward(text) for text in forward or []]
    sys.exit(find_hosts(read_settings(), tpu).enter(worker, command_words(context), forwards))


def sync(tpu: Tpu = None, worker: Workers = "all", watch: Watch = False) -> None:
    """Copy this project to the hosts, once or after each change.

    Files that git ignores are not copied. Files that were deleted here are also deleted on the hosts, unless a job is
    running. Files that jobs wrote are kept.

    Example: taetpu tpu sync --watch
    """
    from taetpu.cloud import transfer
    from taetpu.cloud.ssh import Unreachable

    _, hosts, workers = select_hosts(tpu, worker)
    root, before = transfer.project_folder(Path.cwd()), None
    while True:
        now = {name: (root / name).lstat().st_mtime_ns for name in transfer.list_files(root)}
        if now != before:
            try:
                for line in sync_project(hosts, workers):
                    typer.echo(line)
                before = now
            except Unreachable as error:
                if not watch:
                    raise
                log(f"{error.problem}; retrying")
        if not watch:
            return
        time.sleep(POLL)


def run(
    context: typer.Context,
    tpu: Tpu = None,
    worker: Workers = "all",
    detach: Detach = False,
    debug: Debug = False,
) -> None:
    """Copy this project to the hosts and run a command there.

    The job survives lost connections and Ctrl-C. Only one job can run at a time.

    Example: taetpu tpu run --detach python train.py --lr 3e-4
    """
    words = command_words(context)
    if not words:
        raise UserError("missing COMMAND", remedy="Add a command, as in `taetpu tpu run python train.py --lr 3e-4`.")
    settings, hosts, workers = select_hosts(tpu, worker)
    check_idle(hosts, workers)
    for line in sync_project(hosts, workers):
        typer.echo(line)
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
    from taetpu.cloud import host_jobs

    _, hosts, workers = select_hosts(tpu, worker)
    jobs = host_jobs.find(hosts, job, workers)
    print_log(hosts, next(iter(jobs.values()))["name"], sorted(jobs), to_end=follow)


def stop(
    job: Job = "",
    tpu: Tpu = None,
    worker: Workers = "all",
    grace: Annotated[float, number(help="Seconds between SIGTERM and SIGKILL.")] = 30.0,
) -> None:
    """Stop a job with SIGTERM, then with SIGKILL.

    A study stores a checkpoint when it receives SIGTERM.

    Example: taetpu tpu stop
    """
    from taetpu.cloud import host_jobs

    _, hosts, workers = select_hosts(tpu, worker)
    running = [state["name"] for state in host_jobs.running(hosts, workers)]
    if not (name := job or (running[-1] if running else "")):
        log(f"no job is running on {hosts.name}")
    else:
        ended = host_jobs.stop(hosts, name, workers, grace=grace)
        log(f"{name}: {', '.join(f'worker {number} {describe(state)}' for number, state in ended.items())}")


def clean(
    job: Annotated[list[str] | None, typer.Argument(metavar="JOB", help="The jobs. Default: all ended jobs.")] = None,
    tpu: Tpu = None,
    worker: Workers = "all",
) -> None:
    """Delete the folders and logs of jobs that have ended.

    Example: taetpu tpu clean
    """
    from taetpu.cloud import host_jobs

    _, hosts, workers = select_hosts(tpu, worker)
    gone = host_jobs.clean(hosts, job or [], workers)
    log(f"deleted {', '.join(gone)}" if gone else "no job has ended")


def register(app: typer.Typer) -> None:
    """Add the commands to the group `tpu`."""
    app.command(context_settings=COMMAND, options_metavar="[OPTIONS] [COMMAND [ARGS]...]")(ssh)
    app.command(context_settings=COMMAND, options_metavar=WORDS)(run)
    for command in (sync, logs, stop, clean):
        app.command()(command)


# --- `taetpu dev` -----------------------------------------------------------------------------------------------------

dev_app = typer.Typer(help="Try files on a TPU.\n\nExample: taetpu dev run train.py --lr 3e-4")

NEXT, FILES = "+", "[OPTIONS] FILE [ARGS]... [+ FILE [ARGS]...]..."
Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Files and folders. Default: the project.")]


@dev_app.command()
def mount(paths: Paths = None, tpu: Tpu = None, worker: Workers = "all") -> None:
    """Copy files and folders to the same paths on the hosts.

    Example: taetpu dev mount train.py models/
    """
    _, hosts, workers = select_hosts(tpu, worker)
    for line in _send(hosts, paths or [], workers):
        typer.echo(line)


@dev_app.command("run", context_settings=COMMAND, options_metavar=FILES)
def dev_run(
    context: typer.Context, tpu: Tpu = None, worker: Workers = "all", detach: Detach = False, debug: Debug = False
) -> None:
    """Copy Python files to the hosts and run them. `+` separates files with their arguments.

    Example: taetpu dev run prepare.py --size 10 + train.py --lr 3e-4
    """
    _run_files(command_words(context), tpu, worker, detach=detach, debug=debug)


@dev_app.command("run-all", context_settings=COMMAND, options_metavar=FILES)
def run_all(context: typer.Context, tpu: Tpu = None, worker: Workers = "all") -> None:
    """Copy Python files, run them, and delete the copies.

    Example: taetpu dev run-all train.py --steps 10
    """
    _run_files(command_words(context), tpu, worker, scrap=True)


def _run_files(
    words: list[str], tpu: str | None, worker: str, *, detach: bool = False, debug: bool = False, scrap: bool = False
) -> None:
    """Copy Python files to the hosts and run them. If `scrap` is set, delete the copies at the end."""
    settings, hosts, workers = select_hosts(tpu, worker)
    commands, files = _parse(words)
    check_idle(hosts, workers)
    _send(hosts, files, workers)
    try:
        run_job(settings, hosts, commands, workers, detach=detach, debug=debug)
    except Failed:
        if scrap:
            _delete(hosts, files, workers)
        raise
    if scrap:
        _delete(hosts, files, workers)


@dev_app.command("sync")
def dev_sync(tpu: Tpu = None, worker: Workers = "all", watch: Watch = False) -> None:
    """Copy this project to the hosts, as `taetpu tpu sync` does.

    Example: taetpu dev sync --watch
    """
    sync(tpu, worker, watch)


@dev_app.command()
def scrap(paths: Paths = None, tpu: Tpu = None, worker: Workers = "all") -> None:
    """Delete the copies of files and folders from the hosts.

    Without PATH, the copy of the whole project is deleted. Local files are never deleted.

    Example: taetpu dev scrap train.py
    """
    _, hosts, workers = select_hosts(tpu, worker)
    _delete(hosts, paths or [], workers)


def _parse(words: list[str]) -> tuple[list[list[str]], list[str]]:
    """Split words such as `a.py 1 + b.py 2` into commands. Return the commands and their files.

    Raises:
        UserError: if no file is named or a file does not exist.
    """
    ends = [-1, *(number for number, word in enumerate(words) if word == NEXT), len(words)]
    groups = [words[a + 1 : b] for a, b in pairwise(ends)]
    if not all(groups):
        raise UserError("missing FILE", remedy="Name a file, as in `taetpu dev run a.py --lr 1 + b.py`.")
    for first, *_ in groups:
        if not Path(first).exists():
            raise UserError("no such file", file=first, remedy="Run other programs with `taetpu tpu run COMMAND`.")
    return [["python", *group] for group in groups], [first for first, *_ in groups]


def _send(hosts: "Hosts", paths: list[str], workers: list[int]) -> list[str]:
    """Copy the given paths to the hosts, and return the changed paths. If `paths` is empty, copy the whole project."""
    from taetpu.cloud import transfer

    if not paths:
        return sync_project(hosts, workers)
    root = transfer.project_folder(Path.cwd())
    for path in paths:
        if not os.path.lexists(path):
            raise UserError("no such file or folder", file=path, remedy="Name a path in this project.")
    names = [name for path in _relative(root, paths) for name in _files(root, path)]
    return transfer.send(hosts, root, names, transfer.remote_folder(root), workers)


def _delete(hosts: "Hosts", paths: list[str], workers: list[int]) -> None:
    """Delete the copies of the given paths from the hosts. If `paths` is empty, delete the whole copy."""
    from taetpu.cloud import transfer

    root = transfer.project_folder(Path.cwd())
    transfer.delete(hosts, transfer.remote_folder(root), _relative(root, paths), workers)


def _relative(root: Path, paths: list[str]) -> list[str]:
    return [os.path.relpath(os.path.abspath(path), root) for path in paths]


def _files(root: Path, name: str) -> list[str]:
    """Return the path of a file. For a folder, return the paths of its files that git does not ignore."""
    from taetpu.cloud import transfer

    path = root / name
    return [f"{name}/{file}" for file in transfer.list_files(path)] if path.is_dir() else [name]


# --- files and logs ---------------------------------------------------------------------------------------------------


def command_words(context: typer.Context) -> list[str]:
    """Return the arguments after the options, without a leading `--`."""
    return context.args[1:] if context.args[:1] == ["--"] else list(context.args)


def check_idle(hosts: "Hosts", workers: "Sequence[int]") -> None:
    """Raise `Refused` if a job is running, so that its files are not changed."""
    from taetpu.cloud import host_jobs

    if running := host_jobs.running(hosts, workers):
        raise host_jobs.Refused(f"job {running[0]['name']} is running on {hosts.name}", remedy=host_jobs.BUSY)


def sync_project(hosts: "Hosts", workers: "Sequence[int]") -> list[str]:
    """Copy this project to the hosts and return the changed paths."""
    from taetpu.cloud import host_jobs, transfer

    root = transfer.project_folder(Path.cwd())
    keep = bool(host_jobs.running(hosts, workers))
    return transfer.sync(hosts, root, transfer.remote_folder(root), workers, keep=keep)


def run_job(
    settings: "Settings", hosts: "Hosts", commands: "list[list[str]]", workers: "Sequence[int]", *, detach: bool,
    debug: bool,
) -> None:  # fmt: skip
    """Start a job in the folder on the hosts that corresponds to the current folder.

    Unless `detach` is set, print the job's log until the job ends. Ctrl-C exits with 130, and the job continues.

    Raises:
        Failed: if the job failed on a host.
    """
    from taetpu.cloud import host_jobs, transfer

    root = transfer.project_folder(Path.cwd())
    below = Path.cwd().resolve().relative_to(root).as_posix()
    folder = f"{transfer.remote_folder(root)}/{below}".removesuffix("/.")
    request = host_jobs.Request(commands, folder, DEBUG if debug else {}, settings.image, settings.secret_names)
    name = host_jobs.start(hosts, request, workers)
    usage = f"`taetpu tpu logs -f {name}` shows its log, and `taetpu tpu stop {name}` stops it"
    log(f"started job {name} on {hosts.name}; {usage}")
    if detach:
        return
    try:
        print_log(hosts, name, workers, to_end=True)
    except KeyboardInterrupt:
        log(f"\njob {name} is still running: {usage}")
        sys.exit(128 + signal.SIGINT)
    ended = host_jobs.find(hosts, name, workers)
    if debug:
        fetched = Path(transfer.FETCHED) / name
        for worker in workers:
            transfer.fetch(hosts, worker, f".taetpu/jobs/{name}", fetched / f"worker-{worker}")
        log(f"logs and dumps: {fetched}")
    if any(state["rc"] != 0 for state in ended.values()):
        states = "; ".join(f"worker {worker} {describe(state)}" for worker, state in ended.items())
        raise Failed(f"job {name} failed: {states}")


def print_log(hosts: "Hosts", name: str, workers: "Sequence[int]", *, to_end: bool) -> None:
    """Print a job's log. If there are several hosts, each line starts with the host's number."""
    from taetpu.cloud import host_jobs

    def write(worker: int, line: str) -> None:
        typer.echo(line if len(workers) == 1 else f"[{worker}] {line}")

    host_jobs.follow(hosts, name, write, workers, to_end=to_end)


def describe(job: "dict[str, Any]") -> str:
    """Return a job's state as text."""
    return {"ended": f"ended with {job['rc']}", "lost": "was killed", "running": "running"}[job["state"]]
