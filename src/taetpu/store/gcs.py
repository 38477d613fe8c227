"""The store in a Cloud Storage bucket, `gs://bucket/folder`, built on Google's client.

Uploads are atomic. Unless `replace` is set, a write creates the object only if it does not exist yet. `folder` returns
a local folder of this process; `save_folder` uploads the files in this folder, followed by a list of these files.
"""

import json
import mimetypes
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.core import atomic_files
from taetpu.core.errors import UserError
from taetpu.core.tempdir import process_folder
from taetpu.store.digests import Damaged
from taetpu.store.documents import to_json
from taetpu.store.errors import WRITTEN_ONCE, NotStored, check_name, describe_process
from taetpu.store.gcs_cache import SMALL, Contents, Entry, Listings
from taetpu.store.gcs_client import READER, Address, import_google, retry_policy, storage_client, translate_errors
from taetpu.store.lease import Lease

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Bucket

FILES = ".files.json"
"""The object that lists the files of a saved folder with their sizes and checksums. It is written after the files."""
THREADS = 8


@lru_cache(maxsize=16)
def open_bucket(address: Address) -> "GcsStore":
    """Return the store at an address. A process has one store per address, so all its callers share the caches."""
    return GcsStore(address)


class GcsStore:
    """A `Store` below an address. Safe for concurrent processes and threads.

    A failed request raises a `BucketError` with the address, after Google's library has retried the request.
    """

    def __init__(self, root: Address):
        self.root = root
        self.listings, self.contents = Listings(self.list_keys), Contents()
        self.leases: dict[str, Lease] = {}
        self.local: set[str] = set()

    @cached_property
    def bucket(self) -> "Bucket":
        """The bucket object from Google's client."""
        return storage_client().bucket(self.root.bucket)

    @cached_property
    def retry(self) -> Any:
        """The retry policy of every request."""
        return retry_policy()

    # Keys.

    def write(self, key: str, data: bytes, *, replace: bool = False) -> None:
        """See `Store.write`."""
        self._check_claim(key)
        place = self._address(key)
        with translate_errors("write", place):
            blob, kind = self._blob(key), mimetypes.guess_type(key)[0] or "application/octet-stream"
            condition = None if replace else 0
            try:
                blob.upload_from_string(data, kind, retry=self.retry, if_generation_match=condition)
            except import_google("google.api_core.exceptions").PreconditionFailed:
                if self._download_key(key) == data:  # an earlier attempt succeeded, but its response was lost
                    return
            else:
                entry = _entry_of(blob)
                self.listings.apply({key: entry})
                self.contents.put(key, entry.generation, data)
                return
        problem = "this object already exists with different content and must not be overwritten"
        raise UserError(problem, file=str(place), remedy=WRITTEN_ONCE)

    def read(self, key: str) -> bytes:
        """See `Store.read`."""
        known = self.listings.fresh(key.partition("/")[0]) or {}
        if key in known:
            self._read_ahead(key, known)
            if (data := self._cached(key, known[key])) is not None:
                return data
        with translate_errors("read", self._address(key), READER):
            return self._download_key(key)

    def exists(self, key: str) -> bool:
        """See `Store.exists`."""
        return self._entry(key) is not None

    def modified(self, key: str) -> float:
        """See `Store.modified`."""
        if (entry := self._entry(key)) is None:
            raise self._not_stored(key)
        return entry.updated

    def size(self, key: str) -> int | None:
        """See `Store.size`."""
        entry = self._entry(key)
        return None if entry is None else entry.size

    def list(self, prefix: str, depth: int | None = None) -> list[str]:
        """See `Store.list`."""
        if not prefix:
            return sorted(self._names("", sys.maxsize if depth is None else depth))
        self._address(prefix)
        start = f"{prefix}/"
        keys = [key for key in self._below(prefix.partition("/")[0]) if key.startswith(start)]
        return sorted(key for key in keys if depth is None or key.count("/") - prefix.count("/") <= depth)

    def delete(self, prefix: str) -> None:
        """See `Store.delete`.

        Results and lists of files are deleted first, so that partly deleted runs and folders do not count as complete.
        """
        self._check_claim(prefix)
        place = self._address(prefix)
        with translate_errors("delete", place):
            names = [blob.name for blob in self._blobs(f"{place.name}/")]
            first = [name for name in names if name.endswith(("/result.json", f"/{FILES}"))]
            rest = [name for name in names if name not in set(first)]
            for group in (first, [*rest, place.name]):
                self.run_concurrently(partial(self._remove, name) for name in group)
        self.listings.apply(dict.fromkeys(map(self._key, [*names, place.name])))
        with atomic_files.explain_os_error("delete", self.local_path(prefix)):
            atomic_files.remove(self.local_path(prefix))

    def move(self, old: str, new: str) -> None:
        """See `Store.move`. All objects are copied before any is deleted, so that a killed process loses no data."""
        self._check_claim(old)
        source, target = self._address(old), self._address(new)
        with translate_errors("move", source):
            single = self._blob(old)
            blobs = [*self._blobs(f"{source.name}/"), *([single] if single.exists(retry=self.retry) else [])]
            for blob in blobs:
                name = target.name + str(blob.name).removeprefix(source.name)
                self.bucket.copy_blob(blob, self.bucket, name, retry=self.retry)
        self.listings.clear()
        self.delete(old)

    @contextmanager
    def claim(self, key: str) -> Iterator[None]:
        """See `Store.claim`."""
        with Lease(lambda: self._blob(key), self._address(key), self.retry, describe_process()).hold() as lease:
            self.listings.clear()  # cached listings may be older than the claim
            self.leases[key] = lease
            try:
                yield
            finally:
                del self.leases[key]

    def where(self, key: str) -> str:
        """See `Store.where`."""
        return str(self._address(key))

    def run_concurrently(self, changes: Iterable[Callable[[], None]]) -> None:
        """Make changes in threads and wait for all of them, so that no write is still running when the call ends.

        At most `THREADS` changes are in progress at a time, so that the data of pending changes need not be in memory.
        Calls may be nested, because each call has separate threads.
        """
        pending = iter(changes)
        with ThreadPoolExecutor(THREADS, "taetpu-gcs") as threads:
            while group := [threads.submit(change) for change in islice(pending, THREADS)]:
                for future in group:
                    future.result()

    # Folders.

    def folder(self, key: str) -> Path:
        """See `Store.folder`."""
        self._address(key)
        path = self.local_path(key)
        with atomic_files.explain_os_error("create the folder", path):
            atomic_files.make_folder(path)
        return path

    def save_folder(self, key: str) -> None:
        """See `Store.save_folder`."""
        self._check_claim(key)
        place, folder = self._address(key), self.folder(key)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        if not files:
            return
        names = [path.relative_to(folder).as_posix() for path in files]
        with translate_errors("write", place):
            manager = import_google("google.cloud.storage.transfer_manager")
            manager.upload_many_from_filenames(
                self.bucket, names, source_directory=str(folder), upload_kwargs={"retry": self.retry},
                **_transfer_options(manager, place),
            )  # fmt: skip
            stored = {str(blob.name): blob for blob in self._blobs(f"{place.name}/")}
            about = {name: _fingerprint(stored[f"{place.name}/{name}"]) for name in names}
            manifest = self.bucket.blob(f"{place.name}/{FILES}")
            manifest.upload_from_string(to_json(about), "application/json", retry=self.retry)
        self.listings.clear()
        self.local.add(key)

    def fetch_folder(self, key: str) -> bool:
        """See `Store.fetch_folder`."""
        place, path = self._address(key), self.local_path(key)
        if key in self.local and path.is_dir():
            return True
        errors, manager = map(
            import_google, ("google.cloud.storage.exceptions", "google.cloud.storage.transfer_manager")
        )
        with translate_errors("read", place, READER):
            blobs = {str(blob.name): blob for blob in self._blobs(f"{place.name}/")}
            if f"{place.name}/{FILES}" not in blobs:  # no upload was completed
                return False
            listed = self._manifest(place, blobs)
            unfinished = path.with_name(f"{atomic_files.UNFINISHED}{path.name}")
            with atomic_files.explain_os_error("write", path, needed=sum(blob.size or 0 for blob in listed.values())):
                try:
                    manager.download_many_to_path(
                        self.bucket, list(listed), destination_directory=str(unfinished),
                        download_kwargs={"retry": self.retry}, **_transfer_options(manager, place),
                    )  # fmt: skip
                except (errors.DataCorruption, import_google("google.api_core.exceptions").NotFound):
                    raise _damaged(place) from None
                atomic_files.remove(path)
                unfinished.rename(path)
        self.local.add(key)
        return True

    def _manifest(self, place: Address, blobs: "Mapping[str, Blob]") -> "dict[str, Blob]":
        """Return the objects of a saved folder's files, by file name relative to the folder.

        Raises:
            Damaged: if an object is missing or differs from its entry in the list of files.
        """
        try:
            listed = json.loads(blobs[f"{place.name}/{FILES}"].download_as_bytes(retry=self.retry))
            files = {name: (blobs.get(f"{place.name}/{name}"), about) for name, about in listed.items()}
        except (ValueError, AttributeError):
            raise _damaged(place / FILES) from None
        for name, (blob, about) in files.items():
            if blob is None or _fingerprint(blob) != about:
                raise _damaged(place / name)
        return {name: blob for name, (blob, _) in files.items() if blob is not None}

    def local_path(self, key: str) -> Path:
        """Return the path of the local folder that `folder(key)` creates."""
        # The folder's name is unique for each root. It is short, because the length of a path is limited.
        root = f"{self.root.last or self.root.bucket}-{zlib.crc32(str(self.root).encode()):08x}"
        return process_folder() / root / key

    # Requests and caches.

    def _address(self, key: str) -> Address:
        for part in key.split("/"):
            check_name(part, "key part")
        return self.root / key

    def _key(self, name: str) -> str:
        """Return the key of an object with the given name."""
        return name.removeprefix(f"{self.root.name}/") if self.root.name else name

    def _blob(self, key: str) -> "Blob":
        return self.bucket.blob(self._address(key).name)

    def _blobs(self, start: str, delimiter: str | None = None) -> Any:
        return self.bucket.list_blobs(prefix=start, delimiter=delimiter, retry=self.retry)

    def _below(self, name: str) -> Mapping[str, Entry]:
        with translate_errors("list", self._address(name), READER):
            return self.listings.below(name)

    def list_keys(self, name: str) -> dict[str, Entry]:
        """Return all keys below a study's name, without hidden files and placeholder objects for folders."""
        blobs = {self._key(str(blob.name)): blob for blob in self._blobs(f"{self._address(name).name}/")}
        return {key: _entry_of(blob) for key, blob in blobs.items() if _is_visible(key)}

    def _names(self, folder: str, depth: int) -> Iterator[str]:
        """Yield the keys at most `depth` levels below a folder ("" for the root), without listing deeper levels."""
        if depth < 1:
            return
        top = f"{self.root.name}/" if self.root.name else ""
        with translate_errors("list", self.root / folder, READER):
            blobs = self._blobs(f"{top}{folder}", "/" if depth < sys.maxsize else None)
            keys = [self._key(str(blob.name)) for blob in blobs]
        yield from filter(_is_visible, keys)
        for deeper in sorted(blobs.prefixes):
            yield from self._names(self._key(deeper), depth - 1)

    def _entry(self, key: str) -> Entry | None:
        if "/" in key:
            self._address(key)
            return self._below(key.partition("/")[0]).get(key)
        with translate_errors("read", self._address(key), READER):
            blob = self.bucket.get_blob(self._address(key).name, retry=self.retry)
            if blob is None:
                self._require_bucket()
            return blob and _entry_of(blob)

    def _download_key(self, key: str) -> bytes:
        blob = self._blob(key)
        try:
            data = blob.download_as_bytes(retry=self.retry)
        except import_google("google.api_core.exceptions").NotFound:
            self._require_bucket()
            raise self._not_stored(key) from None
        self.contents.put(key, int(blob.generation or 0), data)
        return data

    def _read_ahead(self, key: str, known: Mapping[str, Entry]) -> None:
        """Cache all small objects in the key's folder, since a caller that reads one metrics segment reads them all."""
        folder = key.rpartition("/")[0]
        near = [other for other in known if other.rpartition("/")[0] == folder and known[other].size <= SMALL]
        new = [other for other in near if self._cached(other, known[other]) is None]
        if key in new and len(new) > 1:
            with translate_errors("read", self._address(folder), READER):
                self.run_concurrently(partial(self._download_if_stored, other) for other in new)

    def _download_if_stored(self, key: str) -> None:
        with suppress(NotStored):  # another process may have deleted the object
            self._download_key(key)

    def _require_bucket(self) -> None:
        """Raise the Google library's error if the bucket does not exist. If only an object is missing, do nothing."""
        next(iter(self.bucket.list_blobs(max_results=1, retry=self.retry)), None)

    def _remove(self, name: str) -> None:
        with suppress(import_google("google.api_core.exceptions").NotFound):
            self.bucket.delete_blob(name, retry=self.retry)

    def _cached(self, key: str, entry: Entry) -> bytes | None:
        return self.contents.cached.get((key, entry.generation))

    def _check_claim(self, key: str) -> None:
        """Raise `UserError` if this process has lost its claim on the key's study."""
        for claimed, lease in list(self.leases.items()):
            study, inside, _ = claimed.partition("/")
            if not inside or key.startswith(f"{study}/"):
                lease.check()

    def _not_stored(self, key: str) -> NotStored:
        return NotStored("nothing is stored here", file=str(self._address(key)))


def _transfer_options(manager: Any, place: Address) -> dict[str, Any]:
    """Return the options of uploads and downloads of a folder by Google's transfer manager."""
    threads = {"worker_type": manager.THREAD, "max_workers": THREADS}
    return {"blob_name_prefix": f"{place.name}/", "raise_exception": True, **threads}


def _damaged(place: Address) -> Damaged:
    return Damaged("this object is missing or differs from what was stored", file=str(place))


def _entry_of(blob: "Blob") -> Entry:
    updated = blob.updated.timestamp() if blob.updated else 0.0
    return Entry(int(blob.generation or 0), updated, int(blob.size or 0))


def _fingerprint(blob: "Blob") -> dict[str, Any]:
    return {"size": int(blob.size or 0), "crc32c": blob.crc32c}


def _is_visible(key: str) -> bool:
    return all(part and not part.startswith(".") for part in key.split("/"))
