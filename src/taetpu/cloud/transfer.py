"""Files to the hosts of a TPU and back, by rsync over the stack's own ssh_config.

What git ignores stays here. What came to a host in another way than from here stays there: each host has a list of what
it was sent (`~/.taetpu/sent`), and a sync deletes only what stands in it and is gone here.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile, TemporaryDirectory

from taetpu.cloud import ssh_config
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
SENT = ".taetpu/sent"
"""In the home of each host: what each of its folders was sent, as lines of JSON, each a list of paths."""
READ = f'! [ -f "{SENT}/$1" ] || cat "{SENT}/$1"'
ADD = f'set -e; f="{SENT}/$1"; mkdir -p "${{f%/*}}"; ! [ -f "$f" ] || cat "$f" </dev/null; cat >>"$f"'
REPLACE = f'set -e; f="{SENT}/$1"; cat >"$f.new"; mv "$f.new" "$f"'

HAVING = 'n=0; for f; do if [ -e "$f" ] || [ -L "$f" ]; then echo $n; fi; n=$((n+1)); done'
"""Tells the numbers, from 0, of the paths that are there."""


def work(root: Path) -> str:
    """The folder, in the home of each host, where a local folder's files go: `work/NAME-3f9a1c`.

    The digits are of where it lies and of the key that this computer logs in with, so that two projects of one name, or
    two people's, have nothing to do with each other.
    """
    here = root.resolve()
    own = hashlib.sha256(os.fsencode(f"{ssh_config.public_key()}\0{here}")).hexdigest()[:6]
    return f"work/{here.name or 'root'}-{own}"


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
    slice: Slice, source: Path, target: str, *, dry_run: bool = False, workers: Sequence[int] | None = None,
    keep: bool = False,
) -> list[str]:  # fmt: skip
    """Bring a local folder to each host, and remove there what was sent from here and is gone here. What changed, or
    would, on any of them.

    What git ignores is neither sent nor deleted there. What jobs wrote stays, unless a file that is sent lies in the
    same place.

    Args:
        keep: remove nothing; a later call does.

    Raises:
        Cut: the connection broke off; the next call goes on where it did.
        DiskFull: a host has no room left.
    """
    chosen = list(slice.all if workers is None else workers)
    with _filtered(_ignored(source)) as filters:
        words = [*NEVER, *filters, f"{source}/"]
        here = _listed(words)
        sent = _noted(slice, target, chosen, None if dry_run else here)  # before: it may be cut off in the middle
        # What is hidden from rsync, as git ignores it, may be here all the same.
        gone = {name for name in set().union(*sent.values()) - {*here} if not os.path.lexists(source / name)}
        gone -= _of_no_concern(source, gone)
        left = {worker: sorted(sent[worker] & gone) for worker in chosen}
        changed = _everywhere(slice, words, target, dry_run, chosen, {} if keep else left)
    if not dry_run:
        lines = {worker: _line([*here, *(left[worker] if keep else ())]) for worker in chosen}
        noted = slice.everywhere(["sh", "-c", REPLACE, "note", target], input=lines.__getitem__, workers=chosen)
        together(noted, "note what was sent")
    return changed


def mirror(slice: Slice, source: Path, target: str) -> None:
    """Make a folder of each host the same as a local one: whatever is not here is deleted there."""
    _everywhere(slice, ["--delete-after", *NEVER, f"{source}/"], target, False, None)


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
        words = ["--relative", *NEVER, *filters, *named]
        if not dry_run:
            _noted(slice, target, workers, _listed(words))
        return _everywhere(slice, words, target, dry_run, workers)


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
    names = [f"{target}/{path}" for path in doomed] or [target, f"{SENT}/{target}"]
    together(slice.everywhere(["rm", "-rf", "--", *names], workers=workers), "remove files")


def missing(slice: Slice, target: str, paths: Sequence[str], workers: Sequence[int] | None = None) -> list[str]:
    """Those of some paths of a folder that are on none of the hosts."""
    asked = ["sh", "-c", HAVING, "having", *(f"{target}/{path}" for path in paths)]
    done = together(slice.everywhere(asked, workers=workers), "look for files")
    there = {int(number) for one in done for number in one.out.split()}
    return [path for number, path in enumerate(paths) if number not in there]


def _everywhere(
    slice: Slice, words: list[str], target: str, dry_run: bool, workers: Sequence[int] | None,
    doomed: Mapping[int, Sequence[str]] | None = None,
) -> list[str]:  # fmt: skip
    """What rsync says that it has changed on any host.

    Args:
        doomed: what is removed from each host if it is not here; anything else stays.
    """
    chosen = list(slice.all if workers is None else workers)
    options = ["--dry-run"] if dry_run else []
    # Not rsync's own --mkpath, which macOS's does not know. A dry run makes nothing.
    options += [] if dry_run else [f"--rsync-path=mkdir -p {shlex.quote(target)} && rsync"]

    def one(worker: int) -> Done:
        names = (doomed or {}).get(worker, ())
        with _filtered([f"risk {_literal(f'/{name}')}" for name in names]) as rules:
            removing = ["--delete-after", *rules, "--filter=protect *"] if names else []
            return _rsync(slice, worker, [*options, *words, *removing, f"w{worker}:{target}/"])

    with ThreadPoolExecutor(len(chosen)) as threads:
        done = _ended(list(threads.map(one, chosen)), "receive files")
    lines = dict.fromkeys(line for one in done for line in one.out.splitlines())
    return [line for line in lines if line and line != "./" and not line.startswith(STAYS)]


DELETING = "deleting "
"""What rsync says before the name of what it removes, or would."""
STAYS = "cannot delete non-empty directory"
"""What rsync says of a folder that is gone here and has something of a job's in it: it is not deleted there."""


def _listed(words: Sequence[str]) -> list[str]:
    """The paths that rsync would send, by its own rules; a folder's ends with a slash."""
    with TemporaryDirectory(prefix="taetpu-") as empty:
        asked = [rsync(), "--archive", "--dry-run", "--out-format=%n", *words, f"{empty}/"]
        ended = subprocess.run(asked, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    rc = 0 if ended.returncode == VANISHED else ended.returncode
    _ended([Done(0, "this computer", rc, "", ended.stderr.decode(errors="replace"))], "read the project")
    # What cannot be printed is written `\#012`, and so is a backslash where it could be taken for that.
    names = (re.sub(rb"\\#(\d{3})", lambda found: bytes([int(found[1], 8)]), n) for n in ended.stdout.split(b"\n"))
    return [os.fsdecode(name) for name in names if name not in (b"", b"./")]


def _noted(
    slice: Slice, target: str, workers: Sequence[int] | None, more: Sequence[str] | None
) -> dict[int, set[str]]:  # fmt: skip
    """What a folder of each host was sent until now; more, which it is about to be sent, is added to the list."""
    script = READ if more is None else ADD
    asked = ["sh", "-c", script, "note", target]
    done = together(slice.everywhere(asked, input=_line(more or ()), workers=workers), "note what is sent")
    return {one.worker: {name for line in one.out.splitlines() for name in _names(line)} for one in done}


def _line(names: Sequence[str]) -> str:
    return f"\n{json.dumps(names)}\n"  # a line that was cut off ends before it


def _names(line: str) -> list[str]:
    """The paths of a line; none of one that was cut off: they are not deleted then."""
    try:
        return json.loads(line or "[]")
    except ValueError:
        return []


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
    """Rules that keep what git ignores from being sent.

    Without git, `.gitignore` is read as rsync reads patterns, which knows no `!`, and what it names is not deleted.
    """
    root = root or source
    asked = ["git", "-C", str(source), "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"]
    try:
        told = subprocess.run(asked, capture_output=True, check=True).stdout.decode(errors="surrogateescape")
    except (OSError, subprocess.CalledProcessError):
        return [":- .gitignore"]
    below = source.resolve().relative_to(root.resolve()).as_posix()
    prefix = "/" if below == "." else f"/{below}/"
    return [f"hide {_literal(prefix + name)}" for name in told.split("\0") if name and name != "./"]


def _of_no_concern(source: Path, names: Collection[str]) -> set[str]:
    """Those of some paths that git ignores, though they are not here."""
    asked = ["git", "-C", str(source), "check-ignore", "--stdin", "-z"]
    with suppress(OSError):  # no git
        told = subprocess.run(asked, input=os.fsencode("\0".join(names)), capture_output=True, check=False)
        return {os.fsdecode(name) for name in told.stdout.split(b"\0")}
    return set()


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
