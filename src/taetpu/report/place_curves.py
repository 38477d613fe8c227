"""The loss by position in a sequence, and metrics by layer: a curve for each arm, and a table of some places."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from taetpu.report import summary
from taetpu.report.charts import Spec, chart, label_options, responsive_spec, tooltips
from taetpu.report.curves import Columns, as_rows, summarise_seeds, thin_indices
from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.load import COMPLETED
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results
from taetpu.store.metrics import SAMPLED, Series, metric_on_split
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

SUMS = ("nll", "weight", "position")
"""The sums that the evaluation metric `loss_by_position` stores, in ranges of positions."""
HEIGHT, MAX_ARMS, LEGEND, TABLE_POINTS, TABLE_LAYERS = 230, 20, 40, 6, 12
POSITION, LAYER = "position in the sequence", "layer"
OF_LAYER = re.compile(r"(.+)\.layers\.(\d+)")
"""The name of a metric of one layer (see `optim.eval_metrics.sites`)."""
WIDE_RANGE = 100
"""Ratio of the largest to the smallest value from which on the vertical axis is logarithmic."""


@dataclass(frozen=True)
class PlaceCurves:
    """A metric over places: positions in a sequence, or layers.

    Attributes:
        title: the title of the chart.
        axis: the title of the vertical axis.
        arms: mean, minimum and maximum over seeds at each place (`step`), by arm.
        across: what the places are: `POSITION` or `LAYER`.
    """

    title: str
    axis: str
    arms: Mapping[str, Columns]
    across: str


def read_place_curves(folder: StudyFolder, results: Results) -> list[PlaceCurves]:
    """Read the loss by position, and the metrics by layer, of all finished runs.

    Raises:
        UserError: If a stored evaluation is damaged.
    """
    return [*_by_position(folder, results), *_by_layer(folder, results)]


def _finished(folder: StudyFolder, results: Results) -> Iterator[tuple[str, RunFolder]]:
    """Yield the finished runs, each with its arm."""
    for arm in results["arms"]:
        for run in arm["runs"]:
            if run["outcome"] in COMPLETED and run["id"]:
                yield arm["name"], folder.run(arm["name"], run["seed"], run["id"])


def _by_position(folder: StudyFolder, results: Results) -> Iterator[PlaceCurves]:
    """Yield the loss by position for each evaluation set on which it was measured."""
    by_entry: dict[str, dict[str, list[Series]]] = {}
    for arm, run in _finished(folder, results):
        sums = run.evaluation()
        for entry in (name.removesuffix(".position") for name in sums if name.endswith(".position")):
            nll, weight, position = (sums[f"{entry}.{name}"] for name in SUMS)
            known = weight > 0
            places = np.rint(position[known] / weight[known]).astype(np.int64)
            series = Series(places, nll[known] / weight[known])
            by_entry.setdefault(entry, {}).setdefault(arm, []).append(series)
    for entry, arms in by_entry.items():
        loss = describe_metric(results["plan"], metric_on_split("loss", entry.partition("/")[0]))
        lines = {arm: summarise_seeds(series) for arm, series in arms.items()}
        yield PlaceCurves(f"{loss.label} by position", loss.title, lines, POSITION)


def _by_layer(folder: StudyFolder, results: Results) -> Iterator[PlaceCurves]:
    """Yield each metric that was measured by layer, at the end of training and on the split of the primary metric."""
    split = metric_on_split(results["primary"], "val") if results["primary"].startswith(SAMPLED) else results["primary"]
    by_metric: dict[str, dict[str, list[Series]]] = {}
    for arm, run in _finished(folder, results):
        values: dict[str, dict[int, float]] = {}
        for name, value in (run.result() or {})["metrics"].items():
            if (match := OF_LAYER.fullmatch(name)) and value is not None:
                values.setdefault(match[1], {})[int(match[2])] = value
        for metric, layers in values.items():
            if metric.partition("/")[0] == split.partition("/")[0]:
                series = Series(np.array(sorted(layers)), np.array([layers[number] for number in sorted(layers)]))
                by_metric.setdefault(metric, {}).setdefault(arm, []).append(series)
    for metric, arms in by_metric.items():
        about = describe_metric(results["plan"], metric)
        lines = {arm: summarise_seeds(series) for arm, series in arms.items()}
        yield PlaceCurves(f"{about.label} by layer", about.title, lines, LAYER)


def place_chart(curves: PlaceCurves) -> Spec:
    """Return the chart of a metric over places, with a line for each arm and a band over its seeds."""
    names = list(curves.arms)[:MAX_ARMS]
    rows = [{"arm": name, **row} for name in names for row in as_rows(curves.arms[name])]
    legend = alt.Legend(symbolOpacity=1, symbolType="stroke", **label_options(names, LEGEND))
    scale = alt.Scale(scheme="tableau20" if len(names) > 10 else "tableau10")
    axis = alt.Axis(grid=False, tickMinStep=1, format="d") if curves.across == LAYER else alt.Axis(grid=False)
    base = chart(rows).encode(
        x=alt.X("step:Q", title=curves.across, axis=axis),
        color=alt.Color("arm:N", title=None, sort=names, legend=legend, scale=scale),
    )
    low, high = (pick(row[end] for row in rows) for pick, end in ((min, "low"), (max, "high")))
    wide = low > 0 and high >= WIDE_RANGE * low
    vertical = alt.Scale(zero=False, type="log" if wide else "linear")
    mean = alt.Y("mean:Q", title=curves.axis, scale=vertical)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=curves.axis, scale=vertical), y2=alt.Y2("high:Q"))
    line = base.mark_line(strokeWidth=1.6).encode(y=mean, tooltip=tooltips("arm:N", "step:Q", "mean:Q"))
    return responsive_spec([band, line], height=HEIGHT)


def place_sections(results: Results, curves: Sequence[PlaceCurves]) -> Iterator[Section]:
    """Yield the sections on the loss by position and on metrics by layer."""
    leads = {
        POSITION: "The mean loss over seeds at positions in the sequence, counted from 1. Each value is the mean over "
        "a range of neighbouring positions. The loss of a model that uses its context falls with the position.",
        LAYER: "The mean over seeds in each layer, counted from 0. The bands of the charts lead from the smallest to "
        "the largest value of a seed. Verdicts are about the primary metric alone.",
    }
    titles = {POSITION: "Loss by position", LAYER: "Metrics by layer"}
    for across, lead in leads.items():
        shown = [each for each in curves if each.across == across]
        tables = [_position_table(each, summary.mean_places(results)) for each in shown]
        tables = tables if across == POSITION else list(map(_layer_table, shown))
        yield Section(titles[across], lead, tables, [(each.title, each.title) for each in shown])


def _position_table(curves: PlaceCurves, places: int) -> Table:
    """Return the table of the means at some positions."""
    steps = next(iter(curves.arms.values()))["step"]
    shown = [steps[i] for i in thin_indices(len(steps), TABLE_POINTS)]
    rows = [
        [name, *(formatting.number(float(np.interp(at, c["step"], c["mean"])), places) for at in shown)]
        for name, c in curves.arms.items()
    ]
    return Table((curves.title, *(f"{at:.4g}" for at in shown)), rows)


def _layer_table(curves: PlaceCurves) -> Table:
    """Return the table of the means in each layer, or in some of many layers."""
    layers = sorted({layer for columns in curves.arms.values() for layer in columns["step"]})
    shown = [layers[i] for i in thin_indices(len(layers), TABLE_LAYERS)]
    rows = []
    for name, columns in curves.arms.items():
        ranges = zip(columns["mean"], columns["low"], columns["high"], strict=True)
        values = {
            layer: formatting.number(mean, formatting.decimals(high - low, mean))
            for layer, (mean, low, high) in zip(columns["step"], ranges, strict=True)
        }
        rows.append([name, *(values.get(layer, "-") for layer in shown)])
    return Table((curves.title, *(f"{layer:.0f}" for layer in shown)), rows)
