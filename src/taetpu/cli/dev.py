"""`taetpu dev mount | run | run-all | scrap | sync`: single files to a machine and back off it."""

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from taetpu.cli.cloud import Tpu, Workers, chosen_workers, find_hosts, read_settings, tell
from taetpu.cli.jobs import COMMAND, Debug, Detach, bring, command_words, refuse_running, run_job

app = typer.Typer(help="Try files on a TPU.\n\nExample: taetpu dev run train.py --lr 3e-4", no_args_is_help=True)

NEXT, FILES = "+", "[OPTIONS] FILE [ARGS]... [+ FILE [ARGS]...]..."
POLL = 0.5
"""Seconds between two comparisons of this folder's files, with `sync --watch`."""

Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Files and folders; default: the project.")]


@app.command()
def mount(paths: Paths = None, tpu: Tpu = None, worker: Workers = "all") -> None:
    """Copy files and folders to the hosts, to the same paths.

    Example: taetpu dev mount train.py models/
    """
    hosts = find_hosts(read_settings(), tpu)
    for line in _send(hosts, paths or [], chosen_workers(hosts, worker)):
        typer.echo(line)


@app.command(context_settings=COMMAND, options_metavar=FILES)
def run(
    context: typer.Context, tpu: Tpu = None, worker: Workers = "all", detach: Detach = False, debug: Debug = False
) -> None:
    """Copy Python files to the hosts and run them. `+` separates files with their arguments.

    Example: taetpu dev run prepare.py --size 10 + train.py --lr 3e-4
    """
    _run_files(command_words(context), tpu, worker, detach=detach, debug=debug)


@app.command("run-all", context_settings=COMMAND, options_metavar=FILES)
def run_all(context: typer.Context, tpu: Tpu = None, worker: Workers = "all") -> None:
    """Copy Python files, run them, and delete the copies.

    Example: taetpu dev run-all train.py --steps 10
    """
    _run_files(command_words(context), tpu, worker, scrap=True)


def _run_files(
    words: list[str], tpu: str | None, worker: str, *, detach: bool = False, debug: bool = False, scrap: bool = False
) -> None:
    """Copy Python files to the hosts and run them; with `scrap`, delete the copies when the job has ended."""
    from taetpu.core.errors import Failed

    settings = read_settings()
    hosts = find_hosts(settings, tpu)
    chosen = chosen_workers(hosts, worker)
    commands, files = _parse(words)
    refuse_running(hosts, chosen)
    _send(hosts, files, chosen)
    try:
        run_job(settings, hosts, commands, chosen, detach=detach, debug=debug)
    except Failed:
        if scrap:
            _delete(hosts, files, chosen)
        raise
    if scrap:
        _delete(hosts, files, chosen)


@app.command()
def scrap(paths: Paths = None, tpu: Tpu = None, worker: Workers = "all") -> None:
    """Delete the copies of files and folders from the hosts.

    Without a PATH the whole project is deleted there. Nothing is deleted here.

    Example: taetpu dev scrap train.py
    """
    hosts = find_hosts(read_settings(), tpu)
    _delete(hosts, paths or [], chosen_workers(hosts, worker))


@app.command()
def sync(
    tpu: Tpu = None,
    worker: Workers = "all",
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C, after each change here.")] = False,
) -> None:
    """Copy this project to the hosts, once or after each change.

    Example: taetpu dev sync --watch
    """
    from taetpu.cloud import transfer
    from taetpu.cloud.ssh import Unreachable

    hosts = find_hosts(read_settings(), tpu)
    chosen = chosen_workers(hosts, worker)
    root, before = transfer.project_folder(Path.cwd()), None
    while True:
        now = {name: (root / name).lstat().st_mtime_ns for name in transfer.list_files(root)}
        if now != before:
            try:
                for line in bring(hosts, chosen):
                    typer.echo(line)
                before = now
            except Unreachable as error:
                if not watch:
                    raise
                tell(f"{error.problem}; trying again")
        if not watch:
            return
        time.sleep(POLL)


def _parse(words: list[str]) -> tuple[list[list[str]], list[str]]:
    """Return commands and the files that they need, of `a.py 1 + b.py 2`.

    Raises:
        UserError: no file is named, or one does not exist.
    """
    from taetpu.core.errors import UserError

    ends = [-1, *(number for number, word in enumerate(words) if word == NEXT), len(words)]
    groups = [words[a + 1 : b] for a, b in pairwise(ends)]
    if not all(groups):
        raise UserError("missing FILE", remedy="taetpu dev run a.py --lr 1 + b.py")
    for first, *_ in groups:
        if not Path(first).exists():
            raise UserError("no such file", file=first, remedy="`taetpu tpu run COMMAND` runs other programs.")
    return [["python", *group] for group in groups], [first for first, *_ in groups]


def _send(hosts, paths: list[str], workers: list[int]) -> list[str]:
    from taetpu.cloud import transfer
    from taetpu.core.errors import UserError

    if not paths:
        return bring(hosts, workers)
    root = transfer.project_folder(Path.cwd())
    for path in paths:
        if not os.path.lexists(path):
            raise UserError("no such file or folder", file=path, remedy="Name one of this project.")
    names = [name for path in _relative(root, paths) for name in _files(root, path)]
    return transfer.send(hosts, root, names, transfer.remote_folder(root), workers)


def _delete(hosts, paths: list[str], workers: list[int]) -> None:
    from taetpu.cloud import transfer

    root = transfer.project_folder(Path.cwd())
    transfer.delete(hosts, transfer.remote_folder(root), _relative(root, paths), workers)


def _relative(root: Path, paths: list[str]) -> list[str]:
    return [os.path.relpath(os.path.abspath(path), root) for path in paths]


def _files(root: Path, name: str) -> list[str]:
    """Return a file, or the files of a folder that git does not ignore."""
    from taetpu.cloud import transfer

    path = root / name
    return [f"{name}/{one}" for one in transfer.list_files(path)] if path.is_dir() else [name]
