"""Keys of service accounts in the tree, found by what stands in files, not by their names.

Such a key opens the project to whoever reads it, for as long as it is not revoked: out of a public repository that is
everybody, and deleting the file or the commit does not change it.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from taetpu.cloud.clients import SIGN_IN
from taetpu.cloud.doctor.check import Check, fails, ok, skipped, warning

LARGEST = 64 * 1024
"""Bytes of the largest file that is read: a key has about 2,300."""
MOST = 20_000
"""Files that are looked at, so that a home folder does not take minutes."""
SKIPPED = {".git", ".venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
KIND = re.compile(rb'\\*"type\\*"\s*:\s*\\*"service_account\\*"')
SECRET = re.compile(rb'\\*"private_key\\*"\s*:\s*\\*"-----BEGIN')
FIELDS = re.compile(rb'\\*"(private_key_id|client_email)\\*"\s*:\s*\\*"([^"\\]+)')
PATIENCE = 20.0
"""Seconds for a question to git."""


@dataclass(frozen=True)
class Found:
    """A file that holds a key, with what the key says of itself."""

    path: Path
    number: str
    account: str

    @property
    def revoke(self) -> str:
        """The command that makes the key useless."""
        return f"gcloud iam service-accounts keys delete {self.number} --iam-account={self.account}"


def checks(folder: Path) -> list[Check]:
    """Keys in the files at and below the project's folder, and in what git remembers."""
    root = _root(folder)
    found, all_seen = search(root)
    tracked = set(_git(root, "ls-files", "--", *[str(one.path) for one in found]) or []) if found else set()
    told = [_told(one, root, tracked) for one in found]
    if not told:
        extent = "" if all_seen else f" among the first {MOST:,} files"
        told = [ok("keys", f"no key of a service account in {root}{extent}")]
    return [*told, *_history(root, {str(one.path.relative_to(root)) for one in found})]


def search(root: Path) -> tuple[list[Found], bool]:
    """Every file that holds a key, and whether all files were looked at. Links are not followed."""
    found, seen = [], 0
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name not in SKIPPED and not Path(parent, name, "pyvenv.cfg").is_file()
        )
        for name in sorted(names):
            path = Path(parent, name)
            seen += 1
            if seen > MOST:
                return found, False
            try:
                if path.is_symlink() or path.stat().st_size > LARGEST or not path.is_file():
                    continue
                data = path.read_bytes()
            except OSError:
                continue
            if one := _key(path, data):
                found.append(one)
    return found, True


def _key(path: Path, data: bytes) -> Found | None:
    if not (KIND.search(data) and SECRET.search(data)):
        return None
    fields = {name.decode(): value.decode(errors="replace") for name, value in FIELDS.findall(data)}
    return Found(path, fields.get("private_key_id", "KEY_ID"), fields.get("client_email", "ACCOUNT"))


def _told(found: Found, root: Path, tracked: set[str]) -> Check:
    name = str(found.path.relative_to(root))
    known = " and git tracks it" if name in tracked else ""
    remedy = (
        f"revoke it in IAM (the command below), delete the file, and sign in as yourself with `{SIGN_IN}`"
        f"{'; taking it out of git does not help whoever has a copy' if known else ''}"
    )
    return fails("keys", f"{found.path} is the key of the service account {found.account}{known}", remedy, found.revoke)


def _history(root: Path, here: set[str]) -> list[Check]:
    """Keys that commits hold and the folder does not (any more)."""
    lines = _git(root, "log", "--all", "--format=:%h", "--name-only", "-S", '"private_key": "-----BEGIN', "--", ".")
    if lines is None:
        inside = _git(root, "rev-parse", "--git-dir")
        return [skipped("keys in git", f"git did not tell its history within {PATIENCE:.0f} s")] if inside else []
    commit, told, known = "", [], set(here)
    for line in lines:
        if line.startswith(":"):
            commit = line[1:]
        elif line and line not in known:
            data = "\n".join(_git(root, "show", f"{commit}:./{line}") or []).encode()
            if one := _key(root / line, data):
                known.add(line)
                remedy = "if it is not revoked yet, revoke it: whoever has the repository has the key"
                told.append(warning("keys in git", f"commit {commit} holds a key in {line}", remedy, one.revoke))
    return told


def _root(folder: Path) -> Path:
    """The top of the git repository that holds a folder, else the folder."""
    lines = _git(folder, "rev-parse", "--show-toplevel")
    return Path(lines[0]) if lines else folder.resolve()


def _git(folder: Path, *arguments: str) -> list[str] | None:
    """The lines that git answers in a folder; None where it is not there, refuses, or takes too long."""
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.decode(errors="replace").splitlines() if ended.returncode == 0 else None
