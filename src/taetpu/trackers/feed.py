"""Forward stored metrics and samples to trackers, and isolate training from the trackers' failures."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.store import metrics
from taetpu.store.documents import from_json, to_json
from taetpu.store.errors import NotStored
from taetpu.store.flat_config import read_settings
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.trackers.base import Row, Sink, TrackedRun, Tracker

FOLDER, FORWARDED = "trackers", "tracked"
"""Folders in the study's folder: `FOLDER` for the files of trackers, `FORWARDED` for marker files of forwarded runs."""


class Trackers:
    """The trackers of one study.

    Args:
        folder: the study's folder.
        trackers: the trackers by name.
        on_failure: a function that is called with the name of a failed tracker and the reason. A tracker that has
            failed is disabled.
    """

    def __init__(self, folder: StudyFolder, trackers: Mapping[str, Tracker], on_failure: Callable[[str, str], None]):
        self.folder, self.on_failure = folder, on_failure
        self.feeds = {name: TrackerFeed(folder, name, tracker) for name, tracker in trackers.items()}

    def catch_up(self) -> None:
        """Forward the finished runs that a tracker lacks.

        A tracker lacks runs if it was added to the study later, or if an earlier process was killed.
        """
        self._each(lambda feed: feed.finish(self.folder.runs()))

    def forward(self, runs: Iterable[RunFolder]) -> None:
        """Forward the rows that were stored for the given runs since the last call."""
        runs = list(runs)
        self._each(lambda feed: feed.forward(runs))

    def follow(self, runs: Iterable[RunFolder]) -> None:
        """Forward the new rows of the given runs, some of which may have finished, with the results of these."""
        runs = list(runs)
        self.finish(runs)
        self.forward(runs)

    def finish(self, runs: Iterable[RunFolder]) -> None:
        """Forward the remaining rows and the results of the finished runs among the given runs."""
        runs = list(runs)
        self._each(lambda feed: feed.finish(runs))

    def close(self) -> None:
        """Close the runs that are not done."""
        self._each(TrackerFeed.close)

    def _each(self, act: "Callable[[TrackerFeed], None]") -> None:
        for name, feed in list(self.feeds.items()):
            try:
                act(feed)
            except Exception as error:  # training continues after any error in a tracker's library
                del self.feeds[name]
                with suppress(Exception):
                    feed.close()
                self.on_failure(name, format_failure(error))


def format_failure(error: Exception) -> str:
    """Return the reason for a tracker's failure on one line."""
    if isinstance(error, ImportError):
        package = (error.name or str(error)).partition(".")[0]
        return f"{package} is not installed: run `pip install 'taetpu[trackers]'`"
    if isinstance(error, UserError):
        return error.problem + (f" ({error.remedy.rstrip('.')})" if error.remedy else "")
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass
class OpenRun:
    """A run whose rows up to `step`, those of `segments`, have been forwarded."""

    sink: Sink
    step: int = 0
    segments: set[str] = field(default_factory=set)


class TrackerFeed:
    """One tracker of a study, and its open runs."""

    def __init__(self, folder: StudyFolder, name: str, tracker: Tracker):
        self.folder, self.name, self.tracker = folder, name, tracker
        self.open: dict[str, OpenRun] = {}
        # If the tracker's settings change, for example its project, all runs are forwarded again.
        digest = hashlib.sha256(to_json(to_data(tracker))).hexdigest()[:8]
        self.marks = f"{folder.name}/{FORWARDED}/{name}-{digest}"

    def forward(self, runs: Iterable[RunFolder]) -> None:
        """Forward the new rows of the given runs. At most `max_open` runs are open at the same time."""
        for run in runs:
            permitted = run.key in self.open or len(self.open) < self.tracker.max_open
            if permitted and self._mark(run) not in self.forwarded:
                with suppress(NotStored):  # its metrics are being replaced, and the next call sends them
                    self._forward_rows(run)

    def finish(self, runs: Iterable[RunFolder]) -> None:
        """Forward the remaining rows and the result of each finished run, and then write the run's marker file."""
        for run in runs:
            if self._mark(run) in self.forwarded or (result := run.result()) is None:
                continue
            self._forward_rows(run).finish(result)
            del self.open[run.key]
            self._save()
            self.folder.store.write(self._mark(run), b"")
            self.forwarded.add(self._mark(run))

    def close(self) -> None:
        """Close all open runs."""
        while self.open:
            self.open.popitem()[1].sink.close()
            self._save()

    def _save(self) -> None:
        """Store the tracker's files in the study's store, which may be a bucket."""
        self.folder.store.save_folder(f"{self.folder.name}/{FOLDER}/{self.name}")

    @cached_property
    def forwarded(self) -> set[str]:
        """The keys of the marker files of completely forwarded runs."""
        return set(self.folder.store.list(self.marks))

    def _mark(self, run: RunFolder) -> str:
        return f"{self.marks}/{run.arm}/{run.seed}-{run.id}"

    def _forward_rows(self, run: RunFolder) -> Sink:
        keys = sorted(run.store.list(f"{run.key}/metrics"), key=metrics.segment_bounds)
        opened = self.open.get(run.key)
        if opened is not None and opened.segments - {*keys}:  # forwarded rows were replaced, so all are sent again
            del self.open[run.key]
            opened.sink.close()
            opened = None
        if opened is None:
            opened = self.open[run.key] = OpenRun(self.tracker.open(self._tracked_run(run)))
        new = [key for key in keys if metrics.segment_bounds(key)[0] >= opened.step]
        if new:
            end = metrics.segment_bounds(new[-1])[1]
            if rows := read_rows(run, new, opened.step, end):
                opened.sink.log(rows)
            opened.step = end
            opened.segments |= {*new}
        return opened.sink

    def _tracked_run(self, run: RunFolder) -> TrackedRun:
        identity = f"{self._folder_id()} {run.arm} {run.seed} {run.id}"
        return TrackedRun(
            study=run.study,
            arm=run.arm,
            seed=run.seed,
            id=hashlib.sha256(identity.encode()).hexdigest()[:16],
            settings=read_settings(run),
            folder=self.folder.store.folder(self.folder.name) / FOLDER / self.name,
        )

    def _folder_id(self) -> str:
        """Return the random identifier of the study's folder. It does not change if the folder is moved."""
        store, key = self.folder.store, f"{self.folder.name}/{FORWARDED}/id.json"
        if not store.exists(key):
            store.write(key, to_json({"id": secrets.token_hex(8)}))
        return from_json(store.read(key), store.where(key))["id"]


def read_rows(run: RunFolder, segments: Iterable[str], after: int, end: int) -> list[Row]:
    """Return the rows of segments of a run's metrics, with the samples of steps after `after` and up to `end`."""
    values: dict[int, dict[str, Any]] = {}
    decoded = (metrics.decode_segment(run.store.read(key), run.store.where(key)) for key in segments)
    for name, series in metrics.join_segments(decoded).items():
        for step, value in zip(series.step.tolist(), series.value.tolist(), strict=True):
            values.setdefault(step, {})[name] = value
    texts = {step: text for step, text in run.samples().items() if after < step <= end}
    return [Row(step, values.get(step, {}), texts.get(step)) for step in sorted({*values, *texts})]
