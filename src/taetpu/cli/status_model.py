"""The data for `taetpu status --watch`: progress, losses and effects of studies, read incrementally from the store."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from taetpu.core.errors import UserError
from taetpu.stats.deviations import study_departures
from taetpu.store import metrics
from taetpu.store.index import find_studies
from taetpu.store.metrics import progress_metric
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.ui.feed import Feed, RunState


@dataclass(frozen=True)
class ArmView:
    """The state of an arm: its progress, the means over its runs, and its effect.

    Attributes:
        step: the smallest step that any of its runs has reached.
        verdict: the verdict, or the confidence interval of the effect in an interim analysis.
        curve: the primary metric during training, averaged over the runs.
    """

    name: str
    done: int
    seeds: int
    step: int
    values: dict[str, float]
    effect: str = ""
    verdict: str = ""
    curve: Sequence[float] = ()


@dataclass(frozen=True)
class PackView:
    """A pack in training.

    Attributes:
        steps: number of training steps, or None if the length of training is set in epochs.
        rate: steps per second, or None if they are unknown.
        use: device utilisation as text.
    """

    number: int
    of: int
    runs: int
    step: int
    steps: int | None
    rate: float | None
    use: str = ""

    @property
    def left(self) -> float | None:
        """The number of seconds until training ends, or None if it is unknown."""
        return (self.steps - self.step) / self.rate if self.steps and self.rate else None


@dataclass(frozen=True)
class StudyView:
    """A snapshot of a study.

    Attributes:
        metrics: names of the metrics in the `values` of the arms.
        places: number of decimal places to print for these values.
        tried: number of additional runs that tuning trains.
    """

    name: str
    arms: Sequence[ArmView] = ()
    packs: Sequence[PackView] = ()
    headline: str = ""
    interim: bool = True
    metrics: Sequence[str] = ()
    places: int = 4
    tried: int = 0
    departures: Sequence[str] = ()
    problem: str = ""
    ended: bool = False

    @cached_property
    def done(self) -> int:
        """The number of finished runs."""
        return sum(arm.done for arm in self.arms)

    @cached_property
    def total(self) -> int:
        """The total number of runs."""
        return sum(arm.seeds for arm in self.arms)


@dataclass
class StudyMonitor:
    """The studies at a place. Each has a feed, which reads only new data."""

    place: str
    feeds: dict[str, Feed] = field(default_factory=dict)
    views: dict[str, StudyView] = field(default_factory=dict)

    def update(self) -> bool:
        """Read new data and return whether anything has changed."""
        folders = {folder.name: folder for folder in find_studies(self.place)}
        changed = list(folders) != list(self.views)
        self.feeds = {name: self.feeds.get(name) or Feed(folder) for name, folder in folders.items()}
        views: dict[str, StudyView] = {}
        for name, feed in self.feeds.items():
            view = _refresh(feed, self.views.get(name))
            changed, views[name] = changed or view is not self.views.get(name), view
        self.views = views
        return changed

    @property
    def ended(self) -> bool:
        """Whether all studies are done."""
        return all(view.ended for view in self.views.values())


def _refresh(feed: Feed, before: StudyView | None) -> StudyView:
    """Return a snapshot of a study, or `before` if nothing has changed."""
    try:
        new = feed.poll()
        if before is not None and not new:
            return before
        return _view(feed)
    except UserError as error:
        problem = str(error)
    except (KeyError, TypeError):
        problem = f"{feed.folder.where}/study.yaml does not describe a study"
    return before if before is not None and before.problem == problem else StudyView(feed.folder.name, problem=problem)


def _view(feed: Feed) -> StudyView:
    problems = [message.data["text"] for message in feed.messages if message.kind == "problem"]
    if not feed.study or (problems and problems[-1]):
        return StudyView(feed.folder.name, problem=problems[-1] if problems else "")
    rows = {row["arm"]: row for row in feed.effects.get("rows", ())}
    own = [run for run in feed.runs.values() if run.arm in feed.study["arms"] and run.seed in feed.study["seeds"]]
    recorded = [run.series for run in own]
    metrics = ("train/loss", progress_metric(feed.study["primary"], recorded))
    curve = progress_metric(feed.study["primary"], recorded, curve=True)
    seeds = len(feed.study["seeds"])
    arms = [_arm(name, own, seeds, rows.get(name, {}), metrics, curve) for name in feed.study["arms"]]
    all_done = all(arm.done >= arm.seeds for arm in arms)
    return StudyView(
        name=feed.folder.name,
        arms=arms,
        packs=_packs(feed),
        headline=feed.effects.get("headline", ""),
        metrics=metrics,
        places=feed.effects.get("places", StudyView.places),
        interim=any(row["verdict"] == "interim" for row in rows.values()),
        tried=len(feed.runs) - len(own),
        departures=study_departures(feed.folder),
        ended=all_done and _is_tuned(feed.folder),
    )


def _is_tuned(folder: StudyFolder) -> bool:
    """Return whether no tuning is planned or the tuning has ended. Tuned arms are added at the end of the tuning."""
    return not folder.read_study().get("design", {}).get("tune") or folder.read_results() is not None


# --- an arm ----------------------------------------------------------------------------------------------------------


def _arm(
    name: str, runs: Iterable[RunState], seeds: int, row: dict[str, Any], metrics: Sequence[str], curve: str
) -> ArmView:
    own = [run for run in runs if run.arm == name]
    values = {metric: value for metric in metrics if (value := _last(own, metric)) is not None}
    known = row.get("effect", "-") != "-"
    return ArmView(
        name=name,
        done=sum(run.status == "done" for run in own),
        seeds=seeds,
        step=min(map(_step, own), default=0),
        values=values,
        effect=row["effect"] if known else "",
        verdict=(row["interval"] if row["verdict"] == "interim" else row["verdict"]) if known else "",
        curve=_curve(own, curve),
    )


def _step(run: RunState) -> int:
    steps, _ = run.series.get("train/loss", ((), ()))
    return steps[-1] if steps else 0


def _last(own: Sequence[RunState], name: str) -> float | None:
    """Return the mean of the last values of the runs, NaN if one of these is not finite, or None without values."""
    values = [run.series[name][1][-1] for run in own if name in run.series and run.series[name][1]]
    return float(np.mean([np.nan if value is None else value for value in values])) if values else None


def _curve(own: Sequence[RunState], metric: str) -> list[float]:
    at: dict[int, list[float]] = {}
    for run in own:
        for step, value in zip(*run.series.get(metric, ((), ())), strict=True):
            if value is not None:
                at.setdefault(step, []).append(value)
    return [float(np.mean(at[step])) for step in sorted(at)]


# --- packs -----------------------------------------------------------------------------------------------------------


def _packs(feed: Feed) -> list[PackView]:
    plans = (feed.folder.read_plan() or {"packs": []})["packs"]
    found = []
    for number, plan in enumerate(plans, 1):
        folders = [feed.folder.run(*names) for names in plan["runs"]]
        left = [(run, state) for run in folders if (state := _state(feed, run)).status != "done"]
        if not left:
            continue
        step = min(_step(state) for _, state in left)
        if step or feed.folder.read_pack_mark(plan["id"]) is not None:
            first, state = left[0]
            found.append(PackView(number, len(plans), len(folders), step, _steps(first), _rate(first), state.use))
    return found


def _state(feed: Feed, run: RunFolder) -> RunState:
    return feed.runs.get(run.key.partition("/")[2]) or RunState(run.arm, run.seed)


def _steps(run: RunFolder) -> int | None:
    return run.config()["config"].get("train", {}).get("steps") if run.status() != "absent" else None


def _rate(run: RunFolder) -> float | None:
    """Return the steps per second between the last two timestamps, including time for evaluation and storing."""
    keys = sorted(run.store.list(f"{run.key}/times"), key=metrics.segment_bounds)[-2:]
    times = metrics.join_segments(metrics.decode_segment(run.store.read(key), run.store.where(key)) for key in keys)
    if "seconds" not in times or len(times["seconds"].step) < 2:
        return None
    (step, last_step), (start, end) = times["seconds"].step[-2:].tolist(), times["seconds"].value[-2:].tolist()
    return (last_step - step) / (end - start) if end > start else None
