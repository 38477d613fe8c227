"""Studies in a bucket of Cloud Storage: `gs://bucket/folder`, by Google's own client.

An object appears whole or not at all, and a key is written once because it is created only where there is none. What
must be a folder is worked on in a local one of this process and stored with `keep`: its files, and last their list.
"""

import mimetypes
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.core import disk
from taetpu.core.errors import UserError
from taetpu.core.tempdir import process_folder
from taetpu.store.digests import Damaged
from taetpu.store.documents import to_json
from taetpu.store.gcs_cache import SMALL, Contents, Entry, Listings
from taetpu.store.gcs_client import READER, Address, import_google, retry_policy, storage_client, translate_errors
from taetpu.store.lease import Lease
from taetpu.store.names import NotStored, check_name, describe_process

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Bucket

FILES = ".files.json"
"""In a folder that was kept: its files with their sizes and checksums, written after all of them."""
THREADS = 8


@lru_cache(maxsize=16)
def open_bucket(address: Address) -> "GcsStore":
    """The store at an address; one for all who ask in this process, so that they share what they know of it."""
    return GcsStore(address)


class GcsStore:
    """`Store` below an address. Safe with several processes at once, and with threads.

    Every failure is a `BucketError` that names the address; the library has repeated by then what can be repeated.
    """

    def __init__(self, root: Address):
        self.root = root
        self.listings, self.contents = Listings(self._listed), Contents()
        self.leases: dict[str, Lease] = {}
        self.keeping: set[str] = set()

    @cached_property
    def bucket(self) -> "Bucket":
        return storage_client().bucket(self.root.bucket)

    @cached_property
    def retry(self) -> Any:
        return retry_policy()

    # Keys.

    def write(self, key: str, data: bytes, *, replace: bool = False) -> None:
        self._check_claim(key)
        place = self._address(key)
        with translate_errors("write", place):
            blob, kind = self._blob(key), mimetypes.guess_type(key)[0] or "application/octet-stream"
            condition = None if replace else 0
            try:
                blob.upload_from_string(data, kind, retry=self.retry, if_generation_match=condition)
            except import_google("google.api_core.exceptions").PreconditionFailed:
                if self._downloaded(key) == data:  # by somebody else, or by us, and the answer was lost
                    return
            else:
                self._remember(key, blob, data)
                return
        raise UserError(
            "this object is written once, and has other content already",
            file=str(place),
            remedy="nothing was overwritten: use another study name or --root, or remove the old study",
        )

    def read(self, key: str) -> bytes:
        known = self.listings.fresh(key.partition("/")[0]) or {}
        if key in known:
            self._read_ahead(key, known)
            if (data := self.contents.get(key, known[key].generation)) is not None:
                return data
        with translate_errors("read", self._address(key), READER):
            return self._downloaded(key)

    def exists(self, key: str) -> bool:
        return self._entry(key) is not None

    def modified(self, key: str) -> float:
        if (entry := self._entry(key)) is None:
            raise self._not_stored(key)
        return entry.updated

    def size(self, key: str) -> int | None:
        entry = self._entry(key)
        return None if entry is None else entry.size

    def list(self, prefix: str, depth: int | None = None) -> list[str]:
        if not prefix:
            return sorted(self._names("", sys.maxsize if depth is None else depth))
        self._address(prefix)
        start = f"{prefix}/"
        keys = [key for key in self._below(prefix.partition("/")[0]) if key.startswith(start)]
        return sorted(key for key in keys if depth is None or key.count("/") - prefix.count("/") <= depth)

    def delete(self, prefix: str) -> None:
        """Results go first: what is deleted in part never counts as done, nor does a folder that was kept."""
        self._check_claim(prefix)
        place = self._address(prefix)
        with translate_errors("delete", place):
            names = [blob.name for blob in self._blobs(f"{place.name}/")]
            first = [name for name in names if name.endswith(("/result.json", f"/{FILES}"))]
            rest = [name for name in names if name not in set(first)]
            for group in (first, [*rest, place.name]):
                self._each(self._remove, group)
        top = f"{self.root.name}/" if self.root.name else ""
        self.listings.drop([name.removeprefix(top) for name in [*names, place.name]])
        with disk.explain_os_error("delete", self._local(prefix)):
            disk.remove(self._local(prefix))

    def move(self, old: str, new: str) -> None:
        """Copied first: whoever is killed in between leaves both."""
        self._check_claim(old)
        source, target = self._address(old), self._address(new)
        with translate_errors("move", source):
            single = self._blob(old)
            blobs = [*self._blobs(f"{source.name}/"), *([single] if single.exists(retry=self.retry) else [])]
            for blob in blobs:
                name = target.name + str(blob.name).removeprefix(source.name)
                self.bucket.copy_blob(blob, self.bucket, name, retry=self.retry)
        self.listings.forget()
        self.delete(old)

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        with Lease(lambda: self._blob(key), self._address(key), self.retry, describe_process()).hold() as lease:
            self.listings.forget()  # it may be older than the claim
            self.leases[key] = lease
            try:
                yield
            finally:
                del self.leases[key]

    def where(self, key: str) -> str:
        return str(self._address(key))

    def free_bytes(self) -> int:
        """A bucket has no size: the largest number there is."""
        return sys.maxsize

    def run_concurrently(self, changes: Iterable[Callable[[], None]]) -> None:
        """Make changes side by side, and wait for all: an interrupted process, too, writes nothing once it has left.

        At most so many are there at a time as there are threads, so that what they write need not be in memory at once.
        A change may itself come here: each call has threads of its own.
        """
        running: set[Future[None]] = set()
        with ThreadPoolExecutor(THREADS, "taetpu-gcs") as threads:
            for change in changes:
                if len(running) == THREADS:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    _raised(done)
                running.add(threads.submit(change))
        _raised(running)

    # Folders.

    def folder(self, key: str) -> Path:
        self._address(key)
        path = self._local(key)
        with disk.explain_os_error("create the folder", path):
            disk.make_folder(path)
        return path

    def save_folder(self, key: str) -> None:
        self._check_claim(key)
        place, folder = self._address(key), self.folder(key)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        if not files:
            return
        blobs = [self.bucket.blob(f"{place.name}/{path.relative_to(folder).as_posix()}") for path in files]
        with translate_errors("write", place):
            manager = import_google("google.cloud.storage.transfer_manager")
            pairs = list(zip(map(str, files), blobs, strict=True))
            how = {"retry": self.retry}
            manager.upload_many(
                pairs, worker_type=manager.THREAD, max_workers=THREADS, upload_kwargs=how, raise_exception=True
            )
            names = [str(blob.name).removeprefix(f"{place.name}/") for blob in blobs]
            about = {name: _about(blob) for name, blob in zip(names, blobs, strict=True)}
            manifest = self.bucket.blob(f"{place.name}/{FILES}")
            manifest.upload_from_string(to_json(about), "application/json", retry=self.retry)
        self.listings.forget()
        self.keeping.add(key)

    def fetch_folder(self, key: str) -> bool:
        place, path = self._address(key), self._local(key)
        if key in self.keeping and path.is_dir():
            return True
        errors = import_google("google.cloud.storage.exceptions")
        with translate_errors("read", place, READER):
            there = {str(blob.name): blob for blob in self._blobs(f"{place.name}/")}
            if f"{place.name}/{FILES}" not in there:  # the upload never ended
                return False
            listed = self._manifest(place, there)
            coming = path.with_name(f"{disk.UNFINISHED}{path.name}")
            with disk.explain_os_error("write", path, needed=sum(blob.size or 0 for blob in listed.values())):
                for name in listed:
                    disk.make_folder((coming / name).parent)
                try:
                    self._download({coming / name: blob for name, blob in listed.items()})
                except (errors.DataCorruption, import_google("google.api_core.exceptions").NotFound):
                    raise _damaged(place) from None
                disk.remove(path)
                coming.rename(path)
        self.keeping.add(key)
        return True

    def _manifest(self, place: Address, there: "Mapping[str, Blob]") -> "dict[str, Blob]":
        """The files of a folder that was kept, by their names in it.

        Raises:
            Damaged: one is missing, or differs.
        """
        import json

        try:
            listed = json.loads(there[f"{place.name}/{FILES}"].download_as_bytes(retry=self.retry))
            files = {name: (there.get(f"{place.name}/{name}"), about) for name, about in listed.items()}
        except (ValueError, AttributeError):
            raise _damaged(place / FILES) from None
        for name, (blob, about) in files.items():
            if blob is None or _about(blob) != about:
                raise _damaged(place / name)
        return {name: blob for name, (blob, _) in files.items() if blob is not None}

    def _download(self, files: "Mapping[Path, Blob]") -> None:
        manager = import_google("google.cloud.storage.transfer_manager")
        pairs = [(blob, str(path)) for path, blob in files.items()]
        how = {"retry": self.retry}
        manager.download_many(
            pairs, worker_type=manager.THREAD, max_workers=THREADS, download_kwargs=how, raise_exception=True
        )

    def _local(self, key: str) -> Path:
        # Short, and one for each root: sockets and Windows shares aside, paths have limits, too.
        root = f"{self.root.last or self.root.bucket}-{zlib.crc32(str(self.root).encode()):08x}"
        return process_folder() / root / key

    # What is asked of the bucket.

    def _address(self, key: str) -> Address:
        for part in key.split("/"):
            check_name(part, "key part")
        return self.root / key

    def _blob(self, key: str) -> "Blob":
        return self.bucket.blob(self._address(key).name)

    def _blobs(self, start: str, delimiter: str | None = None) -> Any:
        return self.bucket.list_blobs(prefix=start, delimiter=delimiter, retry=self.retry)

    def _below(self, name: str) -> Mapping[str, Entry]:
        with translate_errors("list", self._address(name), READER):
            return self.listings.below(name)

    def _listed(self, name: str) -> dict[str, Entry]:
        """All keys below a name, without those of dot files and of the folders that consoles make."""
        top = f"{self.root.name}/" if self.root.name else ""
        found = {str(blob.name).removeprefix(top): blob for blob in self._blobs(f"{top}{name}/")}
        return {key: _entry_of(blob) for key, blob in found.items() if _shown(key)}

    def _names(self, folder: str, depth: int) -> Iterator[str]:
        """Keys below a folder, "" for the root, without reading what is deeper."""
        if depth < 1:
            return
        top = f"{self.root.name}/" if self.root.name else ""
        with translate_errors("list", self.root / folder, READER):
            found = self._blobs(f"{top}{folder}", "/" if depth < sys.maxsize else None)
            keys = [str(blob.name).removeprefix(top) for blob in found]
        yield from filter(_shown, keys)
        for deeper in sorted(found.prefixes):
            yield from self._names(deeper.removeprefix(top), depth - 1)

    def _entry(self, key: str) -> Entry | None:
        if "/" in key:
            self._address(key)
            return self._below(key.partition("/")[0]).get(key)
        with translate_errors("read", self._address(key), READER):
            blob = self.bucket.get_blob(self._address(key).name, retry=self.retry)
            if blob is None:
                self._require_bucket()
            return blob and _entry_of(blob)

    def _downloaded(self, key: str) -> bytes:
        blob = self._blob(key)
        try:
            data = blob.download_as_bytes(retry=self.retry)
        except import_google("google.api_core.exceptions").NotFound:
            self._require_bucket()
            raise self._not_stored(key) from None
        self.contents.put(key, int(blob.generation or 0), data)
        return data

    def _read_ahead(self, key: str, known: Mapping[str, Entry]) -> None:
        """Read the small ones of a folder together: who reads a segment of metrics reads all."""
        folder = key.rpartition("/")[0]
        near = [other for other in known if other.rpartition("/")[0] == folder and known[other].size <= SMALL]
        new = [other for other in near if self.contents.get(other, known[other].generation) is None]
        if key in new and len(new) > 1:
            with translate_errors("read", self._address(folder), READER):
                self._each(self._tried, new)

    def _tried(self, key: str) -> None:
        with suppress(NotStored):  # somebody has just deleted it
            self._downloaded(key)

    def _each(self, do: Callable[[str], None], names: Sequence[str]) -> None:
        """Do something for each, side by side."""
        self.run_concurrently(partial(do, name) for name in names)

    def _require_bucket(self) -> None:
        """Raise the library's error where not even the bucket is there, which single objects do not tell apart."""
        next(iter(self.bucket.list_blobs(max_results=1, retry=self.retry)), None)

    def _remove(self, name: str) -> None:
        with suppress(import_google("google.api_core.exceptions").NotFound):
            self.bucket.delete_blob(name, retry=self.retry)

    def _remember(self, key: str, blob: "Blob", data: bytes) -> None:
        entry = _entry_of(blob)
        self.listings.put(key, entry)
        self.contents.put(key, entry.generation, data)

    def _check_claim(self, key: str) -> None:
        """Raise `UserError` where this process held the key's study and has lost it."""
        for claimed, lease in list(self.leases.items()):
            study, inside, _ = claimed.partition("/")
            if not inside or key.startswith(f"{study}/"):
                lease.check()

    def _not_stored(self, key: str) -> NotStored:
        return NotStored("nothing is stored here", file=str(self._address(key)))


def _raised(ended: Iterable[Future[None]]) -> None:
    for one in ended:
        one.result()


def _damaged(place: Address) -> Damaged:
    return Damaged("this object is missing, or is not the one that was stored", file=str(place))


def _entry_of(blob: "Blob") -> Entry:
    updated = blob.updated.timestamp() if blob.updated else 0.0
    return Entry(int(blob.generation or 0), updated, int(blob.size or 0), blob.crc32c or "")


def _about(blob: "Blob") -> dict[str, Any]:
    return {"size": int(blob.size or 0), "crc32c": blob.crc32c}


def _shown(key: str) -> bool:
    return all(part and not part.startswith(".") for part in key.split("/"))
