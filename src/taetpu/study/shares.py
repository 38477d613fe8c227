"""The share of a study that one of several independent processes has: `--shard I/N`."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from taetpu.core.errors import UserError
from taetpu.store.study import StudyFolder
from taetpu.study.claiming import POLL_SECONDS, is_free
from taetpu.study.outcome import Failure

T = TypeVar("T")


class Work(Protocol):
    """A pack, or a run of a program, with the ID under which it is claimed."""

    @property
    def id(self) -> str:
        """The ID."""
        ...


W = TypeVar("W", bound=Work)
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

    def select(self, plans: Sequence[T]) -> list[T]:
        """Return the packs, or the runs, of this share."""
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
class ShareLoop:
    """Trains a share, then packs that other processes abandoned, until all packs are done or left to others.

    In a study with stages, packs that no process begins within `ABANDONED_SECONDS` are trained too. Otherwise this
    process would wait forever for a process that is never started.

    Attributes:
        folder: the study's folder, whose claim this process has released.
        shard: the share.
        staged: whether more packs may be planned once all current packs are done.
        wait: whether to wait, if `staged` is set, for packs that other processes train.
        on_wait: called with the reason for waiting.
        has_begun: returns whether a process has begun to train a pack.
        what: the noun for a pack.
    """

    folder: StudyFolder
    shard: Shard
    staged: bool
    wait: bool
    on_wait: Callable[[str], None]
    has_begun: Callable[..., bool]
    what: str = "pack"
    waited_for: int = 0
    waited: float = 0.0
    """The seconds that this process waited for other processes."""

    def run(
        self,
        find_missing: Callable[[], list[W]],
        select: Callable[[Sequence[W]], list[W]],
        train: Callable[[list[W]], tuple[list[Failure], set[str]]],
    ) -> list[Failure]:
        """Train packs, and return the failures.

        Args:
            find_missing: returns the packs that are not done.
            select: returns the packs of this share among the given ones.
            train: trains packs, and returns the failures and the IDs of packs that other processes train.

        Raises:
            SharesLeft: if the remaining packs are left to other processes and this process does not wait for them.
        """
        helps = not select(find_missing())  # this share is done or empty, so this process trains packs of other shares
        tried, failed = set[str](), list[Failure]()
        idle_since = time.monotonic()
        while missing := find_missing():
            held = set[str]()
            todo = [pack for pack in select(missing) if pack.id not in tried]
            others = [] if todo else [pack for pack in missing if pack.id not in tried]
            todo = [pack for pack in todo or others if is_free(self.folder, pack.id)]
            unbegun = 0
            if others and not helps and not (self.staged and time.monotonic() - idle_since >= ABANDONED_SECONDS):
                begun = [pack for pack in todo if self.has_begun(pack)]
                unbegun, todo = len(todo) - len(begun), begun
            if todo:
                failures, held = train(todo)
                failed += failures
                tried |= {pack.id for pack in todo} - held
                idle_since = time.monotonic()
            if len(held) == len(todo):  # other processes train every pack of `todo`, which may be empty
                if failed:
                    break
                self.pause(len(missing), unbegun)
        return failed

    def pause(self, left: int, unbegun: int) -> None:
        """Wait for other processes, or end this one.

        Args:
            left: the number of packs that are not done.
            unbegun: the number of packs that no process has begun to train. This process will train them later.

        Raises:
            SharesLeft: if no stage follows, or if other processes train all packs and `wait` is not set.
        """
        packs = f"{left} {self.what}{'s' * (left != 1)}"
        if self.staged and (self.wait or unbegun):
            if left != self.waited_for:
                self.waited_for = left
                self.on_wait(f"{packs} of other shards")
            time.sleep(POLL_SECONDS)
            self.waited += POLL_SECONDS
            return
        verb = "train" if self.what == "pack" else "run"
        done = (
            f"shard {self.shard.index}/{self.shard.count} has nothing to {verb} now; left to other processes: {packs}"
        )
        if self.staged:
            problem = f"{done}. More {self.what}s will be planned. Run the same command again later."
            raise SharesLeft(problem, WAITING_EXIT_CODE)
        remedy = "The last shard to finish writes the report. You can also run this command again to write it."
        raise SharesLeft(f"{done}. {remedy}")
