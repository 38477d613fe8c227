"""The loss by position in a sequence: a curve for each arm, and a table of some positions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from taetpu.report import summary
from taetpu.report.charts import Spec, chart, label_options, responsive_spec
from taetpu.report.curves import Columns, as_rows, summarise_seeds, thin_indices
from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.load import COMPLETED
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results
from taetpu.store.metrics import Series, metric_on_split
from taetpu.store.study import StudyFolder

SUMS = ("nll", "weight", "position")
"""The sums that the evaluation metric `loss_by_position` stores, in ranges of positions."""
HEIGHT, MAX_ARMS, LEGEND, TABLE_POINTS = 230, 20, 40, 6


@dataclass(frozen=True)
class PositionCurves:
    """The loss by position on one evaluation set.

    Attributes:
        title: the title of the chart.
        axis: the title of the vertical axis.
        arms: mean, minimum and maximum over seeds at each position (`step`), by arm.
    """

    title: str
    axis: str
    arms: Mapping[str, Columns]


def read_position_curves(folder: StudyFolder, results: Results) -> list[PositionCurves]:
    """Read the loss by position of all finished runs, for each evaluation set on which it was measured.

    Raises:
        UserError: If a stored evaluation is damaged.
    """
    by_entry: dict[str, dict[str, list[Series]]] = {}
    for arm in results["arms"]:
        finished = [(run["seed"], run["id"]) for run in arm["runs"] if run["outcome"] in COMPLETED and run["id"]]
        for seed, run_id in finished:
            sums = folder.run(arm["name"], seed, run_id).evaluation()
            for entry in (name.removesuffix(".position") for name in sums if name.endswith(".position")):
                nll, weight, position = (sums[f"{entry}.{name}"] for name in SUMS)
                known = weight > 0
                places = np.rint(position[known] / weight[known]).astype(np.int64)
                series = Series(places, nll[known] / weight[known])
                by_entry.setdefault(entry, {}).setdefault(arm["name"], []).append(series)
    curves = []
    for entry, arms in by_entry.items():
        loss = describe_metric(results["plan"], metric_on_split("loss", entry.partition("/")[0]))
        lines = {arm: summarise_seeds(series) for arm, series in arms.items()}
        curves.append(PositionCurves(f"{loss.label} by position", loss.title, lines))
    return curves


def position_chart(curves: PositionCurves) -> Spec:
    """Return the chart of the loss by position, with a line for each arm and a band over its seeds."""
    names = list(curves.arms)[:MAX_ARMS]
    rows = [{"arm": name, **row} for name in names for row in as_rows(curves.arms[name])]
    legend = alt.Legend(symbolOpacity=1, symbolType="stroke", **label_options(names, LEGEND))
    scale = alt.Scale(scheme="tableau20" if len(names) > 10 else "tableau10")
    base = chart(rows).encode(
        x=alt.X("step:Q", title="position in the sequence", axis=alt.Axis(grid=False)),
        color=alt.Color("arm:N", title=None, sort=names, legend=legend, scale=scale),
    )
    mean = alt.Y("mean:Q", title=curves.axis, scale=alt.Scale(zero=False))
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=curves.axis), y2="high:Q")
    line = base.mark_line(strokeWidth=1.6).encode(y=mean, tooltip=["arm:N", "step:Q", "mean:Q"])
    return responsive_spec(alt.layer(band, line).properties(height=HEIGHT))


def position_section(results: Results, positions: Sequence[PositionCurves]) -> Section:
    """Return the section on the loss by position."""
    places, tables = summary.mean_places(results), []
    for curves in positions:
        steps = next(iter(curves.arms.values()))["step"]
        shown = [steps[i] for i in thin_indices(len(steps), TABLE_POINTS)]
        rows = [
            [name, *(formatting.number(float(np.interp(at, c["step"], c["mean"])), places) for at in shown)]
            for name, c in curves.arms.items()
        ]
        tables.append(Table((curves.title, *(f"{at:.4g}" for at in shown)), rows))
    lead = (
        "The mean loss over seeds at positions in the sequence, counted from 1. Each value is the mean over a range of "
        "neighbouring positions. The loss of a model that uses its context falls with the position."
    )
    return Section("Loss by position", lead, tables, [(curves.title, curves.title) for curves in positions])
