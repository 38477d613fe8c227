"""Downloads over HTTPS: resumed after a cut, verified, and never seen half-written."""

import hashlib
import json
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from contextlib import AbstractContextManager
from email.message import Message
from http.client import HTTPException
from pathlib import Path

from taetpu.core.atomic_files import explain_os_error, write_file
from taetpu.core.errors import UserError
from taetpu.core.progress import show_progress

CHUNK = 2**20
ATTEMPTS = 4
"""How often a download without any progress is tried."""
PAUSE = 1.0
"""Seconds before the second attempt; each following pause is twice as long."""
TIMEOUT = 30.0
"""Seconds without an answer after which a connection counts as lost."""


def download_file(address: str, file: Path, digest: str | None, instead: str) -> None:
    """Write the content of an address to a file. A download that was cut or killed continues where it stopped.

    Args:
        address: The address.
        file: The file, which appears when all of it is there and has the right content.
        digest: What the content must be, `ALGORITHM:HEX` (see `digest_of`); None if it is not known.
        instead: What to do without a network, for the remedy.

    Raises:
        UserError: if the address cannot be read, if the content is another, or if the disk is full.
    """
    part = file.with_name(f"{file.name}.part")
    with _writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    failures, before = 0, _size(part)
    while True:
        try:
            _continue(address, part)
            break
        except urllib.error.HTTPError as error:
            with error:
                problem = f"{address} cannot be read: HTTP {error.code} {error.reason}"
            if error.code < 500:
                raise UserError(problem, remedy=f"If it has moved, {instead}.") from None
            reason = problem
        except (HTTPException, OSError) as error:  # of the network: those of the disk are `UserError`s
            reason = f"{address} cannot be read: {getattr(error, 'reason', error)}"
        size = _size(part)
        failures = 0 if size > before else failures + 1
        if failures == ATTEMPTS:
            raise UserError(reason, remedy=f"Check the network, or {instead}.")
        before = size
        time.sleep(PAUSE * 2 ** max(failures - 1, 0))
    with _writing(file):
        check_digest(part, digest, address)
        part.replace(file)
        _state_of(part).unlink(missing_ok=True)


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _state_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _continue(address: str, part: Path) -> None:
    """Append what is missing to a partial download; begin again if the content behind the address has changed."""
    try:
        state = json.loads(_state_of(part).read_bytes())
        done = part.stat().st_size if state["address"] == address and state["version"] else 0
    except (OSError, ValueError, KeyError, TypeError):
        state, done = {}, 0
    request = urllib.request.Request(address)
    if done:
        request.add_header("Range", f"bytes={done}-")
        request.add_header("If-Range", state["version"])
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # nothing is left, or the content is shorter now
            raise
        error.close()
        if error.headers.get("Content-Range") == f"bytes */{done}":
            return
        part.unlink()
        _continue(address, part)
        return
    with answer:
        if answer.status != 206:
            done = 0
            content = json.dumps({"address": address, "version": _version(answer.headers)}).encode()
            with _writing(part):
                write_file(_state_of(part), content, replace=True)
        expected = answer.headers.get("Content-Length")
        total = done + int(expected) if expected else 0
        with _writing(part):
            file = part.open("r+b" if done else "wb")
        with file, show_progress(part.stem) as progress:
            file.seek(done)
            while chunk := answer.read(CHUNK):  # errors of the network, not of the disk
                with _writing(part):
                    file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
    if done < total:
        raise ConnectionError(f"the connection was lost after {done:,} of {total:,} bytes")


def _writing(file: Path) -> AbstractContextManager[None]:
    return explain_os_error("write the download", file, option="TAETPU_CACHE")


def _version(headers: Message) -> str:
    """Return what identifies the content in `If-Range`: a strong entity tag, else the date, else an empty text."""
    tag = headers.get("ETag", "")
    return tag if tag.startswith('"') else headers.get("Last-Modified", "")


def check_digest(file: Path, digest: str | None, place: str) -> None:
    """Delete a file and raise `UserError` if it has another content than it must have."""
    if digest is None or (seen := digest_of(file, digest.partition(":")[0])) == digest:
        return
    file.unlink()
    problem = f"{place} has the digest {seen}, but it must be {digest}, so it is damaged or has been changed"
    raise UserError(problem, file=file, remedy="Run the same command again, or get the file from elsewhere.")


def digest_of(file: Path, algorithm: str) -> str:
    """Return the digest of a file, `ALGORITHM:HEX`. The algorithm `git` is that of a blob in git."""
    digest = hashlib.new("sha1" if algorithm == "git" else algorithm, usedforsecurity=False)
    if algorithm == "git":
        digest.update(b"blob %d\0" % file.stat().st_size)
    with file.open("rb") as opened:
        hashlib.file_digest(opened, lambda: digest)
    return f"{algorithm}:{digest.hexdigest()}"


def unpack(archive: Path, member: str, file: Path) -> None:
    """Write a member of a zip archive to a file.

    Raises:
        UserError: if the archive is damaged, or if the disk is full.
    """
    part = file.with_name(f"{file.name}.part")
    try:
        with explain_os_error("unpack", file, option="TAETPU_CACHE"):
            with zipfile.ZipFile(archive) as zipped, zipped.open(member) as packed, part.open("wb") as opened:
                shutil.copyfileobj(packed, opened, CHUNK)
            part.replace(file)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        part.unlink(missing_ok=True)
        remedy = f"Delete {archive}, and run the same command again."
        raise UserError(f"{archive} is damaged: {error}", file=archive, remedy=remedy) from None
