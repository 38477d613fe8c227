"""The executor that trains the packs of a study in this process.

`study.shards` has an executor for several independent processes, and `study.on_ray` has one for a Ray cluster.
"""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from taetpu.spec.resolved_study import Sources, Study
from taetpu.store.study import StudyFolder
from taetpu.study.claiming import claim_patience, refuse_shards, waiting_claim
from taetpu.study.device_threads import DeviceThreads
from taetpu.study.matching import seconds_per_step
from taetpu.study.pack_store import PackStore, resolve_runs
from taetpu.study.pack_training import Failure, missing_packs, train_packs
from taetpu.study.reuse import Replication
from taetpu.study.side_by_side import expected_workers, fits_beside, in_threads, train_beside
from taetpu.study.workers import Workers
from taetpu.train.callbacks import Callback
from taetpu.train.device_capabilities import Capabilities
from taetpu.train.layout import Packing
from taetpu.train.pack_plan import Run


@dataclass
class Executor:
    """Trains packs in this process.

    Attributes:
        folder: the study's folder.
        live: whether this process can send runs to the study's trackers during training.
        place: the devices that train the packs, or None if the devices of this process train them.
        workers: the processes that train packs side by side.
    """

    folder: StudyFolder
    live: bool = True
    place: Capabilities | None = None
    workers: Workers = field(default_factory=Workers)

    @contextmanager
    def ready(self, study: Study, packing: Packing, profile: int) -> Iterator[None]:
        """Start the processes that will train packs side by side, while the study is still being checked."""
        try:
            if not profile and not in_threads():
                missing = [run for run in resolve_runs(study, self.folder) if not run.done]
                self.workers.reserve(expected_workers(missing, study.sources, packing))
            yield
        finally:
            self.workers.close()

    @contextmanager
    def claim(self, callback: Callback) -> Iterator[None]:
        """Hold the study's claim. Only the claim's holder plans packs, analyses the study and writes the report.

        Raises:
            ClaimHeld: if another process runs the study or trains one of its packs, and does not end within the
                number of seconds in the environment variable `TAETPU_CLAIM_PATIENCE` (0 by default).
        """
        with waiting_claim(self.claim_now, callback.on_wait, claim_patience()):
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
        self.workers.close()  # they would take the time of cores
        return seconds_per_step(study, arm, callback)

    def train(
        self, runs: Sequence[Run], sources: Sources, callback: Callback, packing: Packing, profile: int
    ) -> list[Failure]:
        """Train the runs that have no result. The caller holds the study's claim.

        Packs that are planned for some of the devices are trained side by side (see `study.side_by_side`).

        Args:
            profile: the number of steps to trace in each pack.
        """
        packs = PackStore(self.folder, runs)
        packs.plan(sources, packing, beside=not profile)
        queue = missing_packs(packs, callback, packing)
        if not profile and fits_beside(queue):
            workers = DeviceThreads(self.folder, sources) if in_threads() else self.workers
            return train_beside(packs, sources, callback, queue, workers)
        self.workers.close()
        return train_packs(packs, sources, callback, queue, profile)

    def replicate(
        self, sample: Sequence[Run], reused: Sequence[Run], study: Study, callback: Callback, packing: Packing
    ) -> list[str]:
        """Train a sample of the reused runs again; see `Replication`."""
        return Replication(study, self.folder, callback, packing).check(sample, reused)
