"""A study's trackers hear of its training as watchers do, once something is stored."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from taetpu.spec.resolved_study import RunSpec, Study
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.trackers.observer import Trackers
from taetpu.train.callbacks import Together, Watcher


@contextmanager
def tracked(study: Study, folder: StudyFolder, watcher: Watcher, live: bool = True) -> Iterator[Watcher]:
    """Yield a watcher that informs the study's trackers, too.

    Args:
        live: while runs train. Otherwise trackers receive finished runs at the end of the block, if it ends well.
    """
    if not study.trackers:
        yield watcher
        return
    trackers = Trackers(folder, study.trackers, watcher.untracked)
    try:
        yield Together(watcher, Tracking(trackers, folder)) if live else watcher
        if not live:
            trackers.caught_up()
    finally:
        trackers.close()


class Tracking(Watcher):
    """Tells trackers. Nothing here is raised to training but what is meant to stop it (Ctrl-C)."""

    def __init__(self, trackers: Trackers, folder: StudyFolder):
        self.trackers, self.folder = trackers, folder
        self.runs: list[RunFolder] = []

    def begun(self, run_steps: int) -> None:
        self.trackers.caught_up()

    def pack(self, number: int, of: int, runs: Sequence[RunSpec]) -> None:
        self.trackers.close()  # runs of a pack that failed, or was halved and is trained from its start
        self.runs = [self.folder.run(run.arm, run.seed, run.id) for run in runs]

    def stored(self, step: int) -> None:
        self.trackers.flushed(self.runs)

    def finished(self, runs: Sequence[RunSpec]) -> None:
        self.trackers.finished(self.runs)
