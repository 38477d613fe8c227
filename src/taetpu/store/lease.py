"""A claim stored as an object in a bucket. Its holder renews the claim; a claim that is no longer renewed expires.

Cloud Storage has preconditions instead of locks: an object is created only if it does not exist yet, and replaced only
if no other process has replaced it. A process that requests the lease changes the object's metadata. The
response contains the creation time of the content and the time of the metadata change. Their difference is the age of
the lease, measured by the server's clock alone.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from taetpu.core.errors import UserError
from taetpu.core.tempdir import remove_abandoned
from taetpu.store.errors import ClaimHeld, format_claim, format_holder
from taetpu.store.gcs_client import Address, import_google, translate_errors

if TYPE_CHECKING:
    from google.cloud.storage import Blob

LEASE_SECONDS = 60
"""Lifetime in seconds: a lease that was written longer ago, by the server's clock, has expired."""
RENEW_SECONDS = 15
"""Seconds between two renewals."""
CHECK_SECONDS = 45
"""Maximum age of the lease for a write, in seconds by the holder's clock. An older lease is first renewed."""


class Lease:
    """A claim on an object in a bucket.

    Args:
        new_blob: a function that creates the object's blob for one request.
        place: the object's address, for error messages.
        retry: the retry policy for requests.
        about: the description of this process that `describe_process` returned.
    """

    def __init__(self, new_blob: "Callable[[], Blob]", place: Address, retry: Any, about: dict[str, str | int]):
        self.new_blob, self.place, self.retry = new_blob, place, retry
        self.token = secrets.token_hex(8)
        self.content = json.dumps({**about, "token": self.token}).encode()
        self.generation, self.renewed = 0, 0.0
        self.lost = ""
        self.renewing = threading.Lock()
        self.released = threading.Event()

    @contextmanager
    def hold(self) -> Iterator["Lease"]:
        """Hold the lease until the block ends or this process dies.

        Raises:
            ClaimHeld: if another process holds the lease. The message describes that process.
        """
        with translate_errors("claim", self.place):
            self.acquire()
        remove_abandoned()
        renewal = threading.Thread(target=self._keep_renewing, name="taetpu-lease", daemon=True)
        renewal.start()
        try:
            yield self
        finally:
            self.released.set()
            renewal.join()
            with suppress(Exception):  # a lease that cannot be deleted expires
                self.new_blob().delete(if_generation_match=self.generation, retry=self.retry)

    def check(self) -> None:
        """Renew the lease if its last renewal is more than `CHECK_SECONDS` old. Call this method before every write.

        Raises:
            UserError: if this process has lost the lease, for example after a long loss of connection. Another process
                may be writing.
        """
        if awake_seconds() - self.renewed > CHECK_SECONDS:
            with translate_errors("renew the claim", self.place):
                self.renew(self.retry)
        if self.lost:
            remedy = "Wait for the current holder, then run the same command again. Nothing was written after the loss."
            raise UserError(f"this process has lost its claim: {self.lost}", file=str(self.place), remedy=remedy)

    def acquire(self) -> None:
        """Take the lease if it is free or expired.

        Raises:
            ClaimHeld: if another process holds the lease.
        """
        errors = import_google("google.api_core.exceptions")
        for _ in range(3):  # the holder may release the lease between two requests
            if self._write(0, self.retry):
                return
            with suppress(errors.NotFound):
                blob, holder = self._read_holder()
                if holder.get("token") == self.token:  # an earlier request succeeded, but its response was lost
                    self.generation = int(blob.generation or 0)
                    return
                age = self._age(blob)
                if age is None or age < LEASE_SECONDS:
                    raise self._claim_held(holder, age)
                if self._write(int(blob.generation or 0), self.retry):
                    return
        raise self._claim_held({}, None)

    def _write(self, generation: int, retry: Any) -> bool:
        """Write the lease if the object still has the given generation, and return whether the lease was written.

        With generation 0, the lease is written if the object does not exist.
        """
        blob, started = self.new_blob(), awake_seconds()
        try:
            blob.upload_from_string(
                self.content, "application/json", if_generation_match=generation, retry=retry, timeout=RENEW_SECONDS
            )
        except import_google("google.api_core.exceptions").PreconditionFailed:
            return False
        self.generation, self.renewed = int(blob.generation or 0), started
        return True

    def _read_holder(self) -> "tuple[Blob, dict[str, Any]]":
        """Return the blob (which has its generation) and the holder's description, which is the blob's content.

        If the content is not a JSON object, the description is empty.
        """
        blob = self.new_blob()
        data = blob.download_as_bytes(retry=self.retry)
        with suppress(ValueError):
            if isinstance(holder := json.loads(data), dict):
                return blob, holder
        return blob, {}

    def _age(self, blob: "Blob") -> float | None:
        """Return the seconds since the lease was last written, by the server's clock.

        The result is None if the holder has renewed the lease since the blob was read.
        """
        blob.metadata = {"asked": self.token}
        try:
            blob.patch(if_generation_match=blob.generation, retry=self.retry)
        except import_google("google.api_core.exceptions").PreconditionFailed:
            return None
        assert blob.updated is not None
        assert blob.time_created is not None
        return (blob.updated - blob.time_created).total_seconds()

    def _keep_renewing(self) -> None:
        """Renew the lease periodically. Errors are ignored, because the next renewal or `check` tries again."""
        while not self.released.wait(RENEW_SECONDS) and not self.lost:
            with suppress(Exception):
                self.renew(None)

    def renew(self, retry: Any) -> None:
        """Renew the lease. If another process has taken or deleted the lease, store the reason in `lost`."""
        with self.renewing:
            if self.lost or self.released.is_set() or self._write(self.generation, retry):
                return
            try:
                blob, holder = self._read_holder()
            except import_google("google.api_core.exceptions").NotFound:
                self.lost = "another program deleted its lease"
                return
            if holder.get("token") == self.token:  # an earlier renewal succeeded, but its response was lost
                self.generation, self.renewed = int(blob.generation or 0), awake_seconds()
            else:
                self.lost = f"no renewal for {LEASE_SECONDS} s, and {format_holder(holder)} has taken the claim over"

    def _claim_held(self, holder: dict[str, Any], age: float | None) -> ClaimHeld:
        renewed = "" if age is None else f", last renewed {max(age, 0):.0f} s ago"
        left = LEASE_SECONDS if age is None else max(LEASE_SECONDS - age, 1)
        remedy = (
            "Wait for the other process to end, or stop it, and run the same command again. If the process was killed, "
            f"its claim expires in {left:.0f} s. Or use another --root."
        )
        place = str(self.place)
        return ClaimHeld(format_claim(place, holder) + renewed, file=place, remedy=remedy)


def awake_seconds() -> float:
    """Return the time of a monotonic clock in seconds. On Linux, the clock also advances during sleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
