"""Charts over training: the curves of an arm and its baseline, and their difference.

The specs contain no data. `fill_spec` and `page.js` add the `datasets` and the parameters `colour`, `low` and `high`
(the vertical range). A page therefore contains each spec and each line only once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from taetpu.report import summary
from taetpu.report.charts import COLOURS, Spec, chart, responsive_spec
from taetpu.report.curves import Columns, Curves, as_rows

HEIGHT = 150
UNDECIDED = "#8663b5"
ARM_COLOURS = COLOURS | {v: UNDECIDED for v, colour in COLOURS.items() if colour == COLOURS["inconclusive"]}
"""Colours by verdict. Violet replaces grey, which is hard to see on the baseline's grey band."""


def curve_chart(metric: str) -> Spec:
    """Return the chart of an arm's curve and the baseline's curve.

    The chart shows means and bands over seeds for both arms, and a line for each seed of the arm. Its datasets are
    `arm`, `baseline` and `seeds`.
    """
    arm, baseline, seeds = (alt.Chart(alt.NamedData(name)) for name in ("arm", "baseline", "seeds"))
    x, (y, low, single) = _x(), (_y(field, summary.metric_with_unit(metric)) for field in ("mean", "low", "value"))
    layers = [
        baseline.mark_area(opacity=0.18, clip=True, style="baseline-band").encode(x=x, y=low, y2="high:Q"),
        arm.mark_area(opacity=0.2, clip=True, fill=alt.expr("colour")).encode(x=x, y=low, y2="high:Q"),
        seeds.mark_line(clip=True, strokeWidth=0.7, opacity=0.5, stroke=alt.expr("colour")).encode(
            x=x, y=single, detail="seed:N"
        ),
        arm.mark_line(clip=True, style="arm-line", stroke=alt.expr("colour")).encode(x=x, y=y, tooltip=_tooltip()),
        baseline.mark_line(clip=True, style="baseline-line").encode(x=x, y=y, tooltip=_tooltip()),
    ]
    return _with_parameters(alt.layer(*layers))


def difference_chart(metric: str) -> Spec:
    """Return the chart of arm minus baseline over training, paired by seed. Its only dataset is `arm`."""
    arm, title = alt.Chart(alt.NamedData("arm")), "arm minus baseline"
    layers = [
        chart([{}]).mark_rule(style="zero").encode(y=alt.datum(0)),
        arm.mark_area(opacity=0.25, clip=True, fill=alt.expr("colour")).encode(
            x=_x(), y=_y("low", title), y2=alt.Y2("high:Q")
        ),
        arm.mark_line(clip=True, style="arm-line", stroke=alt.expr("colour")).encode(
            x=_x(), y=_y("mean", title), tooltip=_tooltip()
        ),
    ]
    return _with_parameters(alt.layer(*layers))


def fill_spec(blank: Spec, datasets: Mapping[str, Columns], colour: str, bounds: tuple[float, float]) -> Spec:
    """Return the spec filled with datasets, colour and vertical range, as `page.js` does for the page."""
    values = {"colour": colour, "low": bounds[0], "high": bounds[1]}
    params = [{"name": name, "value": value} for name, value in values.items()]
    return {**blank, "datasets": {name: as_rows(columns) for name, columns in datasets.items()}, "params": params}


def drawings(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    """Return the specs, datasets and vertical ranges for each metric, in the form that `page.js` uses."""
    return [
        {
            "metric": found.metric,
            "curve": curve_chart(found.metric),
            "difference": difference_chart(found.metric),
            "arms": found.arms,
            "seeds": found.seeds,
            "differences": found.differences,
            "ranges": found.ranges,
            "difference_ranges": found.difference_ranges,
        }
        for found in curves
    ]


def _x() -> alt.X:
    thousands = "datum.value < 1000 ? datum.value : datum.value / 1000 + 'k'"
    return alt.X("step:Q", axis=alt.Axis(tickCount=4, labelExpr=thousands, grid=False), title="step")


def _y(field: str, title: str) -> alt.Y:
    scale = alt.Scale(domainMin=alt.expr("low"), domainMax=alt.expr("high"), nice=False, zero=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=alt.Axis(tickCount=4, domain=False, ticks=False), title=title)


def _tooltip() -> list[alt.Tooltip]:
    return [alt.Tooltip("step:Q"), *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("mean", "low", "high"))]


def _with_parameters(layered: Any) -> Spec:
    """Return the spec with parameters for colour and vertical range."""
    colour = alt.param("colour", value=UNDECIDED)
    bounds = [alt.param(name, value=value) for name, value in (("low", 0.0), ("high", 1.0))]
    return responsive_spec(layered.add_params(colour, *bounds).properties(height=HEIGHT))
