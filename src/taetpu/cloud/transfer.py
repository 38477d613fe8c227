"""Copy files to a machine's hosts and back with rsync.

Files that git ignores are not sent. A sync deletes files from the hosts if an earlier sync sent them and they no longer
exist locally. Files written by jobs are kept. The list of sent files is in `~/.taetpu/sent/FOLDER` on each host.
"""

import hashlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile

from taetpu.cloud.gcloud import CloudError, program
from taetpu.cloud.ssh import NO_CONNECTION, CommandResult, Hosts, Unreachable, public_key
from taetpu.core.errors import UserError
from taetpu.core.script_text import check_script_text

FETCHED = "taetpu-debug"
"""Folder, in a project, of logs and dumps that were fetched from hosts. It is never sent."""
NEVER = ("--exclude=.git/", "--exclude=__pycache__/")
BROKEN = (12, 20, 30, 35, NO_CONNECTION)
"""Exit codes of rsync and ssh if the connection was lost."""
VANISHED = 24
"""Exit code of rsync if files disappeared during the transfer."""

# Deletes files that only an earlier sync sent. Argument: folder. Standard input: the paths now sent, one per line.
PRUNE = """\
set -e; list="$HOME/.taetpu/sent/$1"; mkdir -p "${list%/*}"; cat >"$list.new"; touch "$list"
grep -vxFf "$list.new" "$list" | while IFS= read -r path; do rm -f -- "$1/$path" && echo "$path"; done || true
find "$1" -mindepth 1 -type d -empty -delete 2>/dev/null || true
mv "$list.new" "$list"
"""


def project_folder(folder: Path) -> Path:
    """Return the folder to sync.

    This is the nearest of `folder` and its parents that contains a taetpu.toml or .git. If none does, it is `folder`.

    Raises:
        UserError: if the result is the home folder or the root of the file system.
    """
    here = folder.resolve()
    marks = ("taetpu.toml", ".git")
    root = next((path for path in (here, *here.parents) if any((path / mark).exists() for mark in marks)), here)
    if root in (Path.home().resolve(), Path(root.anchor)):
        remedy = "Run the command in a project's folder, or put a taetpu.toml there."
        raise UserError("refusing to copy the home folder or root", file=root, remedy=remedy)
    return root


def remote_folder(root: Path) -> str:
    """Return the folder on hosts to which a local folder is synced, such as `work/NAME-3f9a1c`.

    The path is relative to the home folder, and ends with a hash of the local path and this computer's key, so that
    projects with the same name do not collide.

    Raises:
        UserError: if the folder's name has a control character.
    """
    here = root.resolve()
    check_script_text(here.name, "folder")
    suffix = hashlib.sha256(os.fsencode(f"{public_key()}\0{here}")).hexdigest()[:6]
    return f"work/{here.name or 'root'}-{suffix}"


def list_files(source: Path) -> list[str]:
    """Return the relative paths of a folder's files that git does not ignore, except those below `FETCHED`.

    Outside a git repository, the paths of all files are returned.
    """
    words = ["git", "-C", str(source), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        output = subprocess.run(words, capture_output=True, check=True).stdout
        names = [os.fsdecode(name) for name in output.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [path.relative_to(source).as_posix() for path in source.rglob("*") if not path.is_dir()]
    sent = (name for name in names if "\n" not in name and FETCHED not in PurePosixPath(name).parts)
    return sorted(name for name in sent if os.path.lexists(source / name))


def sync(hosts: Hosts, source: Path, target: str, workers: Sequence[int], *, keep: bool = False) -> list[str]:
    """Copy a folder's files to hosts, and delete earlier copies of files that no longer exist locally.

    Args:
        hosts: the machine's hosts.
        source: the local folder.
        target: the folder on the hosts.
        workers: the hosts to sync.
        keep: if True, no files are deleted. Use this while a job runs.

    Returns:
        The changed paths, and a line `deleting PATH` for each deleted path.

    Raises:
        Unreachable: if the connection was lost. A repeated call continues the transfer.
    """
    names = list_files(source)
    changed = send(hosts, source, names, target, workers)
    if keep:
        return changed
    listing = "".join(f"{name}\n" for name in names)
    words = ["sh", "-c", PRUNE, "prune", target]
    pruned = hosts.require_success(hosts.run_all(words, stdin=lambda _: listing, workers=workers), "delete old files")
    return [*changed, *dict.fromkeys(f"deleting {path}" for out in pruned for path in out.splitlines())]


def send(hosts: Hosts, root: Path, names: Sequence[str], target: str, workers: Sequence[int]) -> list[str]:
    """Copy files from a root folder to the same relative paths in a folder on hosts, and return the changed paths.

    Raises:
        Unreachable: if the connection was lost. A repeated call continues the transfer.
    """
    with NamedTemporaryFile("wb") as listing:
        listing.write(b"\0".join(map(os.fsencode, names)))
        listing.flush()
        words = [*NEVER, "--files-from", listing.name, "--from0", f"{root}/"]
        return _to_all(hosts, words, target, workers)


def mirror(hosts: Hosts, source: Path, target: str) -> None:
    """Copy a local folder to a folder on all hosts. Files that the local folder does not contain are deleted there."""
    _to_all(hosts, ["--delete-after", *NEVER, f"{source}/"], target, hosts.all)


def fetch(hosts: Hosts, worker: int, source: str, target: Path) -> None:
    """Copy a folder from a host to a local folder."""
    target.mkdir(parents=True, exist_ok=True)
    _checked(hosts, [_rsync(hosts, worker, [f"w{worker}:{source.rstrip('/')}/", f"{target}/"])], f"fetch {source}")


def delete(hosts: Hosts, target: str, paths: Sequence[str], workers: Sequence[int]) -> None:
    """Delete paths in a folder on hosts, or the whole folder if `paths` is empty.

    Raises:
        UserError: if a path is outside the folder.
    """
    for path in paths:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise UserError(f"{path!r} is outside the project", remedy="Use paths relative to the project's folder.")
    names = [f"{target}/{path}" for path in paths] or [target, f".taetpu/sent/{target}"]
    hosts.require_success(hosts.run_all(["rm", "-rf", "--", *names], workers=workers), "delete files")


def _to_all(hosts: Hosts, words: Sequence[str], target: str, workers: Sequence[int]) -> list[str]:
    make = f"--rsync-path=mkdir -p {shlex.quote(target)} && rsync"  # macOS's rsync has no --mkpath

    with ThreadPoolExecutor(max(1, len(workers))) as threads:
        ended = list(threads.map(lambda worker: _rsync(hosts, worker, [make, *words, f"w{worker}:{target}/"]), workers))
    outputs = _checked(hosts, ended, "receive files")
    return [line for line in dict.fromkeys(line for out in outputs for line in out.splitlines()) if line != "./"]


def _rsync(hosts: Hosts, worker: int, words: Sequence[str]) -> CommandResult:
    shell = f"ssh -F '{str(hosts.folder / 'config').replace(chr(39), chr(39) * 2)}'"  # quoted by the rules of rsync
    options = ("--archive", "--compress", "-s", "--partial-dir=.rsync-partial", "--out-format=%n", "-e", shell)
    done = subprocess.run(
        [program("rsync"), *options, *words], capture_output=True, encoding="utf-8", errors="replace",
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return CommandResult(worker, 0 if done.returncode == VANISHED else done.returncode, done.stdout, done.stderr)


def _checked(hosts: Hosts, ended: Sequence[CommandResult], action: str) -> list[str]:
    for result in ended:
        if result.code == 0:
            continue
        message = " ".join(result.err.split())[-300:]
        if result.code in BROKEN and "Permission denied" not in message and "IDENTIFICATION" not in message:
            problem = f"the connection to {hosts.describe(result.worker)} was lost: {message}"
            raise Unreachable(problem, remedy="Run the same command again; received files are not sent twice.")
        if result.code == NO_CONNECTION:
            raise hosts.failure(result, action)
        raise CloudError(f"{hosts.describe(result.worker)} could not {action} (rsync {result.code}): {message}")
    return [result.out for result in ended]
