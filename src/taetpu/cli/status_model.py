"""The progress of stored studies as plain data for `taetpu status`: arms, packs in training, and effects so far."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np

from taetpu.core.errors import UserError
from taetpu.report.outcome_text import value_places
from taetpu.report.summary import mean_places, verdict_label
from taetpu.report.time_spent import describe_parts, parts_by_arm, total_parts
from taetpu.stats.deviations import awaits_tuned_arms
from taetpu.stats.load import read_study
from taetpu.store import metrics
from taetpu.store.addresses import Match
from taetpu.store.index import find_studies
from taetpu.store.metrics import progress_metric
from taetpu.store.pack_times import PackTime
from taetpu.store.runs import RunFolder
from taetpu.study.programs.run_files import RunFiles
from taetpu.ui.feed import Feed, RunState


@dataclass
class StudyMonitor:
    """The studies in a folder or under a root, each with a feed that reads only new data."""

    place: str
    match: Match | None = None
    """The arm or run that is shown; None for all."""
    feeds: dict[str, Feed] = field(default_factory=dict)

    def update(self) -> "list[StudyProgress]":
        """Read new data and return the progress of each study."""
        folders = find_studies(self.place)
        self.feeds = {folder.name: self.feeds.get(folder.name) or Feed(folder, charts=False) for folder in folders}
        for feed in self.feeds.values():
            feed.poll()
        return [StudyProgress(feed, self.match) for feed in self.feeds.values()]


def failed_attempt(files: RunFiles) -> dict[str, Any] | None:
    """Return the last attempt of a run of a program if it ended without a result, else None.

    Returns:
        The `seed`, the number of the `attempt`, `how` it ended, such as `exit code 1`, and the `log` with its output.
    """
    attempts = files.attempts()
    about = files.read(attempts[-1]) if attempts else {}
    if about.get("outcome", True):  # an attempt that is running, or whose driver was killed, has no outcome
        return None
    how = ": ".join(filter(None, (about["how"], about["problem"])))
    return {"seed": files.run.seed, "attempt": attempts[-1], "how": how, "log": str(files.output(attempts[-1]))}


class StudyProgress:
    """The progress of a study as of the last poll of its feed."""

    def __init__(self, feed: Feed, match: Match | None = None):
        self.feed, self.name, self.folder = feed, feed.folder.name, feed.folder
        self.match = match

    @cached_property
    def runs(self) -> list[RunState]:
        """The runs of the study's arms and seeds that have started. Tuning trials are not included."""
        arms, seeds = (self.feed.study.get(part, ()) for part in ("arms", "seeds"))
        return [run for run in self.feed.runs.values() if run.arm in arms and run.seed in seeds]

    @property
    def total(self) -> int:
        """The total number of runs, without those that a search left untrained."""
        runs = len(self.feed.study.get("arms", ())) * len(self.feed.study.get("seeds", ()))
        arms = self.feed.results["arms"] if self.feed.results else ()
        return runs - sum(run["outcome"] == "untrained" for arm in arms for run in arm["runs"])

    @property
    def done(self) -> int:
        """The number of runs that finished, stopped or diverged."""
        return sum(run.ended for run in self.runs)

    @property
    def ended(self) -> bool:
        """Whether all runs are done and no tuned arms remain to be added. Missing runs of a table are not awaited."""
        if self.feed.problem:
            return False
        study = read_study(self.folder)
        return "judged" in study or (self.done == self.total and not awaits_tuned_arms(study))

    def arms(self) -> list[dict[str, Any]]:
        """Return a row for each arm, or for the arm that the address names.

        A row has the number of runs that have ended, the number that diverged, the smallest step of any
        run, the means of the last losses, the effect in the finished runs, the `failed` attempts if there are any, and
        the `time` in seconds, by what it was spent on, if packs measured it.
        For a study that cannot be read, the only row describes the problem.
        """
        study, results = self.feed.study, self.feed.results
        if self.feed.problem or results is None:
            return [{"problem": self.feed.problem}]
        judged = {arm["name"]: arm for arm in results["arms"]}
        shown = progress_metric(study["primary"], [run.series for run in self.runs])
        chosen, seed = (None, None) if self.match is None else (self.match.arm, self.match.seed)
        seeds = study["seeds"] if seed is None else [seed]
        rows, spent = [], parts_by_arm(self.times)
        untrained = {name for name, arm in judged.items() if all(r["outcome"] == "untrained" for r in arm["runs"])}
        for arm in [chosen] if chosen and chosen in study["arms"] else study["arms"]:
            runs = [run for run in self.runs if run.arm == arm and run.seed in seeds]
            rows.append(
                {
                    "arm": arm,
                    "runs": "untrained" if arm in untrained else f"{sum(run.ended for run in runs)}/{len(seeds)}",
                    "diverged": sum(run.status == "diverged" for run in runs),
                    "step": min(map(_last_step, runs), default=0),
                    "train/loss": _mean_last(runs, "train/loss"),
                    shown: _mean_last(runs, shown),
                    "effect": judged[arm]["effect"],
                    "ci95": judged[arm]["ci95"],
                    "standing": verdict_label(judged[arm]),
                    "places": mean_places(results),
                    "value_places": value_places(results, mean_places(results)),
                }
            )
            if failed := [attempt for attempt in self.failed.get(arm, ()) if attempt["seed"] in seeds]:
                rows[-1]["failed"] = failed
            if arm in spent:
                rows[-1]["time"] = spent[arm]
        return rows

    @cached_property
    def times(self) -> list[PackTime]:
        """The wall times of the packs; none if a stored time is damaged."""
        try:
            return list(self.folder.read_pack_times().values())
        except UserError:
            return []

    def time_spent(self) -> list[str]:
        """Return a line that says what the time of the packs was spent on; none if it is not known."""
        spent = describe_parts(total_parts(self.times))
        return [f"where the time went: {spent}"] if spent else []

    @cached_property
    def failed(self) -> dict[str, list[dict[str, Any]]]:
        """The failed attempts (see `failed_attempt`) of unfinished runs of a program, by arm."""
        failed: dict[str, list[dict[str, Any]]] = {}
        for run in self.folder.runs() if "program" in read_study(self.folder) else ():
            if not self._state(run).ended and (attempt := failed_attempt(RunFiles(self.folder, run))):
                failed.setdefault(run.arm, []).append(attempt)
        return failed

    def packs(self) -> list[str]:
        """Return a line for each pack in training, with its step, its speed and, if known, its device utilisation.

        The list is empty if the stored plan is damaged.
        """
        try:
            plans = (self.folder.read_plan() or {"packs": []})["packs"]
        except UserError:
            return []
        lines, claimed = [], set(self.folder.claimed_packs())
        for number, plan in enumerate(plans, 1):
            folders = [self.folder.run(*names) for names in plan["runs"]]
            left = [(run, state) for run in folders if not (state := self._state(run)).ended]
            step = min((_last_step(state) for _, state in left), default=0)
            if left and (step or plan["id"] in claimed):
                (first, state), count = left[0], f"{len(folders)} run{'s' * (len(folders) > 1)}"
                parts = [_pace(first, step), state.use]
                lines.append(f"pack {number}/{len(plans)} ({count}): {', '.join(filter(None, parts))}")
        return lines

    def _state(self, run: RunFolder) -> RunState:
        return self.feed.runs.get(run.key.partition("/")[2]) or RunState(run.arm, run.seed)


def _last_step(run: RunState) -> int:
    """Return the last step of the training loss; that of all series for a program, which has no such loss."""
    series = [run.series["train/loss"]] if "train/loss" in run.series else run.series.values()
    return max((steps[-1] for steps, _ in series if steps), default=0)


def _mean_last(runs: Sequence[RunState], name: str) -> float | None:
    """Return the mean over runs of a series' last value: NaN if any value is not finite, None if no run has a value."""
    values = [run.series[name][1][-1] for run in runs if name in run.series and run.series[name][1]]
    return float(np.mean([np.nan if value is None else value for value in values])) if values else None


def _pace(run: RunFolder, step: int) -> str:
    """Return the step, the steps per second and the time left of a run, such as `step 10 of 40, 5 steps/s, 0:06 left`.

    The speed is measured between the last two timestamps, including the time for evaluation and storing.
    """
    if not step:
        return "starting"
    steps = run.config()["config"].get("train", {}).get("steps") if run.status() != "absent" else None
    at = f"step {step:,}" + (f" of {steps:,}" if steps else "")
    keys: Iterable[str] = sorted(run.store.list(f"{run.key}/times"), key=metrics.segment_bounds)[-2:]
    times = metrics.join_segments(metrics.decode_segment(run.store.read(key), run.store.where(key)) for key in keys)
    if "seconds" not in times or len(times["seconds"].step) < 2:
        return at
    (before, after), (start, end) = times["seconds"].step[-2:].tolist(), times["seconds"].value[-2:].tolist()
    if end <= start:
        return at
    rate = (after - before) / (end - start)
    left = f", {timedelta(seconds=round((steps - step) / rate))} left" if steps else ""
    return f"{at}, {rate:.3g} steps/s{left}"
