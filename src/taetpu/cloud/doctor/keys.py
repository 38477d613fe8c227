"""Keys of service accounts in the tree, found by what stands in files, not by their names.

Such a key opens the project to whoever reads it, for as long as it is not revoked: out of a public repository that is
everybody, and deleting the file or the commit does not change it. What was not looked at is told.
"""

import base64
import os
import re
import string
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from taetpu.cloud import transfer
from taetpu.cloud.clients import SIGN_IN
from taetpu.cloud.doctor import history
from taetpu.cloud.doctor.check import Check, fails, ok, warning
from taetpu.core.errors import UserError

LARGEST = 8 * 2**20
"""Bytes of the largest file that is read: a key has about 2,300, a notebook or a log that holds one may have more."""
MOST = 20_000
"""Files that are looked at, so that a home folder does not take minutes."""
PATIENCE = 20.0
"""Seconds for the files, and once more for git's history."""
SHORT = 5.0
"""Seconds for installed packages that git ignores: a sync does not send them."""
INSTALLED = {".venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""Folders of what others wrote, looked into last; and so is every virtual environment."""
KIND = re.compile(rb'\\*"type\\*"\s*:\s*\\*"service_account\\*"')
SECRET = re.compile(rb'\\*"private_key\\*"\s*:\s*\\*"-----BEGIN')
FIELDS = re.compile(rb'\\*"(private_key_id|client_email)\\*"\s*:\s*\\*"([^"\\]+)')
BEGIN = b"-----BEGIN PRIVATE KEY"
"""How the secret of Google's keys begins (PKCS #8), whatever stands around it."""
BARE = re.compile(rb"-----BEGIN (?:RSA |EC |DSA |OPENSSH )?PRIVATE KEY-----(?:\s|\\+[nr])+[A-Za-z0-9+/]{40}")
"""A private key of any kind that no passphrase protects."""
PACKS = (b"PK\3\4", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c")
"""How zip, gzip, bzip2, xz, zstd and 7z files begin. What stands in a tar file stands there plainly."""


def _packed(text: bytes, before: int) -> bytes:
    """The base64 of a text that so many bytes (of three) stand before, as far as the text alone decides it."""
    return base64.b64encode(bytes(before) + text)[-(-8 * before // 6) : (before + len(text)) * 8 // 6]


PACKED = [(-(-8 * before // 6), _packed(BEGIN, before)) for before in range(3)]
"""`BEGIN` in base64 at each alignment, and how many letters of its first group stand before it."""


ALPHABET = string.ascii_letters.encode() + b"0123456789+/"
URL_SAFE = bytes.maketrans(b"-_", b"+/")


@dataclass(frozen=True)
class Found:
    """A file that holds a key, with what the key says of itself. `link`: what leads to the file, if it is elsewhere."""

    path: Path
    number: str
    account: str
    link: Path | None = None

    @property
    def revoke(self) -> str:
        """The command that makes the key useless."""
        return f"gcloud iam service-accounts keys delete {self.number} --iam-account={self.account}"


@dataclass
class Looked:
    """What came of looking through a folder.

    Attributes:
        bare: files that hold a private key, and not as keys of service accounts are written.
        files: that were looked at.
        whole: nothing is left out but what the other attributes count.
        large, unread, packed, links: files too large, files that may not be read, archives, links to folders, none of
            them looked into.
        partly: folders of installed packages that git ignores, not looked through to their ends.
    """

    found: list[Found] = field(default_factory=list)
    bare: list[Path] = field(default_factory=list)
    files: int = 0
    whole: bool = True
    large: int = 0
    unread: int = 0
    packed: int = 0
    links: int = 0
    partly: list[Path] = field(default_factory=list)

    def left_out(self, root: Path) -> str:
        """In words; "" for nothing."""
        what = {
            f"larger than {LARGEST >> 20} MB": self.large, "not readable": self.unread,
            "archives": self.packed, "links to folders": self.links,
        }  # fmt: skip
        words = [f"{number:,} {words}" for words, number in what.items() if number]
        words += [f"all of {folder.relative_to(root)}" for folder in self.partly]
        return f"not looked at: {', '.join(words)}" if words else ""


def checks(folder: Path) -> list[Check]:
    """Keys in the files at and below the project's folder, and in what git remembers."""
    root = _root(folder)
    looked = search(root)
    tracked = history.tracked(root, [*(one.link or one.path for one in looked.found), *looked.bare])
    told = [_told(one, root, tracked) for one in looked.found]
    left_out = looked.left_out(root)
    if not looked.whole:
        problem = f"only the first {looked.files:,} files of {root} were looked at{left_out and f'; {left_out}'}"
        remedy = "give the command in a folder of the project alone; what was not looked at may hold a key"
        told.append(warning("keys", problem, remedy))
    elif not told:
        told = [ok("keys", f"no key of a service account in {root}{left_out and f'; {left_out}'}")]
    elif left_out:
        told.append(warning("keys", left_out, "what was not looked at may hold a key"))
    told += [_bare(path, root, tracked) for path in looked.bare]
    return [*told, *_history(root, {one.number for one in looked.found})]


def _root(folder: Path) -> Path:
    """The repository that a folder is in, else what a sync would send."""
    root = history.top(folder)
    with suppress(UserError):  # it would send nothing
        return root if (root / ".git").exists() else transfer.project(folder)
    return root


def search(root: Path) -> Looked:
    """Every file that holds a key. Links to files are followed, links to folders are not.

    Installed packages come last; those that a sync would not send have a short time.
    """
    looked, until, installed = Looked(), time.monotonic() + PATIENCE, list[Path]()
    looked.whole = _walk(root, looked, until, installed)
    ignored = history.ignored(root, installed)
    for folder in installed:
        if folder not in ignored:
            looked.whole = looked.whole and _walk(folder, looked, until)
    until = time.monotonic() + SHORT
    looked.partly = [folder for folder in installed if folder in ignored and not _walk(folder, looked, until)]
    return looked


def _walk(root: Path, looked: Looked, until: float, installed: list[Path] | None = None) -> bool:
    """Look at the files below a folder; False where the time or the number ends it.

    Args:
        installed: gets the folders of installed packages, which are left out then.
    """
    for parent, folders, names in os.walk(root):
        looked.links += sum(Path(parent, name).is_symlink() for name in folders)
        folders[:] = sorted(name for name in folders if name != ".git")
        if installed is not None:
            own = [name for name in folders if name in INSTALLED or Path(parent, name, "pyvenv.cfg").is_file()]
            installed += [Path(parent, name) for name in own if not Path(parent, name).is_symlink()]
            folders[:] = [name for name in folders if name not in own]
        for path in (Path(parent, name) for name in sorted(names)):
            if looked.files >= MOST or time.monotonic() > until:
                return False
            looked.files += 1
            _look(path, looked, strict=installed is not None)
    return True


def _look(path: Path, looked: Looked, *, strict: bool) -> None:
    """Look into a file; `strict`: also for private keys of any kind, which packages have for their own tests."""
    link = path if path.is_symlink() else None
    path = path.resolve() if link else path
    try:
        if not path.is_file():  # a pipe, a socket, a link to nowhere
            return
        if path.stat().st_size > LARGEST:
            looked.large += 1
            return
        data = path.read_bytes()
    except OSError:
        looked.unread += 1
        return
    looked.packed += data.startswith(PACKS)
    if one := key(path, data):
        if all(path.resolve() != known.path.resolve() for known in looked.found):
            looked.found.append(Found(path, one.number, one.account, link))
    elif strict and BARE.search(data):
        looked.bare.append(link or path)


def key(path: Path, data: bytes) -> Found | None:
    """The key that stands in a file, plainly, as text inside other text, or in base64."""
    for text in (data, *_unpacked(data)):
        if b"-----BEGIN" in text and KIND.search(text) and SECRET.search(text):
            fields = {name.decode(): value.decode(errors="replace") for name, value in FIELDS.findall(text)}
            return Found(path, fields.get("private_key_id", "KEY_ID"), fields.get("client_email", "ACCOUNT"))
    return None


def _unpacked(data: bytes) -> Iterator[bytes]:
    """What stands in base64 around the beginnings of secrets, in one line or in several."""
    letters = data.translate(URL_SAFE, b" \t\r\n")
    for before, mark in PACKED:
        end = 0
        while (at := letters.find(mark, end)) >= 0:
            group = at - before
            left = letters[end:group]
            start = group - (len(left) - len(left.rstrip(ALPHABET))) // 4 * 4
            run = letters[start : at + LARGEST]
            run = run[: len(run) - len(run.lstrip(ALPHABET))]
            end = start + len(run)
            yield base64.b64decode(run[: len(run) // 4 * 4])


def _told(found: Found, root: Path, tracked: set[str]) -> Check:
    path = found.link or found.path
    known = " and git tracks it" if str(path.relative_to(root)) in tracked else ""
    where = f"{found.link}, a link to {found.path}," if found.link else str(found.path)
    remedy = (
        f"revoke it in IAM (the command below), delete the file, and sign in as yourself with `{SIGN_IN}`"
        f"{'; taking it out of git does not help whoever has a copy' if known else ''}"
    )
    return fails("keys", f"{where} is the key of the service account {found.account}{known}", remedy, found.revoke)


def _bare(path: Path, root: Path, tracked: set[str]) -> Check:
    known = " and git tracks it" if str(path.relative_to(root)) in tracked else ""
    remedy = "keep it outside of the project: `taetpu tpu sync` sends whatever git does not ignore"
    remedy += "; whoever has the repository has the key: replace it" if known else ""
    return warning("keys", f"{path} holds a private key{known}", remedy)


def _history(root: Path, here: set[str]) -> list[Check]:
    """Keys that commits hold and the folder does not (any more), by the keys' own numbers."""
    past = history.Past(root, time.monotonic() + PATIENCE, LARGEST)
    told, known = [], set(here)
    for blob, name, data in past.files():
        if (one := key(root / name, data)) and one.number not in known:
            known.add(one.number)
            remedy = (
                "revoke it (the command below): it counts as leaked, for whoever has a copy of the repository has the "
                "key; it is told until git forgets it (`git filter-repo`), which does not make up for revoking it"
            )
            problem = f"{past.commit(blob)} holds a key of the service account {one.account} in {name}"
            told.append(fails("keys in git", problem, remedy, one.revoke))
    if past.left:
        problem = f"git's history was not looked at whole: {past.left}"
        told.append(warning("keys in git", problem, "what was not looked at may hold a key", SEARCH))
    return told


SEARCH = "git log --all --oneline --name-only --pickaxe-regex -S 'private_key..{0,9}-----BEGIN'"
"""What looks through the rest of a history, in its own time."""
