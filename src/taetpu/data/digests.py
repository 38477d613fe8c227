"""Digests of large files, computed once and remembered until a file changes."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taetpu.core.atomic_files import explain_os_error, write_file
from taetpu.data.token_files import TokenFile

CHUNK = 2**23
"""Number of tokens that are read at once."""
Progress = Callable[[int, int], None]


class Digest(NamedTuple):
    """What a file of tokens holds.

    Attributes:
        sha256: the SHA-256 digest of the tokens' type and values.
        largest: the largest token.
        at: the index of the first token with this value.
    """

    sha256: str
    largest: int
    at: int


def cache_folder() -> Path:
    """Return the folder of what is computed from data once: `TAETPU_CACHE`, or `taetpu` in the user's cache folder."""
    if (chosen := os.environ.get("TAETPU_CACHE")) is not None:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taetpu"


def digest_tokens(file: TokenFile, progress: Progress | None = None) -> Digest:
    """Return the digest of a file of tokens, from the cache if size, time and inode of the file are as before.

    Args:
        file: the opened file.
        progress: called with the numbers of tokens that are read and that there are.
    """
    about = file.path.stat()
    state = [
        str(file.path.resolve()),
        file.layout,
        file.tokens.dtype.str,
        about.st_size,
        about.st_mtime_ns,
        about.st_ino,
    ]
    name = hashlib.sha256(json.dumps(state).encode()).hexdigest()
    remembered = cache_folder() / "digests" / f"{name[:32]}.json"
    try:
        stored = json.loads(remembered.read_bytes())
        if stored["file"] == state:
            return Digest(*(stored[name] for name in Digest._fields))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not remembered, or damaged: computed again
    digest = _read(file.tokens, progress)
    with explain_os_error("remember the digest of a file", remembered, option="TAETPU_CACHE"):
        remembered.parent.mkdir(parents=True, exist_ok=True)
        write_file(remembered, json.dumps({"file": state, **digest._asdict()}).encode(), replace=True)
    return digest


def _read(tokens: np.ndarray, progress: Progress | None) -> Digest:
    digest = hashlib.sha256(f"{tokens.dtype.newbyteorder('<').str} {len(tokens)} ".encode())
    largest, at = -1, 0
    for start in range(0, len(tokens), CHUNK):
        part = np.ascontiguousarray(tokens[start : start + CHUNK])
        digest.update(part.astype(part.dtype.newbyteorder("<"), copy=False).data)
        if (most := int(part.max())) > largest:
            largest, at = most, start + int(part.argmax())
        if progress is not None:
            progress(min(start + CHUNK, len(tokens)), len(tokens))
    return Digest(digest.hexdigest(), largest, at)
