"""What commands on a TPU's hosts share: the options, the hosts that are meant, a job begun, read and fetched."""

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from taetpu.cli.cloud import Here, here, tell

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.ssh import Slice

DEBUG = {
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TPU_STDERR_LOG_LEVEL": "0",
    "TPU_MIN_LOG_LEVEL": "0",
    "TPU_LOG_DIR": "{job}",
    "XLA_FLAGS": "--xla_dump_to={job}/xla --xla_dump_hlo_as_text",
    "JAX_TRACEBACK_FILTERING": "off",
}
"""What a job is given with --debug; `{job}` is its folder on the host."""

# What follows the options is a command of its own, and keeps its own options. It begins with a word that is none, or
# after `--`: an option that is misspelt must not be taken for it.
COMMAND = {"allow_extra_args": True, "allow_interspersed_args": False}

Stack = Annotated[str | None, typer.Option("--tpu", metavar="NAME", help="The TPU; else `stack` of the settings.")]
On = Annotated[str, typer.Option("--worker", metavar="N|all", help="One host of several, by its number from 0.")]
Beside = Annotated[bool, typer.Option("--beside", help="Although a job runs: this one does not use the TPU.")]
Debug = Annotated[bool, typer.Option("--debug", help="Let XLA and the TPU say more, and fetch it with XLA's dumps.")]


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
    return hosts_of(place, machine)


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """A command on hosts that, where they do not answer, asks the API what became of them; it has the option `tpu`."""

    @wraps(command)
    def asked(*words: Any, tpu: str | None, **options: Any) -> None:
        from taetpu.cloud.ssh_errors import Unreachable

        try:
            command(*words, tpu=tpu, **options)
        except Unreachable:
            check_there(here(), tpu)
            raise

    return asked


def check_there(place: Here, name: str | None) -> None:
    """Ask the API once whether a TPU that does not answer is there. Where the API does not answer either, it may be.

    Raises:
        NotFound: it is gone, or over.
    """
    from taetpu.cloud.backends.base import OVER
    from taetpu.cloud.errors import CloudError, NotFound

    stack = place.stack(name)
    try:
        there = place.cloud.of(stack)
    except CloudError:
        return
    anew = f"`taetpu tpu up {stack}` makes it anew"
    if not there:
        raise NotFound(f"{stack} is gone: it does not answer, and the API knows no such machine", remedy=anew)
    if all(machine.state in OVER for machine in there):
        states = ", ".join(f"{machine.detail or machine.state} in {machine.zone}" for machine in there)
        problem = f"{stack} is over: it does not answer, and is {states} by the API's word"
        raise NotFound(problem, remedy=f"{anew}, `taetpu tpu down {stack}` removes what is left of it")


def enter_host(
    place: Here, slice: "Slice", worker: int, options: Sequence[str] = (), command: Sequence[str] = ()
) -> NoReturn:
    """Log into a host, or run a command there, in this terminal; this process ends as ssh does.

    Raises:
        NotFound: there was no connection, and the machine is gone.
    """
    from taetpu.cloud.ssh_errors import NO_CONNECTION

    code = slice.enter(worker, options, command)
    if code == NO_CONNECTION:
        check_there(place, slice.stack)
    sys.exit(code)


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


def hosts_of(place: Here, machine: "Machine") -> "Slice":
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
    if not (chosen.isascii() and chosen.isdecimal()):
        raise UserError(f"{chosen!r} is no host", path=("--worker",), remedy="a number from 0, or all")
    return [slice.check(int(chosen))]


def bring(slice: "Slice", chosen: list[int], *, dry_run: bool = False) -> tuple[list[str], str]:
    """Sync the project of this folder: what changed, or would, and in which folder of the hosts' home folders.

    While a job runs there nothing is removed; the next sync after it does.
    """
    from taetpu.cloud import jobs, transfer

    root = transfer.project(Path.cwd())
    target = transfer.work(root)
    if running := jobs.below(slice, target, chosen):
        tell(f"{running} runs there: what is gone here is not removed there before it has ended")
    changed = transfer.sync(slice, root, target, dry_run=dry_run, workers=chosen, keep=bool(running))
    return changed, target


def synced(slice: "Slice", chosen: list[int], *, dry_run: bool) -> None:
    """Sync the project of this folder, and say what changed, or would."""
    changed, target = bring(slice, chosen, dry_run=dry_run)
    for line in changed:
        typer.echo(line)
    many = f"{'would change' if dry_run else 'changed'} {len(changed)} paths of ~/{target}"
    tell(many if changed else f"~/{target} is as it is here already")


def would_run(slice: "Slice", changed: list[str], commands: list[list[str]], chosen: list[int]) -> None:
    """Say what would be copied (see `transfer.sync`), removed and run, and where."""
    import shlex

    from taetpu.cloud import jobs, transfer

    for name in changed:
        gone = name.removeprefix(transfer.DELETING)
        typer.echo(f"copy {name}" if gone == name else f"remove {gone}")
    for one in commands:
        typer.echo(f"run  {shlex.join(one)}")
    running = "".join(f"{name} runs there; " for name in jobs.running(slice, chosen))
    on = ", ".join(slice.place(worker) for worker in chosen)
    tell(f"in ~/{folder_of(Path.cwd())} on {on}; {running}dry run: nothing was changed")


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
    from taetpu.cloud import jobs

    given = (DEBUG if debug else {}) | dict(environment or {})
    asked = jobs.Asked(commands, folder_of(Path.cwd()), given, place.settings.image, place.settings.secret_names)
    name = jobs.start(slice, asked, workers=chosen, beside=beside)
    tell(f"job {name} runs on {slice.stack} in ~/{asked.folder}")
    tell(f"`taetpu tpu logs -f {name}` reads it, `taetpu tpu stop {name}` ends it")
    return name


def finish(slice: "Slice", name: str, chosen: list[int], *, clean: bool = False, debug: bool = False) -> None:
    """Read a job to its end. Ctrl-C leaves it running, and ends this process.

    Raises:
        Failed: it did not end well everywhere.
    """
    from taetpu.cloud import jobs
    from taetpu.core.errors import Failed

    try:
        read(slice, name, chosen, follow=True)
    except KeyboardInterrupt:
        tell(f"\n{name} goes on: `taetpu tpu logs -f {name}` reads it, `taetpu tpu stop {name}` ends it")
        sys.exit(128 + signal.SIGINT)
    told = jobs.job(slice, name, chosen)
    if debug:
        fetch(slice, name, chosen)
    if any(one["rc"] for one in told.values()) or any(one["state"] != "ended" for one in told.values()):
        states = "; ".join(f"worker {worker}: {ended(one)}" for worker, one in told.items())
        raise Failed(f"the job {name} did not end well: {states}")
    if clean:
        jobs.clean(slice, [name], chosen)


def fetch(slice: "Slice", name: str, chosen: list[int]) -> None:
    """Bring a job's folder here from each host: its log, and what else it has left in it."""
    from taetpu.cloud import transfer

    here = Path(transfer.FETCHED) / name
    for worker in chosen:
        transfer.fetch(slice, worker, f".taetpu/jobs/{name}", here / f"worker-{worker}")
    tell(f"logs and dumps: {here}")


def read(slice: "Slice", name: str, chosen: list[int], follow: bool) -> None:
    """Print a job's logs; with several hosts each line has its host's number."""
    from taetpu.cloud import jobs

    def write(worker: int, line: str) -> None:
        sys.stdout.write(f"{line}\n" if len(chosen) == 1 else f"[{worker}] {line}\n")
        sys.stdout.flush()

    jobs.logs(slice, name, write, follow=follow, workers=chosen, tell=tell)


def folder_of(here: Path) -> str:
    """The folder, in the home of each host, that stands for one of the project's."""
    from taetpu.cloud import transfer

    root = transfer.project(here)
    return f"{transfer.work(root)}/{here.resolve().relative_to(root).as_posix()}".removesuffix("/.")


def ended(job: Mapping[str, Any]) -> str:
    """How a job stands, in words."""
    words = {"running": "running", "lost": "killed", "ended": f"ended with {job['rc']}"}[job["state"]]
    return f"{words}, preempted" if job["preempted"] else words
