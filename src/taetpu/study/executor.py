"""The executor that trains the packs of a study in this process.

`study.shards` has an executor for several independent processes, and `study.on_ray` has one for a Ray cluster.
"""

import os
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from math import inf

from taetpu.spec.resolved_study import Sources, Study
from taetpu.store.errors import CLAIM_PATIENCE, ClaimHeld
from taetpu.store.study import StudyFolder
from taetpu.study.matching import seconds_per_step
from taetpu.study.pack_store import PackStore
from taetpu.study.pack_training import Failure, missing_packs, train_packs
from taetpu.study.reuse import Replication
from taetpu.train.callbacks import Callback
from taetpu.train.device_capabilities import Capabilities
from taetpu.train.layout import Packing
from taetpu.train.pack_plan import Run

POLL_SECONDS = 2.0
"""Seconds between attempts to acquire a claim, and between checks for packs that other processes have finished."""


@dataclass
class Executor:
    """Trains packs in this process.

    Attributes:
        folder: the study's folder.
        live: whether this process can send runs to the study's trackers during training.
        place: the devices that train the packs, or None if the devices of this process train them.
    """

    folder: StudyFolder
    live: bool = True
    place: Capabilities | None = None

    @contextmanager
    def claim(self, callback: Callback) -> Iterator[None]:
        """Hold the study's claim. Only the claim's holder plans packs, analyses the study and writes the report.

        Raises:
            ClaimHeld: if another process runs the study or trains one of its packs, and does not end within the
                number of seconds in the environment variable `TAETPU_CLAIM_PATIENCE` (0 by default).
        """
        with waiting_claim(self.claim_now, callback, float(os.environ.get(CLAIM_PATIENCE) or 0)):
            yield

    @contextmanager
    def claim_now(self) -> Iterator[None]:
        """Hold the study's claim without waiting for it."""
        with self.folder.claim():
            refuse_shards(self.folder)
            yield

    def reserved_runs(self) -> Container[str]:
        """Return the IDs of runs that other processes may be training."""
        return ()

    def seconds_per_step(self, study: Study, arm: str, callback: Callback) -> float:
        """Return the measured seconds per train step of one run of an arm. Raises `UserError` on failure."""
        return seconds_per_step(study, arm, callback)

    def train(
        self, runs: Sequence[Run], sources: Sources, callback: Callback, packing: Packing, profile: int
    ) -> list[Failure]:
        """Train the runs that have no result, pack by pack. The caller holds the study's claim.

        Args:
            profile: the number of steps to trace in each pack.
        """
        packs = PackStore(self.folder, runs)
        packs.plan(sources, packing)
        queue = missing_packs(packs, callback, packing)
        return train_packs(packs, sources, callback, queue, profile)

    def replicate(
        self, sample: Sequence[Run], reused: Sequence[Run], study: Study, callback: Callback, packing: Packing
    ) -> list[str]:
        """Train a sample of the reused runs again; see `Replication`."""
        return Replication(study, self.folder, callback, packing).check(sample, reused)


@contextmanager
def waiting_claim(
    claim: Callable[[], AbstractContextManager[None]], callback: Callback, seconds: float = inf
) -> Iterator[None]:
    """Hold a claim during a `with` block, after waiting up to `seconds` seconds for another process to release it.

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
                    callback.on_wait(reason)
                time.sleep(POLL_SECONDS)
        if reason:
            callback.on_wait("")
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
