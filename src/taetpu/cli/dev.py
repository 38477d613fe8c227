"""`taetpu dev mount`, `run`, `scrap`, `run-all` and `sync`: single files to and fro while an idea is tried on a TPU."""

import os
import shlex
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import DryRun, Yes, agreed
from taetpu.cli.hosts import (
    COMMAND,
    Beside,
    Debug,
    On,
    Stack,
    asking,
    begin,
    bring,
    check_there,
    enter_host,
    finish,
    folder_of,
    slice_of,
    synced,
    workers,
    would_run,
)  # fmt: skip

if TYPE_CHECKING:
    from taetpu.cloud.ssh import Slice

app = typer.Typer(
    help="Try files on a TPU: copy, run and remove them.\n\nExample: taetpu dev run train.py --lr 3e-4",
    no_args_is_help=True,
)

NEXT = "+"
"""Stands between two files with their arguments."""
ENTER = 'export PATH="$HOME/.taetpu/venv/bin:$PATH" PYTHONPATH="$HOME/.taetpu/src"'
PAUSE = 0.5
"""Seconds between two looks at this folder's files."""

Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Files and folders of this project.")]
All = Annotated[bool, typer.Option("--all", "-a", help="The whole project.")]
Command = Annotated[bool, typer.Option("--command", help="What follows is a command, not a file for Python.")]
Enter = Annotated[bool, typer.Option("-i", help="Run it in this terminal, on one host, as long as it is connected.")]


@app.command()
@asking
def mount(
    paths: Paths = None, everything: All = False, tpu: Stack = None, worker: On = "all", dry_run: DryRun = False
) -> None:
    """Copy files and folders to the hosts. Each goes to where it lies in the project.

    Example: taetpu dev mount train.py models/
    """
    slice = slice_of(here(), tpu)
    sent = _sent(slice, _chosen(paths, everything), workers(slice, worker), dry_run)
    for name in sent:
        typer.echo(name)
    many = f"{'would copy' if dry_run else 'copied'} {len(sent)} paths"
    tell(many if sent else "nothing to copy: it is there already, as it is here")


@app.command(context_settings=COMMAND)
@asking
def run(
    context: typer.Context,
    tpu: Stack = None,
    worker: On = "all",
    command: Command = False,
    enter: Enter = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for it.")] = False,
    debug: Debug = False,
    beside: Beside = False,
    dry_run: DryRun = False,
) -> None:
    """Copy Python files to the hosts and run them. Each has its own arguments; + begins the next.

    A folder with a `__main__.py` is run as Python runs it. Where a job runs or the TPU is in use nothing is copied.

    Example: taetpu dev run prepare.py --size 10 + train.py --lr 3e-4
    """
    from taetpu.cloud import jobs
    from taetpu.core.errors import UserError

    if enter and (detach or debug):
        problem = f"-i and --{'detach' if detach else 'debug'} exclude each other"
        raise UserError(problem, remedy="without -i it is a job, with a log of its own")
    place = here()
    if enter and place.settings.image:
        problem = "-i runs on the machine itself, and `image` of the settings says that jobs run in a container"
        raise UserError(problem, remedy="without -i it is a job in the container")
    slice = slice_of(place, tpu)
    commands, files = _commands(context.args, command)
    chosen = workers(slice, worker)[: 1 if enter else None]
    if dry_run:
        _would_run(slice, commands, files, chosen)
        return
    if not beside:
        jobs.check(slice, chosen)  # before a file of a job that runs is touched
    if enter:
        _enter(place, slice, commands, files, chosen)
    else:
        _run(place, slice, commands, files, chosen, detach=detach, debug=debug, beside=beside)


@app.command("run-all", context_settings=COMMAND)
@asking
def run_all(
    context: typer.Context,
    tpu: Stack = None,
    worker: On = "all",
    debug: Debug = False,
    beside: Beside = False,
    dry_run: DryRun = False,
) -> None:
    """Copy Python files, run them and remove them again. They are removed however they ended.

    Example: taetpu dev run-all train.py --steps 10
    """
    from taetpu.cloud import jobs, transfer
    from taetpu.core.errors import Failed

    place = here()
    slice = slice_of(place, tpu)
    commands, files = _commands(context.args, False)
    chosen, ended = workers(slice, worker), False
    if dry_run:
        _would_run(slice, commands, files, chosen)
        return
    if not beside:
        jobs.check(slice, chosen)
    root = transfer.project(Path.cwd())
    try:
        _run(place, slice, commands, files, chosen, detach=False, debug=debug, beside=beside)
        ended = True
    except Failed:
        ended = True
        raise
    finally:
        if ended:
            transfer.scrap(slice, transfer.work(root), _names(root, files), chosen)
        else:  # a job that goes on, or another one, may need them
            tell(f"what was copied stays there: `taetpu dev scrap {shlex.join(['--', *files])}` removes it")


@app.command()
@asking
def scrap(
    paths: Paths = None,
    everything: All = False,
    tpu: Stack = None,
    worker: On = "all",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Remove files and folders of this project from the hosts. Here nothing is removed.

    Example: taetpu dev scrap train.py
    """
    from taetpu.cloud import transfer

    slice = slice_of(here(), tpu)
    chosen = workers(slice, worker)
    root = transfer.project(Path.cwd())
    names = [] if everything else _names(root, _chosen(paths, everything))
    if names:
        missing = transfer.missing(slice, transfer.work(root), names, chosen)
        for name in missing:
            here_too = "" if os.path.lexists(root / name) else ", nor here"
            tell(f"{name} is not there, on no host of {slice.stack}{here_too}: nothing of it is removed")
        names = [name for name in names if name not in missing]
        if not names:
            return
    what = ", ".join(names) if names else "everything, results included,"
    plan = f"remove {what} from ~/{transfer.work(root)} on {len(chosen)} host(s) of {slice.stack}"
    if agreed(plan, "Remove it?", yes=yes or bool(names), dry_run=dry_run):
        transfer.scrap(slice, transfer.work(root), names, chosen)


@app.command()
@asking
def sync(
    tpu: Stack = None,
    worker: On = "all",
    watch: Annotated[bool, typer.Option("--watch", help="Go on: whatever changes here goes there.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Bring this project to the hosts, as `taetpu tpu sync` does. Once, or for as long as this runs.

    Example: taetpu dev sync --watch
    """
    from taetpu.cloud import transfer
    from taetpu.cloud.errors import Transient

    slice = slice_of(here(), tpu)
    chosen = workers(slice, worker)
    root = transfer.project(Path.cwd())
    before, said = None, ""
    while True:
        now = _seen(root)
        try:
            if now != before:
                synced(slice, chosen, dry_run=dry_run)
            before, said = now, ""
        except Transient as error:
            if not watch:
                raise
            if error.problem != said:
                check_there(here(), tpu)
                tell(f"{error.problem}; trying again until it succeeds")
            said = error.problem
        if not watch or dry_run:
            return
        time.sleep(PAUSE)


def _run(
    place: Here,
    slice: "Slice",
    commands: list[list[str]],
    files: list[str],
    chosen: list[int],
    *,
    detach: bool,
    debug: bool,
    beside: bool,
) -> None:
    """Copy files and run commands on hosts as a job."""
    if files:
        _sent(slice, files, chosen, dry_run=False)
    name = begin(place, slice, commands, chosen, debug=debug, beside=beside)
    if not detach:
        finish(slice, name, chosen, debug=debug)


def _enter(place: Here, slice: "Slice", commands: list[list[str]], files: list[str], chosen: list[int]) -> None:
    """Copy files and run commands in this terminal, on one host; never returns."""
    if files:
        _sent(slice, files, chosen, dry_run=False)
    script = " && ".join(shlex.join(one) for one in commands)
    script = f'{ENTER} && mkdir -p "$1" && cd "$1" && {script}'
    enter_host(place, slice, chosen[0], command=["sh", "-c", script, "sh", folder_of(Path.cwd())])


def _would_run(slice: "Slice", commands: list[list[str]], files: list[str], chosen: list[int]) -> None:
    """What would be copied and run, and where."""
    would_run(slice, _sent(slice, files, chosen, dry_run=True) if files else [], commands, chosen)


def _commands(words: list[str], command: bool) -> tuple[list[list[str]], list[str]]:
    """Commands, and the files that they need: `a.py 1 + b.py 2`.

    Raises:
        UserError: none is given, or a file is not there.
    """
    from taetpu.core.errors import UserError

    words = words[1:] if words[:1] == ["--"] else words
    if command:
        groups = [words] if words else []
    else:
        ends = [-1, *(i for i, word in enumerate(words) if word == NEXT), len(words)]
        groups = [words[a + 1 : b] for a, b in pairwise(ends)]
    if not groups or not all(groups):
        remedy = "taetpu dev run a.py --lr 1 + b.py; or --command ls -la"
        raise UserError("what shall be run is not said", remedy=remedy)
    if command:
        return groups, []
    for first, *_ in groups:
        path = Path(first)
        if path.is_dir() and not (path / "__main__.py").is_file():
            raise UserError(
                "Python runs a folder by its __main__.py, and there is none", file=first, remedy="name a file"
            )
        if not path.exists():
            raise UserError("there is no such file", file=first, remedy="--command runs something that is no file here")
    # A name that begins with a hyphen would be an option of Python's.
    named = [[f"./{first}" if first.startswith("-") else first, *rest] for first, *rest in groups]
    return [["python", *group] for group in named], [first for first, *_ in groups]


def _chosen(paths: list[str] | None, everything: bool) -> list[str]:
    from taetpu.core.errors import UserError

    if bool(paths) == everything:
        problem = "--all and paths exclude each other" if paths else "which files are meant is not said"
        raise UserError(problem, remedy="taetpu dev mount train.py models/; or --all for the whole project")
    return paths or []


def _sent(slice: "Slice", paths: list[str], chosen: list[int], dry_run: bool) -> list[str]:
    from taetpu.cloud import transfer

    if not paths:
        return bring(slice, chosen, dry_run=dry_run)[0]
    root, named = transfer.project(Path.cwd()), [Path(path) for path in paths]
    return transfer.send(slice, root, named, transfer.work(root), dry_run=dry_run, workers=chosen)


def _names(root: Path, paths: list[str]) -> list[str]:
    """Paths as they are called on the hosts; they need not be here any more.

    Raises:
        UserError: one lies outside the project.
    """
    from taetpu.cloud import transfer

    return [transfer.inside(os.path.relpath(os.path.abspath(path), root)) for path in paths]


def _seen(root: Path) -> dict[str, tuple[int, int]]:
    """Every file of the project with when it was changed and its size, .git aside."""
    found = {}
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__", ".venv", "node_modules")]
        for name in names:
            path = os.path.join(parent, name)
            try:
                told = os.stat(path)
            except OSError:
                continue
            found[path] = (told.st_mtime_ns, told.st_size)
    return found
