"""Waiting for the claim of a study or of a pack, which another process holds."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import inf

from taetpu.store.errors import CLAIM_PATIENCE, ClaimHeld
from taetpu.store.study import StudyFolder

POLL_SECONDS = 2.0
"""Seconds between attempts to acquire a claim, and between checks for packs that other processes have finished."""


def claim_patience() -> float:
    """Return the seconds that a command waits for another process: `TAETPU_CLAIM_PATIENCE`, 0 by default."""
    return float(os.environ.get(CLAIM_PATIENCE) or 0)


@contextmanager
def waiting_claim(
    claim: Callable[[], AbstractContextManager[None]], on_wait: Callable[[str], None], seconds: float = inf
) -> Iterator[None]:
    """Hold a claim during a `with` block, after waiting up to `seconds` seconds for another process to release it.

    Args:
        claim: acquires the claim.
        on_wait: called with the reason for waiting, and with "" when the wait is over.
        seconds: the longest wait.

    Raises:
        ClaimHeld: if another process still holds the claim after `seconds` seconds.
    """
    until, reason = time.monotonic() + seconds, ""
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(claim())
                break
            except ClaimHeld as other:
                if time.monotonic() > until:
                    raise
                if not reason:
                    reason = other.problem
                    on_wait(reason)
                time.sleep(POLL_SECONDS)
        if reason:
            on_wait("")
        yield


def refuse_shards(folder: StudyFolder) -> None:
    """Raise `ClaimHeld` if other processes train packs of the study."""
    for pack in folder.claimed_packs():
        try:
            with folder.claim_pack(pack):
                pass
        except ClaimHeld as other:
            problem = f"another process is training pack {pack}: {other.problem}"
            remedy = "Wait for the other process to end, or stop it, or run this command with --shard I/N."
            raise ClaimHeld(problem, file=other.file, remedy=remedy) from None


def is_free(folder: StudyFolder, pack_id: str) -> bool:
    """Return whether no process trains a pack."""
    if pack_id not in folder.claimed_packs():
        return True
    try:
        with folder.claim_pack(pack_id):
            return True
    except ClaimHeld:
        return False
