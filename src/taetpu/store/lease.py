"""A claim on an object of a bucket: held while it is renewed, and free again some time after its holder died.

There is no lock in Cloud Storage, but there are preconditions: an object is created only where there is none, and
replaced only where nobody else has replaced it. How old a lease is, the server's own clock tells: a challenger changes
a note on the object, and the answer says when its content was written and when that note was, both by that clock.
"""

import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.core.errors import UserError
from taetpu.core.tempdir import is_abandoned, process_lock, remove_abandoned
from taetpu.store.gcs_client import LEASE_SECONDS, Address, import_google, translate_errors
from taetpu.store.names import ClaimHeld

if TYPE_CHECKING:
    from google.cloud.storage import Blob

RENEW_SECONDS = 15
"""Seconds between two renewals."""
POLL_SECONDS = 5
"""Seconds between two questions of who waits for a claim."""
CHECK_SECONDS = 45
"""Seconds without a renewal, by its own clock, after which a holder writes nothing before it has asked."""
CLAIM_PATIENCE = "TAETPU_CLAIM_PATIENCE"
"""In the environment: seconds to wait for who holds a claim, where that is likely to be a machine that is gone."""
BOOT = Path("/proc/sys/kernel/random/boot_id")


class Lease:
    """One claim. `made` gives the object's blob, anew for each request."""

    def __init__(self, made: "Callable[[], Blob]", place: Address, retry: Any, about: dict[str, str | int]):
        self.made, self.place, self.retry = made, place, retry
        self.token = secrets.token_hex(8)
        self.content = json.dumps({**about, "token": self.token, "lock": str(process_lock()), "boot": _boot()}).encode()
        self.generation, self.asked = 0, 0.0
        self.lost = ""
        self.turn = threading.Lock()
        self.over = threading.Event()

    @contextmanager
    def hold(self) -> Iterator["Lease"]:
        """Hold it until the block is left or this process dies.

        Raises:
            UserError: another process holds it; the message says which.
        """
        with translate_errors("claim", self.place):
            self._take()
        remove_abandoned()
        renewal = threading.Thread(target=self._keep, name="taetpu-lease", daemon=True)
        renewal.start()
        try:
            yield self
        finally:
            self.over.set()
            renewal.join()
            with suppress(Exception):  # it ends by itself
                self.made().delete(if_generation_match=self.generation, retry=self.retry)

    def check(self) -> None:
        """Whether it is still ours, asked where that is in doubt; to be called before anything is written.

        Raises:
            UserError: it is not: this process was cut off for so long that another one may be at work.
        """
        if _now() - self.asked > CHECK_SECONDS:
            with translate_errors("renew the claim", self.place):
                self._renew(self.retry)
        if self.lost:
            remedy = "nothing was written since; wait for who holds it now, then give the same command again"
            raise UserError(f"this process has lost its claim: {self.lost}", file=str(self.place), remedy=remedy)

    def _take(self) -> None:
        until, told = time.monotonic() + float(os.environ.get(CLAIM_PATIENCE) or 0), False
        while True:
            try:
                return self._try()
            except ClaimHeld as held:
                if time.monotonic() >= until:
                    raise
                if not told:
                    sys.stderr.write(f"waiting for a claim: {held.problem}\n")
                    told = True
                time.sleep(POLL_SECONDS)

    def _try(self) -> None:
        """Take it now, or not.

        Raises:
            ClaimHeld: another process holds it.
        """
        refused = import_google("google.api_core.exceptions")
        for _ in range(3):  # it may be let go while it is looked at
            if self._wrote(0, self.retry):
                return
            with suppress(refused.NotFound):
                blob, holder = self._holder()
                if holder.get("token") == self.token:  # it was granted, and the answer was lost
                    self.generation = int(blob.generation or 0)
                    return
                age = self._age(blob)
                gone = holder.get("boot") == _boot() != "" and is_abandoned(Path(holder.get("lock", "/")))
                if not gone and (age is None or age < LEASE_SECONDS):
                    raise self._held_by(holder, age)
                if self._wrote(int(blob.generation or 0), self.retry):
                    return
        raise self._held_by({}, None)

    def _wrote(self, generation: int, retry: Any) -> bool:
        """Write the lease if the object is still of this generation, 0 for none."""
        blob, began = self.made(), _now()
        try:
            blob.upload_from_string(
                self.content, "application/json", if_generation_match=generation, retry=retry, timeout=RENEW_SECONDS
            )
        except import_google("google.api_core.exceptions").PreconditionFailed:
            return False
        self.generation, self.asked = int(blob.generation or 0), began
        return True

    def _holder(self) -> "tuple[Blob, dict[str, Any]]":
        """Who has written it last: the blob with its generation, and what it says."""
        blob = self.made()
        data = blob.download_as_bytes(retry=self.retry)
        with suppress(ValueError):
            if isinstance(found := json.loads(data), dict):
                return blob, found
        return blob, {}

    def _age(self, blob: "Blob") -> float | None:
        """Seconds since it was written, by the server's clock; None where it was written again meanwhile."""
        blob.metadata = {"asked": self.token}
        try:
            blob.patch(if_generation_match=blob.generation, retry=self.retry)
        except import_google("google.api_core.exceptions").PreconditionFailed:
            return None
        assert blob.updated is not None
        assert blob.time_created is not None
        return (blob.updated - blob.time_created).total_seconds()

    def _keep(self) -> None:
        """Renew it from time to time. Failures are met again by the next renewal, or by `check`."""
        while not self.over.wait(RENEW_SECONDS) and not self.lost:
            with suppress(Exception):
                self._renew(None)

    def _renew(self, retry: Any) -> None:
        with self.turn:
            if self.lost or self.over.is_set() or self._wrote(self.generation, retry):
                return
            try:
                blob, holder = self._holder()
            except import_google("google.api_core.exceptions").NotFound:
                self.lost = "the lock was deleted from outside"
                return
            if holder.get("token") == self.token:  # it was renewed, and the answer was lost
                self.generation, self.asked = int(blob.generation or 0), _now()
            else:
                self.lost = f"it was not renewed for {LEASE_SECONDS} s, and {format_holder(holder)} has taken it over"

    def _held_by(self, holder: dict[str, Any], age: float | None) -> ClaimHeld:
        seen = "" if age is None else f", last heard of {max(age, 0):.0f} s ago"
        left = LEASE_SECONDS if age is None else max(LEASE_SECONDS - age, 1)
        remedy = (
            f"wait for it or stop it, then run the same command again (if it was killed, in {left:.0f} s); "
            "or use another --root"
        )
        return ClaimHeld(f"the study is held by {format_holder(holder)}{seen}", file=str(self.place), remedy=remedy)


def format_holder(holder: dict[str, Any]) -> str:
    """Who holds a claim, by what it wrote there."""
    try:
        return f"pid {holder['pid']} on {holder['host']} (user {holder['user']}) since {holder['since']}"
    except LookupError:
        return "a process that has just started"


def _boot() -> str:
    """Names the time since this machine was started, and so its processes; empty where there is no such name."""
    with suppress(OSError):
        return BOOT.read_text().strip()
    return ""


def _now() -> float:
    """Seconds by a clock that also runs while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
