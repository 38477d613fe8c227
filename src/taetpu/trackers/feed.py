"""Hands what the store has of runs to trackers, each as far as it has not had it, and keeps their failures to them."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.store import metrics
from taetpu.store.documents import from_json, to_json
from taetpu.store.runs import RunFolder
from taetpu.store.settings import read_settings
from taetpu.store.study import StudyFolder
from taetpu.trackers.base import Row, Sink, TrackedRun, Tracker

FOLDER, WRITTEN = "trackers", "tracked"
"""In the study's folder: what trackers write, and which runs they have been given to the end."""


class Trackers:
    """The trackers of one study.

    Args:
        off: is told the name of a tracker that failed, and why; nothing is handed to it from then on.
    """

    def __init__(self, folder: StudyFolder, trackers: Mapping[str, Tracker], off: Callable[[str, str], None]):
        self.folder, self.off = folder, off
        self.following = {name: TrackerFeed(folder, name, tracker) for name, tracker in trackers.items()}

    def catch_up(self) -> None:
        """Hand over the runs that are done, and that a tracker has not had: it is new, or this process's forerunner
        was killed just before."""
        self._each(lambda one: one.finish(self.folder.runs()))

    def forward(self, runs: Iterable[RunFolder]) -> None:
        """Hand over what was stored of these runs."""
        runs = list(runs)
        self._each(lambda one: one.follow(runs))

    def finish(self, runs: Iterable[RunFolder]) -> None:
        """These runs are done."""
        runs = list(runs)
        self._each(lambda one: one.finish(runs))

    def close(self) -> None:
        """Let go of runs that are not done."""
        self._each(TrackerFeed.close)

    def _each(self, act: "Callable[[TrackerFeed], None]") -> None:
        for name, one in list(self.following.items()):
            try:
                act(one)
            except Exception as error:  # whatever a library raises: training does not depend on it
                del self.following[name]
                with suppress(Exception):
                    one.close()
                self.off(name, format_failure(error))


def format_failure(error: Exception) -> str:
    """Why a tracker failed, in a line."""
    if isinstance(error, ImportError):
        return f"{error.name or error} is not there: pip install 'taetpu[trackers]'"
    if isinstance(error, UserError):
        return error.problem + (f"; {error.remedy}" if error.remedy else "")
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass
class OpenRun:
    """A run that a tracker has in part: all up to a step."""

    sink: Sink
    step: int = 0


class TrackerFeed:
    """One tracker of a study, and the runs that it has been given."""

    def __init__(self, folder: StudyFolder, name: str, tracker: Tracker):
        self.folder, self.name, self.tracker = folder, name, tracker
        self.open: dict[str, OpenRun] = {}
        # Given to another project, say, runs are new there.
        digest = hashlib.sha256(to_json(to_data(tracker))).hexdigest()[:8]
        self.mark = f"{folder.name}/{WRITTEN}/{name}-{digest}"
        self.known: set[str] | None = None

    def follow(self, runs: Iterable[RunFolder]) -> None:
        """Hand over what is stored of runs by now."""
        for run in runs:
            room = run.key in self.open or len(self.open) < self.tracker.max_open
            if room and self._marked(run) not in self.written():
                self._hand_over(run)

    def finish(self, runs: Iterable[RunFolder]) -> None:
        """Hand over what is left of runs that are done, and say so."""
        for run in runs:
            if self._marked(run) in self.written() or (result := run.result()) is None:
                continue
            self._hand_over(run).finish(result)
            del self.open[run.key]
            self._keep()
            self.folder.store.write(self._marked(run), b"")
            self.written().add(self._marked(run))

    def close(self) -> None:
        """Let go of all runs."""
        while self.open:
            self.open.popitem()[1].sink.close()
            self._keep()

    def _keep(self) -> None:
        """Store what the tracker has written, where it does not lie in the store."""
        self.folder.store.save_folder(f"{self.folder.name}/{FOLDER}/{self.name}")

    def written(self) -> set[str]:
        """The marks of runs that the tracker has whole."""
        if self.known is None:
            self.known = set(self.folder.store.list(self.mark))
        return self.known

    def _marked(self, run: RunFolder) -> str:
        return f"{self.mark}/{run.arm}/{run.seed}-{run.id}"

    def _hand_over(self, run: RunFolder) -> Sink:
        if run.key not in self.open:
            self.open[run.key] = OpenRun(self.tracker.open(self._tracked(run)))
        begun = self.open[run.key]
        found, begun.step = rows(run, begun.step)
        if found:
            begun.sink.log(found)
        return begun.sink

    def _tracked(self, run: RunFolder) -> TrackedRun:
        whole = f"{self._folder_id()} {run.arm} {run.seed} {run.id}"
        return TrackedRun(
            study=run.study,
            arm=run.arm,
            seed=run.seed,
            id=hashlib.sha256(whole.encode()).hexdigest()[:16],
            settings=read_settings(run),
            folder=self.folder.store.folder(self.folder.name) / FOLDER / self.name,
        )

    def _folder_id(self) -> str:
        """Tells this study's folder from others that have the same runs, wherever it is moved to."""
        store, key = self.folder.store, f"{self.folder.name}/{WRITTEN}/id.json"
        if not store.exists(key):
            store.write(key, to_json({"id": secrets.token_hex(8)}))
        return from_json(store.read(key), store.where(key))["id"]


def rows(run: RunFolder, after: int) -> tuple[list[Row], int]:
    """What is stored of a run behind a step, a row for each step that has something, and the step that it reaches."""
    keys = sorted(run.store.list(f"{run.key}/metrics"), key=metrics.segment_bounds)
    new = [key for key in keys if metrics.segment_bounds(key)[0] >= after]
    found: dict[int, dict[str, Any]] = {}
    for name, series in metrics.join_segments(
        metrics.decode_segment(run.store.read(k), run.store.where(k)) for k in new
    ).items():
        for step, value in zip(series.step.tolist(), series.value.tolist(), strict=True):
            found.setdefault(step, {})[name] = value
    end = metrics.segment_bounds(new[-1])[1] if new else after
    texts = {step: text for step, text in run.samples().items() if after < step <= end}
    return [Row(step, found.get(step, {}), texts.get(step)) for step in sorted({*found, *texts})], end
