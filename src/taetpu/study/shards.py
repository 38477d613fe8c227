"""Training a study in several processes, each of which trains a share of the packs: `taetpu run STUDY --shard I/N`.

Any scheduler that gives each process a rank can run a study this way. The processes communicate only through the
study's folder (on a shared disk, or in a bucket). A process must hold the study's claim to plan packs and to end a
stage (analysis, report, tuned values and seeds of the next interim analysis). While a process trains a pack, it holds
the claim of this pack. When a process ends, its claims are released. Therefore no pack is trained twice or lost.

The first process that acquires the study's claim plans the packs. The results of a run depend on its pack, not on the
process that trains it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from taetpu.spec.resolved_study import Sources, Study
from taetpu.study.claiming import waiting_claim
from taetpu.study.executor import Executor
from taetpu.study.outcome import Failure
from taetpu.study.pack_store import PackStore, stored_plans
from taetpu.study.pack_training import missing_packs, train_packs
from taetpu.study.shares import Shard, ShareLoop
from taetpu.train.callbacks import Callback
from taetpu.train.layout import Packing
from taetpu.train.pack_plan import Pack, Run


@dataclass
class ShardExecutor(Executor):
    """Trains a share of the packs in this process. Independent processes train the other shares.

    Attributes:
        staged: whether more packs may be planned once all current packs are done.
        wait: whether to wait, if `staged` is set, for packs that other processes train. If False, the process ends with
            `WAITING_EXIT_CODE` instead.
    """

    live: bool = False
    shard: Shard = field(default_factory=lambda: Shard(0, 1))
    staged: bool = False
    wait: bool = True
    study_claim: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def ready(self, study: Study, packing: Packing, profile: int) -> Iterator[None]:
        """Start nothing: this process trains its packs itself."""
        yield

    @contextmanager
    def claim(self, callback: Callback) -> Iterator[None]:
        """Wait for the study's claim and hold it. `train` releases it while packs are trained."""
        self.acquire(callback)
        with self.study_claim:
            yield

    def acquire(self, callback: Callback) -> None:
        """Wait for the study's claim."""
        self.study_claim.enter_context(waiting_claim(self.folder.claim, callback.on_wait))

    def reserved_runs(self) -> set[str]:
        """Return the IDs of all planned runs. Other processes may be training these runs."""
        return {run_id for plan in stored_plans(self.folder) for _, _, run_id in plan.runs}

    def train(
        self, runs: Sequence[Run], sources: Sources, callback: Callback, packing: Packing, profile: int
    ) -> list[Failure]:
        """Train this share and packs that other processes abandoned (see `ShareLoop`). Return when all are done.

        Raises:
            SharesLeft: if the remaining packs are left to other processes and this process does not wait for them.
        """
        packs = PackStore(self.folder, runs)
        packs.plan(sources, packing)
        if not missing_packs(packs, callback, packing):
            return []
        self.study_claim.close()
        loop = ShareLoop(self.folder, self.shard, self.staged, self.wait, callback.on_wait, self.has_begun)
        held = set[str]()

        def train(todo: list[Pack]) -> tuple[list[Failure], set[str]]:
            held.clear()
            claim = partial(self.claim, callback)
            return train_packs(packs, sources, callback, todo, profile, claim, held), set(held)

        failed = loop.run(packs.missing_packs, self.own, train)
        callback.on_wait("")
        began = time.monotonic()
        self.acquire(callback)
        self.folder.add_wait(f"shard-{self.shard.index}-of-{self.shard.count}", loop.waited + time.monotonic() - began)
        return failed

    def own(self, packs: Sequence[Pack]) -> list[Pack]:
        """Return the given packs that belong to this share."""
        chosen = {plan.id for plan in self.shard.select(stored_plans(self.folder))}
        return [pack for pack in packs if pack.id in chosen]

    def has_begun(self, pack: Pack) -> bool:
        """Return whether a process has begun to train a pack."""
        return pack.id in self.folder.claimed_packs() or bool(self.folder.pack(pack.id).steps())
