"""Training a study in several processes, each of which trains a share of the packs: `taetpu run STUDY --shard I/N`.

Any scheduler that gives each process a rank can run a study this way. The processes communicate only through the
study's folder (on a shared disk, or in a bucket). A process must hold the study's claim to plan packs and to end a
stage (analysis, report, tuned values and seeds of the next interim analysis). While a process trains a pack, it holds
the claim of this pack. When a process ends, its claims are released. Therefore no pack is trained twice or lost.

The first process that acquires the study's claim plans the packs. The results of a run depend on its pack, not on the
process that trains it.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from taetpu.core.errors import UserError
from taetpu.spec.resolved_study import Sources
from taetpu.study.executor import POLL_SECONDS, Executor, waiting_claim
from taetpu.study.pack_store import PackStore, stored_plans
from taetpu.study.pack_training import Failure, is_free, missing_packs, train_packs
from taetpu.train.callbacks import Callback
from taetpu.train.layout import Packing
from taetpu.train.pack_plan import Pack, PackPlan, Run

ABANDONED_SECONDS = 300.0
"""Seconds that a process waits, in a study with stages, before it trains packs that no process has begun to train."""
MOST_SHARDS = 100_000
WAITING_EXIT_CODE = 75
"""The exit code EX_TEMPFAIL of sysexits.h. It means that the command must be run again later."""


class SharesLeft(Exception):
    """Packs of other shards are left to train. `exit_code` is 0 unless the command must be repeated."""

    def __init__(self, message: str, exit_code: int = 0):
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Shard:
    """Share `index` (from 0) of `count`."""

    index: int
    count: int

    def select(self, plans: Sequence[PackPlan]) -> list[PackPlan]:
        """Return the packs of this share."""
        return [plan for number, plan in enumerate(plans) if number % self.count == self.index]


def parse_shard(text: str) -> Shard:
    """Parse `I/N`.

    Raises:
        UserError: if the text has another form, if I is not less than N, or if N is too large.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
    index, count = map(int, match.groups()) if match else (0, 0)
    if not 0 <= index < count <= MOST_SHARDS:
        remedy = f"Use I/N, such as 0/4, where I is less than N, and N is at most {MOST_SHARDS:,}."
        raise UserError(f"invalid shard {text!r}", path=("--shard",), remedy=remedy)
    return Shard(index, count)


@dataclass
class ShardExecutor(Executor):
    """Trains a share of the packs in this process. Independent processes train the other shares.

    Attributes:
        staged: whether more packs may be planned once all current packs are done.
        wait: whether to wait, if `staged` is set, for packs that other processes train. If False, the process ends with
            `WAITING_EXIT_CODE` instead.
    """

    live: bool = False
    shard: Shard = Shard(0, 1)
    staged: bool = False
    wait: bool = True
    study_claim: ExitStack = field(default_factory=ExitStack)
    waited_for: int = 0

    @contextmanager
    def claim(self, callback: Callback) -> Iterator[None]:
        """Wait for the study's claim and hold it. `train` releases it while packs are trained."""
        self.acquire(callback)
        with self.study_claim:
            yield

    def acquire(self, callback: Callback) -> None:
        """Wait for the study's claim."""
        self.study_claim.enter_context(waiting_claim(self.folder.claim, callback))

    def reserved_runs(self) -> set[str]:
        """Return the IDs of all planned runs. Other processes may be training these runs."""
        return {run_id for plan in stored_plans(self.folder) for _, _, run_id in plan.runs}

    def train(
        self, runs: Sequence[Run], sources: Sources, callback: Callback, packing: Packing, profile: int
    ) -> list[Failure]:
        """Train this share and the packs that other processes abandoned. Return when all packs are done.

        In a study with stages, this process also trains packs that no process begins within `ABANDONED_SECONDS`.
        Otherwise this process would wait forever for a process that is never started.

        Raises:
            SharesLeft: if the remaining packs are left to other processes and this process does not wait for them.
        """
        packs = PackStore(self.folder, runs)
        packs.plan(sources, packing)
        missing = missing_packs(packs, callback, packing)
        if not missing:
            return []
        helps = not self.own(missing)  # this share is done or empty, so this process trains packs of other shares
        tried, failed = set[str](), list[Failure]()
        self.study_claim.close()
        idle_since = time.monotonic()
        while missing := packs.missing_packs():
            held = set[str]()
            todo = [pack for pack in self.own(missing) if pack.id not in tried]
            others = [] if todo else [pack for pack in missing if pack.id not in tried]
            todo = [pack for pack in todo or others if is_free(self.folder, pack.id)]
            unbegun = 0
            if others and not helps and not (self.staged and time.monotonic() - idle_since >= ABANDONED_SECONDS):
                begun = [pack for pack in todo if self.has_begun(pack)]
                unbegun, todo = len(todo) - len(begun), begun
            if todo:
                failed += train_packs(packs, sources, callback, todo, profile, partial(self.claim, callback), held)
                tried |= {pack.id for pack in todo} - held
                idle_since = time.monotonic()
            if len(held) == len(todo):  # other processes train every pack of `todo`, which may be empty
                if failed:
                    break
                self.pause(len(missing), unbegun, callback)
        callback.on_wait("")
        self.acquire(callback)
        return failed

    def own(self, packs: Sequence[Pack]) -> list[Pack]:
        """Return the given packs that belong to this share."""
        chosen = {plan.id for plan in self.shard.select(stored_plans(self.folder))}
        return [pack for pack in packs if pack.id in chosen]

    def has_begun(self, pack: Pack) -> bool:
        """Return whether a process has begun to train a pack."""
        return pack.id in self.folder.claimed_packs() or bool(self.folder.pack(pack.id).steps())

    def pause(self, left: int, unbegun: int, callback: Callback) -> None:
        """Wait for other processes, or end this one.

        Args:
            left: the number of packs that are not done.
            unbegun: the number of packs that no process has begun to train. This process will train them later.
            callback: receives the reason for waiting.

        Raises:
            SharesLeft: if no stage follows, or if other processes train all packs and `wait` is not set.
        """
        packs = "1 pack" if left == 1 else f"{left} packs"
        if self.staged and (self.wait or unbegun):
            if left != self.waited_for:
                self.waited_for = left
                callback.on_wait(f"{packs} of other shards")
            time.sleep(POLL_SECONDS)
            return
        done = f"shard {self.shard.index}/{self.shard.count} has nothing to train now; left to other processes: {packs}"
        if self.staged:
            raise SharesLeft(
                f"{done}. More packs will be planned. Run the same command again later.", WAITING_EXIT_CODE
            )
        remedy = "The last shard to finish writes the report. You can also run this command again to write it."
        raise SharesLeft(f"{done}. {remedy}")
