"""A callback that forwards stored metrics to a study's trackers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from taetpu.spec.resolved_study import Study
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.trackers.feed import Trackers
from taetpu.train.callbacks import Callback, CallbackList
from taetpu.train.pack_plan import Run


@contextmanager
def tracked(study: Study, folder: StudyFolder, callback: Callback, live: bool = True) -> Iterator[Callback]:
    """Yield `callback` extended by the study's trackers.

    Args:
        live: while runs train. Otherwise trackers receive finished runs at the end of the block, if it ends well.
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
    """Forwards events to trackers. It raises only what stops training, such as Ctrl-C."""

    def __init__(self, trackers: Trackers):
        self.trackers = trackers
        self.runs: list[RunFolder] = []

    def on_train_begin(self, run_steps: int) -> None:
        self.trackers.catch_up()

    def on_pack_begin(self, number: int, total: int, runs: Sequence[Run]) -> None:
        self.trackers.close()  # runs of a pack that failed, or was halved and is trained from its start
        self.runs = [run.folder for run in runs]

    def on_save(self, step: int) -> None:
        self.trackers.forward(self.runs)

    def on_pack_end(self, runs: Sequence[Run]) -> None:
        self.trackers.finish(self.runs)
