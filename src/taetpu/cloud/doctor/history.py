"""What git remembers: the content of every file of every commit, each looked at once, within a time."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

QUICK = 20.0
"""Seconds for a small question to git."""
QUIET = {"GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
"""A partial clone fetches nothing, and nothing is written."""


def top(folder: Path) -> Path:
    """The top of the git repository that holds a folder, else the folder."""
    lines = _git(folder, "rev-parse", "--show-toplevel")
    return Path(lines[0]) if lines else folder.resolve()


def tracked(root: Path, paths: Sequence[Path]) -> set[str]:
    """Those of some files that git tracks, by their names below the top."""
    return set(_git(root, "ls-files", "--", *map(str, paths)) or []) if paths else set()


def ignored(root: Path, folders: Sequence[Path]) -> set[Path]:
    """Those of some folders whose files git ignores, also by a `.gitignore` of their own."""
    told = _git(root, "check-ignore", "--", *(str(folder / "any") for folder in folders)) if folders else None
    return {Path(line).parent for line in told or []}


@dataclass
class Past:
    """The files that a repository's commits hold: merges, other branches, tags and the stash as well.

    Attributes:
        until: when to stop, by `time.monotonic`.
        largest: bytes of the largest file that is read.
        left: what was not looked at, in words, once `files` has ended; "" for nothing.
    """

    root: Path
    until: float
    largest: int
    left: str = ""

    def files(self) -> Iterator[tuple[str, str, bytes]]:
        """Every content that a file ever had: its object, one of the file's names, and its bytes."""
        inside = _git(self.root, "rev-parse", "--is-shallow-repository")
        if inside is None:
            return  # it is no repository, or there is no git
        seen = 0
        try:
            listed, missing = self._blobs()
            blobs = [(blob, name) for size, blob, name in listed if size <= self.largest]
            for blob, name, data in self._contents(blobs):
                seen += 1
                yield blob, name, data
        except (OSError, subprocess.SubprocessError):
            self.left = "git did not list it in time"
            return
        reasons = []
        if seen < len(blobs):
            reasons.append(f"only {seen:,} of {len(blobs):,} files were, for lack of time")
        if large := len(listed) - len(blobs):
            reasons.append(f"{large:,} files are larger than {self.largest >> 20} MB")
        if missing:
            reasons.append(f"{missing:,} files are not in this clone (it is partial)")
        if inside == ["true"]:
            reasons.append("this clone has only its newest part (it is shallow)")
        self.left = "; ".join(reasons)

    def commit(self, blob: str) -> str:
        """Which commit brought a content, in words."""
        lines = _git(self.root, "log", "--all", "-c", "--name-only", "--format=:%h", f"--find-object={blob}") or []
        commits = [line[1:] for line in lines if line.startswith(":")]
        return f"commit {commits[-1]}" if commits else "a commit"

    def _blobs(self) -> tuple[list[tuple[int, str, str]], int]:
        """Every file's content, newest first, as bytes, object and name; and how many are not here."""
        lines = self._run(["rev-list", "--objects", "--all", "--missing=print"]).decode(errors="replace").split("\n")
        names = dict(line.split(" ", 1) for line in lines if " " in line)
        form = "--batch-check=%(objecttype) %(objectsize) %(objectname)"
        told = self._run(["cat-file", form], "".join(f"{one}\n" for one in names)).decode().splitlines()
        found = [line.split() for line in told if line.startswith("blob ")]
        return [(int(size), one, names[one]) for _, size, one in found], sum(line[:1] == "?" for line in lines)

    def _contents(self, blobs: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, bytes]]:
        """Contents one after the other, until the time is over."""
        with tempfile.TemporaryFile() as asked:
            asked.write("".join(f"{blob}\n" for blob, _ in blobs).encode())
            asked.seek(0)
            with subprocess.Popen(self._words(["cat-file", "--batch"]), stdin=asked, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, env=os.environ | QUIET) as git:  # fmt: skip
                assert git.stdout is not None
                for blob, name in blobs:
                    fields = git.stdout.readline().split()
                    if len(fields) != 3 or time.monotonic() > self.until:
                        break
                    yield blob, name, git.stdout.read(int(fields[2]) + 1)[:-1]
                git.kill()

    def _words(self, arguments: list[str]) -> list[str]:
        return ["git", "-C", str(self.root), *arguments]

    def _run(self, arguments: list[str], given: str = "") -> bytes:
        """What git answers in the time that is left. Raises as `subprocess.run`."""
        left = max(0.001, self.until - time.monotonic())
        return subprocess.run(
            self._words(arguments), input=given.encode(), capture_output=True, timeout=left, check=True,
            env=os.environ | QUIET,
        ).stdout  # fmt: skip


def _git(folder: Path, *arguments: str) -> list[str] | None:
    """The lines that git answers in a folder; None where it is not there, refuses, or takes too long."""
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=QUICK, check=False,
            env=os.environ | QUIET,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.decode(errors="replace").splitlines() if ended.returncode == 0 else None
