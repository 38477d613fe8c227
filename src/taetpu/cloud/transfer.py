"""Files to the hosts of a TPU and back, by rsync over the stack's own ssh_config.

What git ignores stays here, and what the hosts have that is ignored stays there: a sync does not delete results.
"""

import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile

from taetpu.cloud.errors import CloudError
from taetpu.cloud.ssh import Slice, together
from taetpu.cloud.ssh_errors import NO_CONNECTION, DiskFull, Done, Unreachable, unreachable
from taetpu.core.errors import UserError

PARTIAL = ".rsync-partial"
"""Where a file that was broken off waits to be continued."""
OPTIONS = ("--archive", "--compress", "-s", f"--partial-dir={PARTIAL}", "--out-format=%n")
"""`-s`: no shell of the other side sees a name. Its long name differs between versions of rsync."""
FETCHED = "taetpu-debug"
"""The folder that jobs' logs and dumps are fetched to: it is not sent back."""
NEVER = ("--exclude=.git/", "--exclude=__pycache__/", f"--exclude={FETCHED}/")
CUT = (12, 20, 30, 35, NO_CONNECTION)
"""rsync's codes for a connection that broke off: the stream, a signal, time-outs, and ssh's own."""
VANISHED = 24
"""Files went away while they were being read: what is there now has been sent."""


def work(root: Path) -> str:
    """The folder, in the home of each host, where a local folder's files go."""
    return f"work/{root.resolve().name or 'root'}"


def project(folder: Path) -> Path:
    """The folder that is synced from anywhere in it: the nearest with a taetpu.toml or a .git, else itself.

    Raises:
        UserError: it would be the whole home folder, or the whole disk.
    """
    here = folder.resolve()
    marks = ("taetpu.toml", ".git")
    found = next((above for above in (here, *here.parents) if any((above / mark).exists() for mark in marks)), here)
    if found in (Path.home().resolve(), Path(found.anchor)):
        remedy = "give the command in a folder of its own, or put a taetpu.toml there"
        raise UserError("this is no project that could be copied to a TPU", file=found, remedy=remedy)
    return found


def sync(
    slice: Slice, source: Path, target: str, *, dry_run: bool = False, workers: Sequence[int] | None = None
) -> list[str]:
    """Make a folder of each host the same as a local one; what changed, or would, on the first of them.

    What git ignores is not sent, and what `.gitignore` names is not deleted there.

    Raises:
        Cut: the connection broke off; the next call goes on where it did.
        DiskFull: a host has no room left.
    """
    return mirror(slice, source, target, _ignored(source), dry_run, workers)


def mirror(
    slice: Slice, source: Path, target: str, rules: Sequence[str] = (), dry_run: bool = False,
    workers: Sequence[int] | None = None,
) -> list[str]:  # fmt: skip
    """Make a folder of each host the same as a local one, whatever git says of it, see `sync`."""
    with _filtered(rules) as filters:
        return _everywhere(slice, ["--delete-after", *NEVER, *filters, f"{source}/"], target, dry_run, workers)


def send(
    slice: Slice,
    root: Path,
    paths: Sequence[Path],
    target: str,
    *,
    dry_run: bool = False,
    workers: Sequence[int] | None = None,
) -> list[str]:
    """Copy files and folders, each to where it lies below the root; nothing else is touched there. What was sent.

    Raises:
        UserError: a path is not there, or not below the root.
    """
    named = [f"{root}/./{_below(root, path)}" for path in paths]
    rules = [rule for path in paths if path.is_dir() for rule in _ignored(path, root)]
    with _filtered(rules) as filters:
        return _everywhere(slice, ["--relative", *NEVER, *filters, *named], target, dry_run, workers)


def fetch(slice: Slice, worker: int, source: str, target: Path) -> None:
    """Copy a folder of a host here."""
    target.mkdir(parents=True, exist_ok=True)
    place = f"w{worker}:{source.rstrip('/')}/"
    _ended([_rsync(slice, worker, [place, f"{target}/"])], f"fetch {source}")


def scrap(slice: Slice, target: str, paths: Sequence[str], workers: Sequence[int] | None = None) -> None:
    """Remove files and folders of a folder on each host; all of it if none is named. Nothing there is fine.

    Raises:
        UserError: a path leads out of the folder.
    """
    doomed = [inside(path) for path in paths]
    names = [f"{target}/{path}" for path in doomed] or [target]
    together(slice.everywhere(["rm", "-rf", "--", *names], workers=workers), "remove files")


def _everywhere(slice: Slice, words: list[str], target: str, dry_run: bool, workers: Sequence[int] | None) -> list[str]:
    chosen = list(slice.all if workers is None else workers)
    options = ["--dry-run"] if dry_run else []
    # Not rsync's own --mkpath, which macOS's does not know. A dry run makes nothing.
    options += [] if dry_run else [f"--rsync-path=mkdir -p {shlex.quote(target)} && rsync"]

    def one(worker: int) -> Done:
        return _rsync(slice, worker, [*options, *words, f"w{worker}:{target}/"])

    with ThreadPoolExecutor(len(chosen)) as threads:
        done = _ended(list(threads.map(one, chosen)), "receive files")
    return [line for line in done[0].out.splitlines() if line and line != "./"]


def rsync() -> str:
    """Where rsync is.

    Raises:
        UserError: it is not installed.
    """
    if found := shutil.which("rsync"):
        return found
    raise UserError("rsync is not installed here", remedy="install it, e.g. `apt-get install rsync`")


def _rsync(slice: Slice, worker: int, words: list[str]) -> Done:
    shell = f"ssh -F '{str(slice.folder / 'config').replace(chr(39), chr(39) * 2)}'"  # quoted as rsync reads it
    ended = subprocess.run(
        [rsync(), *OPTIONS, "-e", shell, *words], capture_output=True, text=True, errors="replace",
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return Done(
        worker, slice.place(worker), 0 if ended.returncode == VANISHED else ended.returncode, ended.stdout, ended.stderr
    )


def _ended(all_of: list[Done], doing: str) -> list[Done]:
    """What ended well on every host.

    Raises:
        CloudError: of the first host where it did not.
    """
    for done in all_of:
        if done.ok:
            continue
        said = [line for line in done.err.strip().splitlines() if line]
        if "No space left on device" in done.err:
            problem = f"the disk of {done.place} is full, so that it cannot {doing}"
            raise DiskFull(problem, remedy="`taetpu tpu clean` removes old jobs; `taetpu tpu ssh` looks at the rest")
        if done.rc == NO_CONNECTION and not isinstance(found := unreachable(done, doing), Unreachable):
            raise found
        if done.rc in CUT:
            problem = f"the connection to {done.place} broke off: {said[0] if said else 'it said nothing'}"
            raise Cut(problem, remedy="give the same command again: what has arrived is not sent twice")
        raise CloudError(f"{done.place} could not {doing} (rsync {done.rc}): {said[0] if said else ''}")
    return all_of


class Cut(Unreachable):
    """A transfer that did not come to its end."""


@contextmanager
def _filtered(rules: Sequence[str]) -> Iterator[list[str]]:
    """Options that make rules hold. They stand in a file: a command line has no room for a folder of ignored images."""
    lines = [rule for rule in rules if "\n" not in rule]
    with NamedTemporaryFile("w", prefix="taetpu-", encoding="utf-8", errors="surrogateescape") as file:
        file.write("".join(f"{line}\n" for line in lines))
        file.flush()
        yield [f"--filter=merge {file.name}", *(f"--filter={rule}" for rule in rules if rule not in lines)]


def _ignored(source: Path, root: Path | None = None) -> list[str]:
    """Rules that keep what git ignores from being sent, and what `.gitignore` names from being deleted there.

    Without git they are read as rsync reads patterns, which knows no `!`.
    """
    root = root or source
    asked = ["git", "-C", str(source), "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"]
    try:
        told = subprocess.run(asked, capture_output=True, check=True).stdout.decode(errors="surrogateescape")
    except (OSError, subprocess.CalledProcessError):
        return [":- .gitignore"]
    below = source.resolve().relative_to(root.resolve()).as_posix()
    prefix = "/" if below == "." else f"/{below}/"
    hidden = [f"hide {_literal(prefix + name)}" for name in told.split("\0") if name and name != "./"]
    return [":-r .gitignore", *hidden]


def _literal(path: str) -> str:
    """A path as a pattern of rsync that matches it alone; a backslash is one unless there is a wildcard."""
    if not any(char in path for char in "*?["):
        return path
    return "".join(f"\\{char}" if char in "\\*?[" else char for char in path)


def _below(root: Path, path: Path) -> str:
    """A path as seen from the root.

    Raises:
        UserError: it is not there, or elsewhere.
    """
    if not path.exists():
        raise UserError("there is no such file or folder", file=path, remedy="name one that is below this folder")
    whole = path.parent.resolve() / path.name if path.name else path.resolve()
    if not whole.is_relative_to(root.resolve()):
        raise UserError(f"this is not below {root}", file=path, remedy="only what lies in the project is copied")
    return whole.relative_to(root.resolve()).as_posix()


def inside(path: str) -> str:
    """A path below the folder that is meant, as it is written there.

    Raises:
        UserError: it leads out of it.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or pure == PurePosixPath("."):
        raise UserError(f"{path!r} is no path inside the folder", remedy="a path below it; --all for everything")
    return pure.as_posix()
