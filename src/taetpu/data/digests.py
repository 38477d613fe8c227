"""Digests of large files, computed once and remembered until a file changes."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taetpu.core.atomic_files import explain_os_error, write_file
from taetpu.core.jax_setup import cache_folder
from taetpu.core.progress import Progress
from taetpu.data.token_files import TokenFile

CHUNK = 2**23
"""Number of tokens or bytes that are read at once."""
SMALL = 2**20
"""Size in bytes below which the digest of a file is computed each time."""


class Digest(NamedTuple):
    """What a file holds.

    Attributes:
        sha256: the SHA-256 digest of its content; of the type and the values if it is a file of tokens.
        largest: the largest token; -1 for other files.
        at: the index of the first token with this value.
        smallest: the smallest token.
        smallest_at: the index of the first token with this value.
    """

    sha256: str
    largest: int = -1
    at: int = 0
    smallest: int = 0
    smallest_at: int = 0


def digest_tokens(file: TokenFile, progress: Progress | None = None) -> Digest:
    """Return the digest of a file of tokens. It is remembered while size, time and inode of the file are the same."""
    return _remembered(file.path, f"{file.layout} {file.tokens.dtype.str}", lambda: _read_tokens(file.tokens, progress))


def digest_file(path: Path, progress: Progress | None = None) -> str:
    """Return the SHA-256 digest of a file. It is remembered while size, time and inode of the file are the same."""
    if path.stat().st_size < SMALL:
        return _read_bytes(path, None).sha256
    return _remembered(path, "bytes", lambda: _read_bytes(path, progress)).sha256


def _remembered(path: Path, what: str, compute: Callable[[], Digest]) -> Digest:
    about = path.stat()
    state = [str(path.resolve()), what, about.st_size, about.st_mtime_ns, about.st_ino]
    name = hashlib.sha256(json.dumps(state).encode()).hexdigest()
    remembered = cache_folder() / "digests" / f"{name[:32]}.json"
    try:
        stored = json.loads(remembered.read_bytes())
        if stored["file"] == state:
            return Digest(*(stored[field] for field in Digest._fields))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not remembered, or damaged: computed again
    digest = compute()
    with explain_os_error("remember the digest of a file", remembered, option="TAETPU_CACHE"):
        write_file(remembered, json.dumps({"file": state, **digest._asdict()}).encode(), replace=True)
    return digest


def _read_tokens(tokens: np.ndarray, progress: Progress | None) -> Digest:
    digest = hashlib.sha256(f"{tokens.dtype.newbyteorder('<').str} {len(tokens)} ".encode())
    largest, at, smallest, smallest_at = -1, 0, 0, 0
    for start in range(0, len(tokens), CHUNK):
        part = np.ascontiguousarray(tokens[start : start + CHUNK])
        digest.update(part.astype(part.dtype.newbyteorder("<"), copy=False).data)
        if (most := int(part.max())) > largest:
            largest, at = most, start + int(part.argmax())
        if (least := int(part.min())) < smallest:
            smallest, smallest_at = least, start + int(part.argmin())
        if progress is not None:
            progress(min(start + CHUNK, len(tokens)), len(tokens))
    return Digest(digest.hexdigest(), largest, at, smallest, smallest_at)


def _read_bytes(path: Path, progress: Progress | None) -> Digest:
    digest, size, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            digest.update(part)
            done += len(part)
            if progress is not None:
                progress(done, size)
    return Digest(digest.hexdigest())
