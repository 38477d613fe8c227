"""`taetpu.plot`: charts of the metrics of studies."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias, Union

from taetpu.core.errors import UserError
from taetpu.report import metric_charts as report_plot
from taetpu.store.index import find_studies
from taetpu.store.study import StudyFolder

if TYPE_CHECKING:
    import altair as alt

    from taetpu.study.run import Outcome

Place: TypeAlias = Union[str, PathLike[str], "Outcome"]


def plot(
    studies: Place | Sequence[Place], metric: str, x: str = "steps", by: str = "arm", *, arms: Sequence[str] = ()
) -> "alt.TopLevelMixin":
    """Return a chart of a metric, which a notebook displays. This is the Python form of `taetpu plot`.

    Args:
        studies: one or more folders of studies, roots that contain studies, or outcomes of `taetpu.run`.
        metric: see `taetpu.report.metric_charts`.
        x: see `taetpu.report.metric_charts`.
        by: see `taetpu.report.metric_charts`.
        arms: see `taetpu.report.metric_charts`.

    Raises:
        UserError: if no study is found, if no run has the metric or setting, or if the chart would have too many lines.
    """
    places = studies if isinstance(studies, Sequence) and not isinstance(studies, str) else [studies]
    found = {folder.where: folder for place in places for folder in _folders(place)}
    if not found:
        raise UserError(
            "there are no studies to draw", remedy="Pass folders of studies, or roots that contain studies."
        )
    return report_plot.plot(list(found.values()), metric, x, by, arms=[arms] if isinstance(arms, str) else arms)


def _folders(place: Place) -> list[StudyFolder]:
    where = str(place) if isinstance(place, str | PathLike) else getattr(place, "folder", None)
    if where is None:
        remedy = "Pass a study's folder, a root of studies, or the result of taetpu.run."
        raise UserError(f"{place!r} is not a study", remedy=remedy)
    return find_studies(where, required=True)
