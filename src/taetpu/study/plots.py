"""`taetpu.plot`: charts of the metrics of studies."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias, Union

from taetpu.core.errors import UserError
from taetpu.report import metric_charts as report_plot
from taetpu.store.addresses import Match, resolve
from taetpu.store.study import StudyFolder

if TYPE_CHECKING:
    import altair as alt

    from taetpu.study.outcome import Outcome

Place: TypeAlias = Union[str, PathLike[str], Match, "Outcome"]


def plot(
    studies: Place | Sequence[Place], metric: str = "", x: str = "steps", by: str = "arm", *, arms: Sequence[str] = ()
) -> "alt.TopLevelMixin":
    """Return a chart of a metric, which a notebook displays. This is the Python form of `taetpu plot`.

    Args:
        studies: one or more addresses of studies, arms or runs (see `taetpu.store.addresses`), folders that contain
            several studies, or outcomes of `taetpu.run`.
        metric: see `taetpu.report.metric_charts`. By default, it is the studies' primary metric.
        x: see `taetpu.report.metric_charts`.
        by: see `taetpu.report.metric_charts`.
        arms: see `taetpu.report.metric_charts`.

    Raises:
        UserError: if no study is found, if no run has the metric or setting, or if the chart would have too many lines.
    """
    places = studies if isinstance(studies, Sequence) and not isinstance(studies, str) else [studies]
    matches = [_match(place) for place in places]
    folders = {folder.where: folder for match in matches for folder in match.studies}
    if not folders:
        raise UserError("there are no studies to draw", remedy="Pass addresses of studies, or folders with studies.")
    return report_plot.plot(
        list(folders.values()),
        metric or _primary_metric(list(folders.values())),
        x,
        by,
        arms=[arms] if isinstance(arms, str) else arms,
        selects=lambda run: any(match.selects(run) for match in matches),
    )


def _primary_metric(studies: Sequence[StudyFolder]) -> str:
    """Return the primary metric that all studies have in common. Raises `UserError` if they differ."""
    metrics = {study.name: study.read_study()["plan"]["primary"] for study in studies}
    first = next(iter(metrics.values()))
    if set(metrics.values()) != {first}:
        listed = ", ".join(f"{metric} ({name})" for name, metric in metrics.items())
        remedy = "Choose one with --metric (in Python: `metric`)."
        raise UserError(f"the studies have different primary metrics: {listed}", path=("metric",), remedy=remedy)
    return first


def _match(place: Place) -> Match:
    if isinstance(place, Match):
        return place
    address = place if isinstance(place, str | PathLike) else getattr(place, "folder", None)
    if address is None:
        remedy = "Pass the address of a study, arm or run, or the result of taetpu.run."
        raise UserError(f"{place!r} is not a study", remedy=remedy)
    return resolve(str(address))
