"""A callback that forwards stored metrics to a study's trackers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from taetpu.spec.resolved_study import Study
from taetpu.store.study import StudyFolder
from taetpu.trackers.feed import Trackers
from taetpu.train.callbacks import Callback, CallbackList
from taetpu.train.pack_plan import PackPlan, Run


@contextmanager
def tracked(study: Study, folder: StudyFolder, callback: Callback, live: bool = True) -> Iterator[Callback]:
    """Yield a callback that also forwards metrics to the study's trackers.

    Args:
        study: the study. Its file lists the trackers.
        folder: the study's folder.
        callback: receives all events, including the failures of trackers.
        live: whether trackers receive runs during training. If False, finished runs are sent when the block ends.
    """
    if not study.trackers:
        yield callback
        return
    trackers = Trackers(folder, study.trackers, callback.on_tracker_failed)
    try:
        yield CallbackList(callback, Tracking(trackers)) if live else callback
        if not live:
            trackers.catch_up()
    finally:
        trackers.close()


class Tracking(Callback):
    """Forwards events to trackers. A tracker's error does not stop training, but Ctrl-C does."""

    def __init__(self, trackers: Trackers):
        self.trackers = trackers
        self.runs: Sequence[Run] = ()
        self.packs = list[Sequence[Run]]()  # those that train now

    def on_train_begin(self, run_steps: int) -> None:
        """Forward the runs that earlier processes stored."""
        self.trackers.catch_up()

    def on_pack_begin(self, number: int, total: int, runs: Sequence[Run]) -> None:
        """Close the runs of the previous pack, unless packs train side by side."""
        if not self.packs:
            self.trackers.close()  # if the previous pack failed, or was halved and starts again from step 0
        self.packs.append(runs)
        self.runs = runs

    def on_switch(self, runs: Sequence[Run]) -> None:
        """Forward what follows for the pack with these runs."""
        self.runs = runs

    def on_save(self, step: int) -> None:
        """Forward the metrics that were stored since the last save."""
        self.trackers.forward(run.folder for run in self.runs)

    def on_pack_end(self, runs: Sequence[Run]) -> None:
        """Forward the remaining metrics and the results of the pack's finished runs."""
        self.trackers.finish(run.folder for run in runs)
        self.packs.remove(runs)

    def on_pack_failed(self, runs: Sequence[Run], error: Exception) -> None:
        """Forget the pack."""
        self.packs.remove(self.runs)

    def on_pack_split(self, runs: Sequence[Run], plans: Sequence[PackPlan], error: Exception | None) -> None:
        """Forget the pack, whose runs start again from step 0."""
        self.packs.remove(self.runs)
        self.trackers.close()
