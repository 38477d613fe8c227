"""Charts over training: the curves of an arm and its baseline, and their difference.

The specs contain no data. `fill_spec` and `page.js` add the `datasets` and the parameters `colour`, `low` and `high`
(the vertical range). A page therefore contains each spec and each line only once.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import altair as alt

from taetpu.report.charts import Spec, chart, responsive_spec
from taetpu.report.curves import Columns, Curves, as_rows

HEIGHT = 150


@cache
def curve_chart(title: str) -> Spec:
    """Return the chart of an arm's curve and the baseline's curve. `title` is that of the vertical axis.

    The chart shows means and ranges over seeds for both arms, and a line for each seed of the arm. The baseline has
    dashed lines without an area, because a second area would hide an arm in the colour of an inconclusive verdict. The
    datasets are `arm`, `baseline` and `seeds`.
    """
    baseline, seeds = (alt.Chart(alt.NamedData(name)).encode(x=_x()) for name in ("baseline", "seeds"))
    bounds = [baseline.mark_line(clip=True, style="baseline-range").encode(y=_y(end, title)) for end in ("low", "high")]
    layers = [
        *bounds,
        _band(title),
        seeds.mark_line(clip=True, strokeWidth=0.7, opacity=0.5, stroke=alt.expr("colour")).encode(
            y=_y("value", title), detail=alt.Detail("seed:N")
        ),
        _line(title),
        baseline.mark_line(clip=True, style="baseline-line").encode(y=_y("mean", title), tooltip=_tooltip()),
    ]
    return _with_parameters(layers)


@cache
def difference_chart() -> Spec:
    """Return the chart of arm minus baseline over training, paired by seed. Its only dataset is `arm`."""
    title = "arm minus baseline"
    zero = chart([{}]).mark_rule(style="zero").encode(y=alt.YDatum(0))
    return _with_parameters([zero, _band(title), _line(title)])


def _band(title: str) -> alt.Chart:
    area = alt.Chart(alt.NamedData("arm")).mark_area(opacity=0.2, clip=True, fill=alt.expr("colour"))
    return area.encode(x=_x(), y=_y("low", title), y2=alt.Y2("high:Q"))


def _line(title: str) -> alt.Chart:
    line = alt.Chart(alt.NamedData("arm")).mark_line(clip=True, style="arm-line", stroke=alt.expr("colour"))
    return line.encode(x=_x(), y=_y("mean", title), tooltip=_tooltip())


def fill_spec(blank: Spec, datasets: Mapping[str, Columns], colour: str, bounds: tuple[float, float]) -> Spec:
    """Return the spec filled with datasets, colour and vertical range, as `page.js` does for the page."""
    values = {"colour": colour, "low": bounds[0], "high": bounds[1]}
    params = [{"name": name, "value": value} for name, value in values.items()]
    return {**blank, "datasets": {name: as_rows(columns) for name, columns in datasets.items()}, "params": params}


def drawings(curves: Sequence[Curves]) -> list[dict[str, Any]]:
    """Return the specs, datasets and vertical ranges for each metric, in the form that `page.js` uses."""
    return [{**vars(each), "curve": curve_chart(each.title), "difference": difference_chart()} for each in curves]


def _x() -> alt.X:
    thousands = "datum.value < 1000 ? datum.value : datum.value / 1000 + 'k'"
    return alt.X("step:Q", axis=alt.Axis(tickCount=4, labelExpr=thousands, grid=False), title="step")


def _y(field: str, title: str) -> alt.Y:
    scale = alt.Scale(domainMin=alt.expr("low"), domainMax=alt.expr("high"), nice=False, zero=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=alt.Axis(tickCount=4, domain=False, ticks=False), title=title)


def _tooltip() -> list[alt.Tooltip]:
    return [alt.Tooltip("step:Q"), *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("mean", "low", "high"))]


def _with_parameters(layers: Sequence[alt.Chart]) -> Spec:
    """Return the spec with parameters for colour and vertical range."""
    colour = alt.param("colour", value="grey")
    bounds = [alt.param(name, value=value) for name, value in (("low", 0.0), ("high", 1.0))]
    return responsive_spec([layers[0].add_params(colour, *bounds), *layers[1:]], height=HEIGHT)
