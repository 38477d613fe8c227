"""`taetpu dev mount | run | run-all | scrap | sync`: copy, run and delete single files on a machine."""

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.cloud import select_hosts
from taetpu.cli.jobs import COMMAND, Debug, Detach, check_idle, command_words, run_job, sync_project
from taetpu.cli.options import Tpu, Workers
from taetpu.cli.output import log
from taetpu.core.errors import Failed, UserError

if TYPE_CHECKING:
    from taetpu.cloud.ssh import Hosts

app = typer.Typer(help="Try files on a TPU.\n\nExample: taetpu dev run train.py --lr 3e-4", no_args_is_help=True)

NEXT, FILES = "+", "[OPTIONS] FILE [ARGS]... [+ FILE [ARGS]...]..."
POLL = 0.5
"""Seconds between scans of the current folder for `sync --watch`."""

Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Files and folders; default: the project.")]


@app.command()
def mount(paths: Paths = None, tpu: Tpu = None, worker: Workers = "all") -> None:
    """Copy files and folders to the hosts, to the same paths.

    Example: taetpu dev mount train.py models/
    """
    _, hosts, workers = select_hosts(tpu, worker)
    for line in _send(hosts, paths or [], workers):
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


@app.command()
def scrap(paths: Paths = None, tpu: Tpu = None, worker: Workers = "all") -> None:
    """Delete the copies of files and folders from the hosts.

    Without PATH, delete the whole project there. Local files are never deleted.

    Example: taetpu dev scrap train.py
    """
    _, hosts, workers = select_hosts(tpu, worker)
    _delete(hosts, paths or [], workers)


@app.command()
def sync(
    tpu: Tpu = None,
    worker: Workers = "all",
    watch: Annotated[bool, typer.Option("--watch", help="Repeat after each local change until Ctrl-C.")] = False,
) -> None:
    """Copy this project to the hosts, once or after each change.

    Example: taetpu dev sync --watch
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


def _parse(words: list[str]) -> tuple[list[list[str]], list[str]]:
    """Split words such as `a.py 1 + b.py 2` into commands. Return the commands and their files.

    Raises:
        UserError: if no file is named or a file does not exist.
    """
    ends = [-1, *(number for number, word in enumerate(words) if word == NEXT), len(words)]
    groups = [words[a + 1 : b] for a, b in pairwise(ends)]
    if not all(groups):
        raise UserError("missing FILE", remedy="taetpu dev run a.py --lr 1 + b.py")
    for first, *_ in groups:
        if not Path(first).exists():
            raise UserError("no such file", file=first, remedy="`taetpu tpu run COMMAND` runs other programs.")
    return [["python", *group] for group in groups], [first for first, *_ in groups]


def _send(hosts: "Hosts", paths: list[str], workers: list[int]) -> list[str]:
    """Copy the given paths, or the whole project if there are none, to the hosts. Return the changed paths."""
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
    """Delete the copies of the given paths, or of the whole project if there are none, from the hosts."""
    from taetpu.cloud import transfer

    root = transfer.project_folder(Path.cwd())
    transfer.delete(hosts, transfer.remote_folder(root), _relative(root, paths), workers)


def _relative(root: Path, paths: list[str]) -> list[str]:
    return [os.path.relpath(os.path.abspath(path), root) for path in paths]


def _files(root: Path, name: str) -> list[str]:
    """Return the path of a file, or the paths of all files in a folder that git does not ignore."""
    from taetpu.cloud import transfer

    path = root / name
    return [f"{name}/{one}" for one in transfer.list_files(path)] if path.is_dir() else [name]
