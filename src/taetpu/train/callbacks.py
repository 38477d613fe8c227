"""Who is told how training gets on. The base says nothing; `study.progress` shows it to a person."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from taetpu.spec.resolved_study import RunSpec
from taetpu.train.forecast import Forecast
from taetpu.train.pack_plan import PackPlan
from taetpu.train.usage import Usage


class Watcher:
    """Hears of everything that happens while a study trains, in the order of these methods."""

    def compared(self, primary: str) -> None:
        """A study is run whose arms are compared by the metric `primary`."""

    def timing(self, arm: str) -> None:
        """The steps of an arm are timed, to match arms by time."""

    def kept(self, plan: PackPlan) -> None:
        """A pack goes on as an earlier process planned it, which is not how packs are asked for now."""

    def damaged(self, where: str, problem: str, moved: str) -> None:
        """A stored file is not what was written, and is made again.

        Args:
            moved: where it can be opened now; empty for what has no content any more.
        """

    def expected(self, forecast: Forecast | None) -> None:
        """How long training will take, as far as that is known before its first step."""

    def begun(self, run_steps: int) -> None:
        """Training begins; `run_steps` optimizer steps over all runs."""

    def pack(self, number: int, of: int, runs: Sequence[RunSpec]) -> None:
        """Pack `number` (from 1) begins; its first dispatch compiles the program."""

    def resumed(self, step: int) -> None:
        """The pack goes on from `step`, reached by an earlier process; 0 when it is new."""

    def advanced(self, step: int, loss: np.ndarray) -> None:
        """The runs of the pack have taken `step` steps; `loss` holds the last training loss of each."""

    def used(self, usage: Usage) -> None:
        """How well the pack's devices are used, as of the dispatch that `advanced` told of."""

    def looked(self, step: int) -> None:
        """The metrics that are due of the next update were measured."""

    def evaluated(self, step: int, run: RunSpec, values: dict[str, float]) -> None:
        """A run was evaluated on the sample of the validation split; after the last step on the whole split, too."""

    def sampled(self, step: int, run: RunSpec, text: str) -> None:
        """A text that a run's model made."""

    def stored(self, step: int) -> None:
        """All that was measured up to `step` is on the disk, and the state where it is kept."""

    def added_seeds(self, seeds: Sequence[int]) -> None:
        """An arm is inconclusive, and the study goes on to its next planned look, with these seeds."""

    def audited(self, runs: Sequence[RunSpec]) -> None:
        """Runs that were reused from elsewhere are now trained again, to prove them."""

    def halved(self, runs: Sequence[RunSpec], plans: Sequence[PackPlan], error: Exception | None) -> None:
        """A pack needed more memory than there is, and is trained as these from the start; it may have been killed."""

    def begun_otherwise(self, plan: PackPlan, before: dict[str, Any], now: dict[str, Any]) -> None:
        """A pack goes on with other flags of XLA than it was begun with: its numbers may be other bits from here."""

    def profiled(self, where: str, summary: dict[str, Any] | None, problem: str) -> None:
        """The pack was profiled into a folder; the summary is None where it could not be, and why is the problem."""

    def trained_elsewhere(self, number: int, of: int, runs: Sequence[RunSpec], run_steps: int) -> None:
        """Pack `number` (from 1) of those trained on other machines has ended, with `run_steps` steps of all runs."""

    def waiting(self, reason: str) -> None:
        """Training waits for other processes; "" when it goes on."""

    def finished(self, runs: Sequence[RunSpec]) -> None:
        """The runs of a pack are done, their results stored."""

    def failed(self, runs: Sequence[RunSpec], error: Exception) -> None:
        """A pack raised; the study goes on with the next one."""

    def untracked(self, tracker: str, problem: str) -> None:
        """A tracker of the study failed, and is told nothing from here on; training goes on."""


class Together(Watcher):
    """Tells several watchers, in their order, what it is told."""

    def __init__(self, *watchers: Watcher):
        self.watchers = watchers


def _to_all(event: str) -> Callable[..., None]:
    def tell(self: Together, *args: Any) -> None:
        for watcher in self.watchers:
            getattr(watcher, event)(*args)

    return tell


for _event in [name for name in vars(Watcher) if not name.startswith("_")]:
    setattr(Together, _event, _to_all(_event))
