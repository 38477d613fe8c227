"""Read the progress of a study incrementally from the store, and describe changes as numbered messages.

A page computes its content from the messages it receives. A new page receives a single `state` message. Later, the page
sends the cursor of its last message and receives all newer messages. Every cursor contains a random name for the feed.
A page that was opened before a server restart therefore sends an unknown cursor and receives a `state` message, which
replaces all data in the page. No point of a series is lost or duplicated.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taetpu.core.errors import ErrorList, UserError
from taetpu.report import overview, summary
from taetpu.report.outcome_text import is_timed, value_places
from taetpu.report.usage_text import describe_usage
from taetpu.report.verdict_style import MARKS, VERDICTS
from taetpu.stats.analyse import compute_results
from taetpu.stats.formatting import fixed_places
from taetpu.stats.load import OUTCOMES, read_study, run_state
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Arm, Results
from taetpu.store import metrics
from taetpu.store.documents import finite
from taetpu.store.metrics import progress_metric
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

MAX_MESSAGES = 2000
"""Maximum number of messages kept for pages that reconnect."""
MAX_DIGITS = 18
"""Maximum number of digits in a cursor. A longer number is unknown."""
MAX_POINTS = 1000
"""Maximum number of points in a series of a `state` message. `thin_series` thins longer series."""


@dataclass(frozen=True)
class Message:
    """Message to a page. `kind` is one of `state, study, run, points, cut, usage, effects, problem`."""

    number: int
    kind: str
    data: Mapping[str, Any]


@dataclass
class RunState:
    """State of a run as last sent to pages.

    Attributes:
        status: `finished`, `stopped`, `diverged` or `unfinished`.
        series: steps and values by metric.
        use: the device usage.
    """

    arm: str
    seed: int
    status: str = "unfinished"
    segments: set[str] = field(default_factory=set)
    series: dict[str, tuple[list[int], list[float | None]]] = field(default_factory=dict)
    use: str = ""

    @property
    def ended(self) -> bool:
        """Whether the run finished, stopped or diverged."""
        return self.status != "unfinished"

    def cut(self, step: int) -> None:
        """Remove all points after a step."""
        for steps, values in self.series.values():
            keep = int(np.searchsorted(steps, step, side="right"))
            del steps[keep:], values[keep:]


class Feed:
    """The progress of one study, and messages about its changes.

    Attributes:
        results: the results of the finished runs, as in `results.json`; None until they can be computed.
        errors: the errors raised during the last call of `poll`.
        problem: the text of `errors`, without duplicates.

    Args:
        folder: the study.
        charts: whether `effects` has the charts of the page. The library that draws them takes a third of a second to
            import.
    """

    def __init__(self, folder: StudyFolder, charts: bool = True):
        self.folder, self.charts, self.life = folder, charts, secrets.token_hex(4)
        self.messages: list[Message] = []
        self.number = 0
        self.study: dict[str, Any] = {}
        self.runs: dict[str, RunState] = {}
        self.results: Results | None = None
        self.effects: dict[str, Any] = {}
        self.using = ""
        self.errors = ErrorList()
        self.problem = ""
        self._read_at, self._frozen_at = (-1, -1.0), -1.0
        self._unjudged: UserError | None = None
        self._plan: Mapping[str, Any] = {}

    # Sending.

    def since(self, cursor: str | None) -> list[Message]:
        """Return the messages after a cursor, or a single `state` message if the cursor is unknown or too old."""
        life, _, number = (cursor or "").partition("-")
        oldest = self.messages[0].number - 1 if self.messages else self.number
        # Python refuses to convert thousands of digits.
        known = life == self.life and number.isdecimal() and len(number) <= MAX_DIGITS
        if known and oldest <= int(number) <= self.number:
            return [message for message in self.messages if message.number > int(number)]
        return [Message(self.number, "state", self.state())]

    def label(self, series: str) -> str:
        """Return the label of a series, which is its name unless the metric declares another."""
        return self.study.get("names", {}).get(series, (series,))[0]

    def cursor(self, message: Message) -> str:
        """Return the cursor with which a page requests the messages after this message."""
        return f"{self.life}-{message.number}"

    def state(self) -> dict[str, Any]:
        """Return the data of a `state` message, which is the complete state of the study."""
        runs = {
            key: {
                "arm": run.arm,
                "seed": run.seed,
                "status": run.status,
                "use": run.use,
                "series": {name: thin_series(*series) for name, series in run.series.items()},
            }
            for key, run in self.runs.items()
        }
        state = {"study": self.study, "runs": runs, "effects": self.effects, "problem": self.problem}
        return {**state, "using": self.using}

    # Reading.

    def poll(self) -> int:
        """Read new data from the store and return the number of new messages."""
        before = self.number
        self.errors = ErrorList()
        with self.errors.collect():
            self._read()
        problem = "\n".join(dict.fromkeys(error.message for error in self.errors))
        if problem != self.problem:
            self.problem = problem
            self._send("problem", {"text": problem})
        del self.messages[:-MAX_MESSAGES]
        return self.number - before

    def _read(self) -> None:
        if (frozen_at := self.folder.frozen_at()) != self._frozen_at:
            frozen = read_study(self.folder)
            study = {"name": self.folder.name, "arms": list(frozen["arms"]), "seeds": list(frozen["seeds"])}
            study["primary"] = (frozen.get("measure") or frozen["plan"])["primary"]
            self._plan = frozen.get("plan", {})
            self.study, self._frozen_at = {**self.study, **study}, frozen_at
            self._send("study", self.study)
        for run in self.folder.runs():
            with self.errors.collect():
                self._read_run(run)
        self._choose_series()
        ended = sum(run.ended for run in self.runs.values())
        read_at = ended, self.folder.analysed_at()
        if read_at != self._read_at:
            # A failed analysis is not retried until another run ends, because an analysis takes a second.
            self._read_at, self._unjudged = read_at, None
            try:
                results = compute_results(self.folder)
                self.results, self.effects = results, _effects_of(results, self.charts)
                self._send("effects", self.effects)
            except UserError as error:
                self._unjudged = error
        self.errors += [self._unjudged] if self._unjudged else []

    def _choose_series(self) -> None:
        """Send the primary metric's series to show and plot, and the names that pages show for series, if they changed.

        The entries are `shown`, `curve` and `names` (see `name_series`).
        """
        recorded = [run.series for run in self.runs.values() if run.arm in self.study["arms"]]
        primary = self.study["primary"]
        known = {primary, *(name for series in recorded for name in series)}
        chosen = {"shown": progress_metric(primary, recorded), "curve": progress_metric(primary, recorded, curve=True)}
        chosen = {**chosen, "names": name_series(self._plan, known)}
        if not chosen.items() <= self.study.items():
            self.study = {**self.study, **chosen}
            self._send("study", self.study)

    def _read_run(self, run: RunFolder) -> None:
        key = run.key.partition("/")[2]
        known = self.runs.get(key)
        if known is None:
            known = self.runs[key] = RunState(run.arm, run.seed)
            self._send("run", {"run": key, "arm": run.arm, "seed": run.seed, "status": known.status})
        elif known.ended:
            return
        done = run.status() == "done"  # read before the metrics, which are complete once the run is done
        for message in _read_segments(run, known):
            self.using = key if message[0] == "usage" else self.using
            self._send(message[0], {"run": key, **message[1]})
        if done:
            known.status = run_state(run)
            self._send("run", {"run": key, "arm": run.arm, "seed": run.seed, "status": known.status})

    def _send(self, kind: str, data: Mapping[str, Any]) -> None:
        self.number += 1
        self.messages.append(Message(self.number, kind, data))


def _read_segments(run: RunFolder, known: RunState) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield messages on new segments of a run, preceded by a `cut` message if known segments were removed.

    Segments may be removed when a run resumes from a checkpoint.
    """
    keys = sorted(run.store.list(f"{run.key}/metrics"), key=metrics.segment_bounds)
    if known.segments - set(keys):
        known.segments &= set(keys)
        step = max((metrics.segment_bounds(key)[1] for key in known.segments), default=0)
        known.cut(step)
        yield "cut", {"step": step}
    new_keys = [key for key in keys if key not in known.segments]
    for key in new_keys:
        segment = metrics.decode_segment(run.store.read(key), run.store.where(key))
        known.segments.add(key)
        new = {name: (s.step.tolist(), finite(s.value.tolist())) for name, s in segment.items()}
        for name, added in new.items():
            for column, values in zip(known.series.setdefault(name, ([], [])), added, strict=True):
                column.extend(values)
        yield "points", {"series": new}
    if new_keys and (use := _usage_at(run, new_keys[-1])) != known.use:
        known.use = use
        yield "usage", {"use": use}


def _usage_at(run: RunFolder, segment: str) -> str:
    """Return a description of the usage recorded with a segment of a run's metrics, or "" if no usage is recorded."""
    key = f"{run.key}/times/{segment.rpartition('/')[2]}"
    if not run.store.exists(key):
        return ""
    noted = metrics.decode_segment(run.store.read(key), run.store.where(key))
    return describe_usage({name: float(series.value[-1]) for name, series in noted.items()})


def _effects_of(results: Results, charts: bool) -> dict[str, Any]:
    """Return the headline, what arms are compared by, notices, counts of verdicts, verdict table and maybe charts."""
    rows = [
        {**vars(row), "runs": _progress(arm, results), "mark": MARKS[row.verdict] if row.verdict in VERDICTS else ""}
        for row, arm in zip(summary.verdict_rows(results), results["arms"], strict=True)
    ]
    effects = {"headline": summary.headline(results), "notices": summary.notices(results), "rows": rows}
    effects["about"] = summary.describe_effects(results)
    known = any(arm["effect"] is not None for arm in results["arms"] if arm["against"])
    counts = [(MARKS[label], label, number) for label, number in overview.count_labels(results)] if known else []
    pictures = _charts_of(results, known) if charts else {}
    places = value_places(results, summary.mean_places(results))
    return finite({**effects, **pictures, "counts": counts, "places": fixed_places(places)})


def _charts_of(results: Results, known: bool) -> dict[str, Any]:
    """Return the chart of known effects, the charts of parts removed from trained models by title, and the themes."""
    from taetpu.report.charts import THEMES, forest_plot
    from taetpu.report.components import TITLE, components_chart, examined_parts
    from taetpu.report.post_hoc import post_hoc_charts

    parts = {TITLE: components_chart(results)} if examined_parts(results) else {}
    pictures = {**post_hoc_charts(results), **parts}
    return {"forest": forest_plot(results) if known else None, "pictures": pictures, "themes": THEMES}


def _progress(arm: Arm, results: Results) -> str:
    """Return the number of an arm's runs that ended, and of those that solved the task or arrived."""
    ended = f"{sum(run['outcome'] in OUTCOMES for run in arm['runs'])}/{len(arm['runs'])}"
    return f"{ended}, {arm['reached']} {'arrived' if is_timed(results) else 'solved'}" if "reached" in arm else ended


def name_series(plan: Mapping[str, Any], series: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the label and the title of each series that has others than its name (see `MetricSpec`)."""
    specs = {name: describe_metric(plan, name) for name in series}
    return {name: (specs[name].label, specs[name].title) for name in sorted(specs) if specs[name].title != name}


def thin_series(steps: list[int], values: list[float | None]) -> tuple[list[int], list[float | None]]:
    """Return the series thinned to at most `MAX_POINTS` points.

    Thinning keeps the first and the last point, and the minimum and the maximum of each interval of points.
    """
    if len(steps) <= MAX_POINTS:
        return steps, values
    known = np.array([np.nan if value is None else value for value in values])
    kept: set[int] = {0, len(steps) - 1}
    for stretch in np.array_split(np.arange(len(steps)), MAX_POINTS // 2 - 1):
        inside = known[stretch]
        if np.isfinite(inside).any():
            kept |= {int(stretch[np.nanargmin(inside)]), int(stretch[np.nanargmax(inside)])}
    order = sorted(kept)
    return [steps[i] for i in order], [values[i] for i in order]
