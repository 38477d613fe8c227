"""Files in Cloud Storage, `gs://BUCKET/PATH`: copied to this machine's disk by gcloud, and verified.

A path may be a file, a pattern or a folder. Copies that were cut or killed are continued. Copies are kept in the folder
`TAETPU_CACHE` until the object in the bucket changes, and are used without a network.
"""

import base64
import glob
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from taetpu.core.atomic_files import explain_os_error, free_bytes, locked, write_file
from taetpu.core.errors import UserError
from taetpu.core.jax_setup import cache_folder
from taetpu.core.progress import show_progress
from taetpu.data.remote.fetched import NAMED, Fetched, index_of, is_pattern
from taetpu.data.remote.splits import ending_of, visible

SCHEME = "gs://"
PROPERTIES = {
    "CLOUDSDK_CORE_DISABLE_PROMPTS": "1", "CLOUDSDK_CORE_SHOW_STRUCTURED_LOGS": "never",
    "CLOUDSDK_CORE_USER_OUTPUT_ENABLED": "true", "CLOUDSDK_CORE_VERBOSITY": "warning",
}  # fmt: skip
THREADS = 4
"""Number of objects that are copied at once."""
FIELDS = "json(name,size,generation,crc32c_hash,md5_hash)"
DENIED = ("403", "401", "does not have", "permission", "credentialed accounts", "active account")
ABSENT = ("matched no objects", "not found: 404", "does not exist", "404")


class Object(NamedTuple):
    """An object of a bucket: its name, bytes, version, and checksums in base64. Composite objects have no MD5."""

    name: str
    size: int
    generation: str
    crc32c: str
    md5: str | None


class GcloudFailed(UserError):
    """gcloud gave no answer, so what was copied before may be used."""


def fetch_objects(source: str, endings: Collection[str]) -> Fetched:
    """Return the files of an address; they are copied to this machine when they are read.

    The fact `generations` is the SHA-256 digest of the names and generations of the objects.

    Args:
        source: the address.
        endings: endings of the files of a folder that can be read.

    Raises:
        UserError: if gcloud is not installed, the bucket does not let it read, or there is no such object.
    """
    bucket, _, path = source.removeprefix(SCHEME).partition("/")
    path = path.rstrip("/")
    if not bucket or not path:
        raise UserError(
            f"{source!r} names no object", remedy="Write gs://BUCKET/PATH, gs://BUCKET/FOLDER or a pattern."
        )
    objects = {item.name: item for item in list_objects(bucket, path)}
    if is_pattern(path):
        names = [name for name in sorted(objects) if not name.endswith(".idx")]
    elif path in objects:
        names = [path]
    else:
        names = [name for name in visible(sorted(objects)) if ending_of(name, endings)]
    if not names:
        problem = f"{source} has no files to read"
        raise UserError(problem, remedy=f"Use the address of files that end in {', '.join(sorted(endings))}.")
    generations = json.dumps([[name, objects[name].generation] for name in names])
    about = {"source": source, "generations": hashlib.sha256(generations.encode()).hexdigest()}

    def open_files(files: Sequence[str]) -> list[tuple[str, Path]]:
        indices = [objects[name] for name in map(index_of, files) if name in objects]
        stage(bucket, [*indices, *(objects[name] for name in files)])
        return [(name, _place(bucket, name)) for name in files]

    return Fetched(source, {NAMED: names}, about, open_files)


@lru_cache(maxsize=64)
def list_objects(bucket: str, path: str) -> tuple[Object, ...]:
    """Return the objects of a path, a pattern or a folder; without an answer those that it had before.

    Raises:
        UserError: see `fetch_objects`.
    """
    key = hashlib.sha256(path.encode()).hexdigest()[:32]
    remembered = cache_folder() / "buckets" / bucket / f"{key}.json"
    try:
        objects = _list(f"{SCHEME}{bucket}/{path}")
        if not is_pattern(path):
            objects = objects or _list(f"{SCHEME}{bucket}/{path}/**")
            if index := index_of(path):
                objects += _list(f"{SCHEME}{bucket}/{index}")
    except GcloudFailed:
        try:
            return tuple(Object(*item) for item in json.loads(remembered.read_bytes()))
        except (OSError, ValueError, TypeError):
            pass
        raise
    if not objects:
        raise UserError(
            f"there is no object {SCHEME}{bucket}/{path}", remedy=f"List them: gcloud storage ls gs://{bucket}"
        )
    with explain_os_error("remember the objects of a bucket", remembered, option="TAETPU_CACHE"):
        write_file(remembered, json.dumps(objects).encode(), replace=True)
    return tuple(objects)


def _list(address: str) -> list[Object]:
    """Return the objects of an address whose names are also names of files in a folder."""
    try:
        listed = json.loads(_gcloud("objects", "list", address, f"--format={FIELDS}") or "[]")
    except _Absent:
        return []
    return [
        Object(item["name"], int(item["size"]), str(item["generation"]), item["crc32c_hash"], item.get("md5_hash"))
        for item in listed
        if not item["name"].endswith("/") and ".." not in item["name"].split("/") and not item["name"].startswith("/")
    ]


def stage(bucket: str, objects: Sequence[Object]) -> None:
    """Copy objects to this machine, unless the same versions are there.

    Raises:
        UserError: if there is no room, if gcloud fails, or if a copy has another size or checksum than the object.
    """
    folder = cache_folder() / "buckets" / bucket
    with explain_os_error("copy files of a bucket", folder, option="TAETPU_CACHE"), locked(folder) as lock:
        missing = [item for item in objects if not _is_staged(bucket, item)]
        needed = sum(item.size for item in missing)
        begun = sum(part.stat().st_size for item in missing if (part := _part(bucket, item)).is_file())
        if needed - begun > (free := free_bytes(folder)):
            problem = f"{SCHEME}{bucket}: {needed - begun:,} bytes are to be copied, but {folder} has room for {free:,}"
            raise UserError(problem, remedy="Set TAETPU_CACHE to a folder on a larger disk.")
        done = 0
        with show_progress(f"{SCHEME}{bucket}") as progress, ThreadPoolExecutor(THREADS, "copy") as pool:
            for size in pool.map(lambda item: _copy(bucket, item, lock), missing):
                done += size
                if progress is not None:
                    progress(done, needed)


def _copy(bucket: str, item: Object, lock: int) -> int:
    """Copy an object, or continue to, and return its number of bytes.

    `gcloud storage cp` does not continue at the right place: it searches for the first byte 0 of a partial copy, which
    is near the start of most files of tokens.
    """
    file, address = _place(bucket, item.name), f"{SCHEME}{bucket}/{item.name}"
    part = _part(bucket, item)
    file.parent.mkdir(parents=True, exist_ok=True)
    for other in file.parent.glob(f"{glob.escape(file.name)}.*.part"):
        if other != part:
            other.unlink()
    with part.open("ab") as opened:
        if (done := opened.tell()) < item.size:
            try:
                _gcloud("cat", f"--range={done}-", f"{address}#{item.generation}", limit=None, out=opened, lock=lock)
            except _Absent:
                remedy = "Run the same command again; it reads the new version."
                raise UserError(f"{address} was changed while it was read", remedy=remedy) from None
    _verify(part, item, address)
    part.replace(file)
    about = file.stat()
    state = [item.generation, about.st_size, about.st_mtime_ns]
    write_file(_state(file), json.dumps(state).encode(), replace=True)
    return item.size


def _place(bucket: str, name: str) -> Path:
    return cache_folder() / "buckets" / bucket / "objects" / name


def _part(bucket: str, item: Object) -> Path:
    file = _place(bucket, item.name)
    return file.with_name(f"{file.name}.{item.generation}.part")


def _state(file: Path) -> Path:
    return file.with_name(f".{file.name}.json")


def _is_staged(bucket: str, item: Object) -> bool:
    """Return whether a copy of this version is there, unchanged since it was verified."""
    file = _place(bucket, item.name)
    try:
        about = file.stat()
        return json.loads(_state(file).read_bytes()) == [item.generation, about.st_size, about.st_mtime_ns]
    except (OSError, ValueError):
        return False


def _verify(part: Path, item: Object, address: str) -> None:
    """Delete a copy and raise `UserError` if its size or checksum is not that of the object."""
    size = part.stat().st_size
    wrong = f"{size:,} bytes, but the object has {item.size:,}" if size != item.size else ""
    if not wrong:
        seen, stated = (_md5(part), item.md5) if item.md5 else (_crc32c(part), item.crc32c)
        wrong = f"the checksum {seen}, but the object has {stated}" if seen != stated else ""
    if wrong:
        part.unlink()
        raise UserError(f"the copy of {address} has {wrong}", remedy="Run the same command again.")


def _md5(file: Path) -> str:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, partial(hashlib.md5, usedforsecurity=False))
    return base64.b64encode(digest.digest()).decode()


def _crc32c(file: Path) -> str:
    (about,) = json.loads(_gcloud("hash", str(file), "--skip-md5", "--format=json", limit=None))
    return about["crc32c_hash"]


class _Absent(Exception):
    """There is no such object."""


def _gcloud(*words: str, limit: float | None = 120.0, out: BinaryIO | None = None, lock: int | None = None) -> str:
    """Return the standard output of `gcloud storage WORDS`.

    Args:
        words: The words after `gcloud storage`.
        limit: The number of seconds after which the command is ended; None for copies of any size.
        out: Where the standard output is written instead.
        lock: A file descriptor that gcloud keeps open while it runs, even if this process is killed.

    Raises:
        UserError: if gcloud is not installed, or is not allowed to read.
        GcloudFailed: if it failed in another way.
    """
    program = shutil.which("gcloud")
    if program is None:
        problem = "reading gs:// requires gcloud, which is not installed"
        raise UserError(problem, remedy="Install it: https://cloud.google.com/sdk/docs/install")
    shown = " ".join(("gcloud", "storage", *words))
    try:
        done = subprocess.run(
            [program, "storage", *words], env={**os.environ, **PROPERTIES}, stdin=subprocess.DEVNULL,
            stdout=out or subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit, check=False,
            pass_fds=() if lock is None else (lock,),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        problem = f"{shown}: no answer in {limit:.0f} seconds"
        raise GcloudFailed(problem, remedy="Check the network.") from None
    if done.returncode == 0:
        return (done.stdout or b"").decode()
    said = done.stderr.decode(errors="replace")
    if any(sign in said for sign in ABSENT):
        raise _Absent
    problem = f"{shown}: {said.strip()}"
    if any(sign in said for sign in DENIED):
        raise UserError(problem, remedy="Run `gcloud auth login` with an account that may read the bucket.")
    raise GcloudFailed(problem, remedy="Check the network, then run the same command again.")
