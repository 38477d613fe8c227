"""Charts of any metric in stored runs, either over training or as last values over a setting."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import altair as alt
import numpy as np

from taetpu.core.errors import UserError, suggest
from taetpu.report import summary
from taetpu.report.chart_files import WIDTH
from taetpu.report.charts import chart, label_options, themed, tooltips
from taetpu.report.curves import thin_indices
from taetpu.stats.plan import describe_metric
from taetpu.store.flat_config import differing_paths, format_value, read_settings
from taetpu.store.metrics import Series, curve_metric
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

AXES = ("steps", "samples", "tokens", "flops", "time")
MAX_LINES = 20
BASELINE = "#1f2328"
"""Colour of the baseline, which no other line has."""
# The schemes tableau10 and tableau20 of Vega.
TEN_COLOURS = (
    "#4c78a8", "#f58518", "#e45756", "#72b7b2", "#54a24b", "#eeca3b", "#b279a2", "#ff9da6", "#9d755d", "#bab0ac",
)  # fmt: skip
TWENTY_COLOURS = (
    "#4c78a8", "#9ecae9", "#f58518", "#ffbf79", "#54a24b", "#88d27a", "#b79a20", "#f2cf5b", "#439894", "#83bcb6",
    "#e45756", "#ff9d98", "#79706e", "#bab0ac", "#d67195", "#fcbfd2", "#b279a2", "#d6a5c9", "#9e765f", "#d8b5a5",
)  # fmt: skip
LEGEND, SHORTEST = 46, 16
"""Maximum number of characters in a label of the legend, and in a label of an axis with many values."""
HEIGHT = 320
"""Height of a chart in pixels."""


@dataclass(frozen=True)
class Run:
    """One stored run.

    Attributes:
        study: the study's name.
        folder: the run's folder.
        named: whether the run's arm is one of the study's arms; False for a tuning trial.
        baseline: whether the run's arm is the baseline, or the baseline at one scale of a ladder.
        plan: the frozen plan of the study.
    """

    study: str
    folder: RunFolder
    named: bool
    baseline: bool
    plan: Mapping[str, Any]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings of the run by path."""
        return read_settings(self.folder)

    @cached_property
    def series(self) -> Mapping[str, Series]:
        """Logged metrics of the run."""
        return self.folder.metrics()


def plot(
    studies: Sequence[StudyFolder],
    metric: str,
    x: str = "steps",
    by: str = "arm",
    *,
    arms: Sequence[str] = (),
    selects: Callable[[RunFolder], bool] = lambda run: True,
) -> alt.TopLevelMixin:
    """Plot a metric.

    Args:
        studies: the studies whose runs are drawn.
        metric: name of the metric. Curves of `val/...` metrics show the values on the sample of the validation split if
            the runs recorded them.
        x: horizontal axis. An entry of `AXES` draws curves over training, and a setting such as `model.dim` draws last
            values over this setting.
        by: how runs are grouped into lines: by "arm", "study", "run" or a setting. Each line is the mean of its runs,
            with a band from their minimum to their maximum.
        arms: names of the arms to draw. If the sequence is empty, all arms are drawn.
        selects: returns whether a run is drawn.

    Raises:
        UserError: If no run has the metric, the setting or one of the arms; if two studies have the same name; if `by`
            is given for a chart over a setting; or if there are too many lines.
    """
    runs = [
        Run(study.name, run, run.arm in named, run.arm.partition("@")[0] == next(iter(named)), plan)
        for study in studies
        for frozen in [study.read_study()]
        for named, plan in [(frozen["arms"], frozen.get("plan", {}))]
        for run in study.runs()
        if (not arms or run.arm in arms) and selects(run)
    ]
    if unknown := [arm for arm in arms if arm not in {run.folder.arm for run in runs}]:
        known = sorted({run.arm for study in studies for run in study.runs()})
        raise UserError(f"no run has arm {unknown[0]!r}", path=("arm",), remedy=suggest(unknown[0], known))
    measured = [run for run in runs if (curve_metric(metric, run.series) if x in AXES else metric) in run.series]
    if not measured:
        names = sorted({name for run in runs for name in run.series})
        raise UserError(f"no run has a metric {metric!r}", path=("metric",), remedy=suggest(metric, names))
    names = [study.name for study in studies]
    if twice := next((name for name in names if names.count(name) > 1), None):
        remedy = "Plot one study at a time, or rename one of them."
        raise UserError(f"two of the studies to plot are called {twice!r}", remedy=remedy)
    if x not in AXES and by != "arm":
        problem = f"`by` {by!r} groups training curves, but a chart over {x!r} has one point per run"
        raise UserError(problem, path=("by",), remedy="Remove --by.")
    if x in AXES:
        named = [run for run in measured if run.named] or measured
        return themed(_curves(named, metric, x, by, _line_names(named, by, len(studies) > 1)))
    _check_setting(measured, x, "x", AXES)
    # Tuning trials are drawn only if all other runs have the same value of the setting.
    named = [run for run in measured if run.named]
    return themed(
        _setting_chart(named if x in differing_paths([run.settings for run in named]) else measured, metric, x)
    )


# --- lines --------------------------------------------------------------------------------------------------------


def _line_names(runs: Sequence[Run], by: str, several: bool) -> Callable[[Run], str]:
    """Return a function that returns the name of a run's line."""
    named: dict[str, Callable[[Run], str]] = {
        "arm": lambda run: f"{run.study}/{run.folder.arm}" if several else run.folder.arm,
        "study": lambda run: run.study,
        "run": lambda run: f"{run.study}/{run.folder.arm}/{run.folder.seed}",
    }
    if by not in named:
        _check_setting(runs, by, "by", tuple(named))
    name = named.get(by, lambda run: f"{by.rpartition('.')[2]} {run.settings.get(by, '-')}")
    if (lines := len({name(run) for run in runs})) > MAX_LINES:
        problem = f"at most {MAX_LINES} lines can be distinguished, got {lines}"
        raise UserError(problem, path=("by",), remedy="Group by a setting with --by, or select arms with --arm.")
    return name


def _check_setting(runs: Sequence[Run], path: str, option: str, others: Sequence[str]) -> None:
    known = {setting for run in runs for setting in run.settings}
    if path not in known:
        raise UserError(f"no run has a setting {path!r}", path=(option,), remedy=suggest(path, [*others, *known]))


# --- curves --------------------------------------------------------------------------------------------------------


def _curves(runs: Sequence[Run], metric: str, x: str, by: str, name: Callable[[Run], str]) -> Any:
    lines: dict[str, list[Run]] = {}
    for run in runs:
        lines.setdefault(name(run), []).append(run)
    dashed = [line for line, members in lines.items() if all(run.baseline for run in members)]
    rows = [
        {"line": line, "baseline": line in dashed, **point}
        for line, members in lines.items()
        for point in _summarise_runs(members, metric, x)
    ]
    titles = {"time": "seconds of training, of the whole pack", "flops": "training FLOPs"}
    across = alt.X("x:Q", title=titles.get(x, x), axis=alt.Axis(format="~s" if x != "time" else ",.4~r", grid=False))
    palette = iter(TEN_COLOURS if len(lines) <= len(TEN_COLOURS) else TWENTY_COLOURS)
    scale = alt.Scale(domain=list(lines), range=[BASELINE if line in dashed else next(palette) for line in lines])
    legend_title = None if by in ("arm", "study", "run") else by
    legend = alt.Legend(symbolOpacity=1, symbolType="stroke", **label_options(list(lines), LEGEND))
    colour = alt.Color("line:N", title=legend_title, sort=list(lines), legend=legend, scale=scale)
    dashes = alt.Scale(domain=list(lines), range=[[5, 3] if line in dashed else [1, 0] for line in lines])
    # With the title and the domain of the colours, the dashes are in the same legend.
    dash = alt.StrokeDash("line:N", title=legend_title, sort=list(lines), legend=legend, scale=dashes)
    drawn = dict.fromkeys(curve_metric(metric, run.series) for run in runs)
    titles = {name: describe_metric(runs[0].plan, name).title for name in drawn}
    title = [part for name in drawn for part in (titles[name], summary.sample_note(name)) if part]
    up = alt.Y("mean:Q", title=title, scale=alt.Scale(zero=False))
    base = chart(rows).encode(x=across, color=colour)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=title), y2=alt.Y2("high:Q"))
    line = base.mark_line(strokeWidth=1.8).encode(
        y=up, strokeDash=dash, tooltip=tooltips("line:N", "x:Q", "mean:Q", "low:Q", "high:Q")
    )
    above = line.mark_line(strokeWidth=2.2).transform_filter("datum.baseline")  # baselines, over all other lines
    layers = [band, line.transform_filter("!datum.baseline"), above] if dashed else [band, line]
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _summarise_runs(runs: Sequence[Run], metric: str, x: str) -> Iterator[dict[str, float]]:
    """Yield mean, minimum and maximum over runs at each step, with the runs' mean position on the horizontal axis."""
    at: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        series = run.series[curve_metric(metric, run.series)]
        places = _axis_positions(run, series.step, x)
        for step, place, value in zip(series.step.tolist(), places.tolist(), series.value.tolist(), strict=True):
            if np.isfinite(value) and np.isfinite(place):
                at.setdefault(step, []).append((place, value))
    steps = np.array(sorted(at))
    for step in steps[thin_indices(len(steps))].tolist() if len(steps) else []:
        places, values = zip(*at[step], strict=True)
        mean = sum(values) / len(values)
        yield {"x": sum(places) / len(places), "mean": mean, "low": min(values), "high": max(values)}


def _axis_positions(run: Run, steps: np.ndarray, x: str) -> np.ndarray:
    """Return the positions of steps on the axis `x`, linearly interpolated between recorded points."""
    if x == "steps":
        return steps.astype(float)
    if x == "samples":
        return steps * float(run.settings.get("train.batch_size", np.nan))
    noted = run.folder.times().get("seconds") if x == "time" else run.series.get(x)
    if noted is None or not len(noted.step):
        return np.full(len(steps), np.nan)
    value = _elapsed(noted.value) if x == "time" else noted.value
    return np.interp(steps, np.r_[0, noted.step], np.r_[0.0, value], right=np.nan)


def _elapsed(seconds: np.ndarray) -> np.ndarray:
    """Return the seconds since the start of training. Recorded seconds restart at zero in each resumed process."""
    since = np.diff(seconds, prepend=0.0)
    return np.cumsum(np.where(since < 0, seconds, since))


# --- over a setting ------------------------------------------------------------------------------------------------


def _setting_chart(runs: Sequence[Run], metric: str, path: str) -> Any:
    """Return the chart of last values over a setting, with the mean over runs at each value of the setting."""
    rows = [
        {"setting": run.settings.get(path), "value": float(value), "arm": run.folder.arm, "seed": run.folder.seed}
        for run in runs
        if np.isfinite(value := run.series[metric].value[-1])
    ]
    numeric = all(type(row["setting"]) in (int, float) for row in rows)
    rows = rows if numeric else [{**row, "setting": format_value(row["setting"])} for row in rows]
    values = list(dict.fromkeys(row["setting"] for row in rows))
    plain = "format(datum.value, '~g')"  # logarithmic axes round labels to one digit by default
    axis = (
        alt.Axis(values=sorted(values), labelExpr=plain, grid=False)
        if numeric
        else alt.Axis(labelAngle=0, grid=False, **label_options(values, max(SHORTEST, LEGEND // len(values))))
    )
    scale = alt.Scale(zero=False, nice=False, padding=30, type=_scale_type(values)) if numeric else alt.Undefined
    across = alt.X("setting:Q" if numeric else "setting:N", title=path, axis=axis, scale=scale)
    means = [
        {"setting": value, "mean": float(np.mean([row["value"] for row in rows if row["setting"] == value]))}
        for value in values
    ]
    title = describe_metric(runs[0].plan, metric).title
    dots = chart(rows).mark_circle(size=30, opacity=0.45).encode(
        x=across,
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
        tooltip=tooltips("arm:N", "seed:N", "value:Q"),
    )  # fmt: skip
    mean = chart(means).encode(x=across, y=alt.Y("mean:Q", title=title), tooltip=tooltips("mean:Q"))
    line = [mean.mark_line(strokeWidth=1.2, color="#8a9099")] if numeric else []
    drawn = alt.layer(dots, *line, mean.mark_tick(orient="horizontal", thickness=3, size=26, color="#d5562f"))
    return drawn.properties(width=WIDTH, height=HEIGHT)


def _scale_type(values: Sequence[float]) -> Literal["log", "linear"]:
    return "log" if min(values) > 0 and max(values) >= 8 * min(values) else "linear"
