"""`taetpu.judge`: verdicts on a table of results, for notebooks and for `taetpu judge`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.core.errors import UserError, suggest
from taetpu.core.notebook_html import paragraph
from taetpu.judging.arrangement import arrange, folder_name
from taetpu.judging.columns import Columns, read_runs
from taetpu.judging.history import ELSEWHERE, Question, Source, read_earlier
from taetpu.judging.sources import default_name, read_source
from taetpu.judging.study_files import replace_study, write_study
from taetpu.programs.records import Record
from taetpu.report.build import build_report
from taetpu.report.opened_study import OpenedStudy
from taetpu.stats.analyse import analyse
from taetpu.stats.power import ALPHA
from taetpu.stats.results import Results
from taetpu.store.addresses import Match
from taetpu.store.backend import TemporaryStore, open_store
from taetpu.store.gcs_client import parse_address
from taetpu.store.study import StudyFolder

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

DIRECTIONS = ("min", "max")
FAMILIES = (
    "Each metric is judged on its own: the chance of a false verdict holds for each of them, not for all together."
)


@dataclass(frozen=True, repr=False)
class Judged:
    """Verdicts on a table, which a notebook displays.

    Attributes:
        studies: a study for each metric, with `results`, `arms`, `runs` and `metrics` (see `taetpu.open_study`).
        reports: the location of each file of a study's report by metric and format; empty unless the study was stored.
    """

    studies: Mapping[str, OpenedStudy]
    reports: Mapping[str, Mapping[str, str]]

    @property
    def results(self) -> Results:
        """The results of the only metric, as in `results.json`.

        Raises:
            UserError: if several metrics were judged.
        """
        return self._study("").results

    @property
    def arms(self) -> "pd.DataFrame":
        """A row for each metric and arm with its effect, intervals and verdict."""
        return self._join("arms")

    @property
    def runs(self) -> "pd.DataFrame":
        """A row for each metric and run with its value."""
        return self._join("runs")

    def chart(self, metric: str = "") -> "alt.TopLevelMixin":
        """Return the effects on a metric as a chart, which `.save(file)` writes to a file.

        Args:
            metric: the metric. It may be left out if one was judged.

        Raises:
            UserError: if the metric was not judged, or no arm is compared with the baseline.
        """
        return self._study(metric).report()

    def _study(self, metric: str) -> OpenedStudy:
        if not metric and len(self.studies) == 1:
            return next(iter(self.studies.values()))
        if metric not in self.studies:
            problem = f"{metric!r} was not judged" if metric else f"{len(self.studies)} metrics were judged"
            raise UserError(problem, path=("metric",), remedy=suggest(metric, self.studies))
        return self.studies[metric]

    def _join(self, table: str) -> "pd.DataFrame":
        import pandas as pd

        parts = {metric: getattr(study, table) for metric, study in self.studies.items()}
        if len(parts) == 1:
            return next(iter(parts.values()))
        # Columns that are empty for a metric would otherwise decide the types of the others.
        renamed = [part.rename(columns={metric: "value"}).astype(object) for metric, part in parts.items()]
        for metric, part in zip(parts, renamed, strict=True):
            part.insert(0, "metric", metric)
        return pd.concat(renamed, ignore_index=True).infer_objects()

    def __repr__(self) -> str:
        """Return the headline of each metric."""
        from taetpu.report.summary import headline

        return f"Judged({' '.join(headline(study.results) for study in self.studies.values())})"

    def _repr_html_(self) -> str:
        """Return the headlines, verdicts and charts as HTML for notebooks."""
        parts = [study._repr_html_() for study in self.studies.values()]
        return "".join([*parts, *([paragraph(FAMILIES)] if len(parts) > 1 else [])])


def judge(
    table: Any,
    *,
    metric: str | Sequence[str],
    better: str | Sequence[str],
    arm: str | Sequence[str] = (),
    seed: str = "",
    baseline: Any = "",
    block: str | Sequence[str] = (),
    step: str = "",
    wide: str = "",
    ignore: str | Sequence[str] = (),
    where: str | Sequence[str] = (),
    unpaired: bool = False,
    equivalence: float | Sequence[float] | None = None,
    alpha: float = ALPHA,
    kind: str = "",
    out: str | Path | None = None,
) -> Judged:
    """Judge the arms of a table of results.

    Args:
        table: a pandas table, or what pandas makes a table of, or the path of a file or folder.
        metric: the metrics, each a column. In a wide table, the name of what the cells hold.
        better: `min` if lower values are better and `max` if higher ones are, for all metrics or for each.
        arm: the column that names the arm, or several columns whose values do.
        seed: the column of seeds. Runs of equal seeds are compared with each other.
        baseline: the arm with which the others are compared.
        block: further columns, such as the dataset. Runs are compared within each combination of their values.
        step: the column of steps, if a run has a row for each. The last value of a metric counts.
        wide: `arms` if each other column holds the values of one arm, `seeds` if it holds those of one seed.
        ignore: columns of a wide table that hold neither.
        where: conditions such as `experiment=first` or `lr<=0.1`. Only runs that satisfy all of them are judged.
        unpaired: whether runs with equal seeds share nothing, so that all runs of an arm are compared with all runs of
            the baseline (within blocks). So are runs whose seeds do not occur in the baseline.
        equivalence: the margin below which a difference does not matter, for all metrics or for each.
        alpha: the error rate of the verdicts on a metric.
        kind: the format of a folder, if its layout does not say it.
        out: the folder in which the study and its report are stored. With several metrics, each has a folder, whose
            name ends in the metric's. By default, nothing is stored.

    Raises:
        UserError: If a column, an arm or a cell is missing or invalid, or the folder holds anything else.
    """
    metrics = _as_tuple(metric)
    columns = Columns(
        metrics=metrics,
        arm=_as_tuple(arm),
        seed=str(seed),
        block=_as_tuple(block),
        step=str(step),
        wide=_wide(wide),
        ignore=_as_tuple(ignore),
        where=_as_tuple(where),
        unpaired=unpaired,
    )
    questions = _questions(metrics, _as_tuple(better), equivalence, alpha)
    records, source = read_source(table, kind, bool(step))
    folders = {} if out is None else _folders(str(out), metrics)
    return judge_records(records, source, columns, questions, "" if baseline is None else str(baseline), folders)


def judge_records(
    records: Sequence[Record],
    source: Source,
    columns: Columns,
    questions: Sequence[Question],
    baseline: str,
    folders: Mapping[str, StudyFolder],
) -> Judged:
    """Judge runs that were read from any source.

    Args:
        records: the runs.
        source: where they come from.
        columns: the roles of their columns.
        questions: what is asked of each metric.
        baseline: the name of the baseline.
        folders: the folder of each metric in which its study is stored; empty to store nothing.

    Raises:
        UserError: see `judge`.
    """
    arranged = arrange(read_runs(records, columns, source.name), columns, baseline, source.name)
    earlier = {metric: read_earlier(folder, source, records) for metric, folder in folders.items()}
    studies, reports = dict[str, OpenedStudy](), dict[str, Mapping[str, str]]()
    written = list[tuple[StudyFolder, StudyFolder]]()
    for question in questions:
        if not any(question.metric in run.metrics for run in arranged.runs.values()):
            problem = f"no run has a value of {question.metric!r}"
            raise UserError(problem, path=("--metric",), file=source.name, remedy="Choose a metric with values.")
        folder = folders.get(question.metric)
        name = folder.name if folder else folder_name(default_name(Path(source.path or source.name)))
        made = StudyFolder(TemporaryStore(_root(folder)), name)
        write_study(made, arranged, columns, question, source, earlier.get(question.metric))
        results = analyse(made)
        studies[question.metric] = OpenedStudy(Match((folder or made,), address=name), results)
        if folder:
            reports[question.metric] = build_report(made)
            written.append((made, folder))
    for made, folder in written:  # nothing is written if any of the metrics cannot be judged
        try:
            replace_study(made, folder)
        except UserError as error:
            if isinstance(error.__cause__, FileNotFoundError):  # no folder can be made here, such as in /proc
                raise UserError(error.problem, path=("--out",), file=folder.where, remedy=ELSEWHERE) from None
            raise
    return Judged(studies, reports)


def _root(folder: StudyFolder | None) -> str:
    return "memory" if folder is None else folder.where.removesuffix(f"/{folder.name}")


def _folders(out: str, metrics: Sequence[str]) -> dict[str, StudyFolder]:
    """Return the folder of each metric: `out` itself for a single metric, and otherwise `out` with its name."""
    address = parse_address(out)
    path = Path(os.path.abspath(Path(out).expanduser()))
    root, name = (str(address.parent), address.last) if address is not None else (path.parent, path.name)
    files = [] if address is not None else [place for place in (path, *path.parents) if place.is_file()]
    if not name or files:
        problem = f"this is a file, not a folder: {files[0]}" if files else "this is not the folder of a single study"
        raise UserError(problem, path=("--out",), file=out, remedy=ELSEWHERE)
    names = {metric: name if len(metrics) == 1 else folder_name(f"{name}-{metric}") for metric in metrics}
    return {metric: StudyFolder(open_store(root, sync=False), named) for metric, named in names.items()}


def _questions(
    metrics: Sequence[str], better: Sequence[str], equivalence: float | Sequence[float] | None, alpha: float
) -> list[Question]:
    margins = [equivalence] if equivalence is None or isinstance(equivalence, int | float) else list(equivalence)
    margins = margins or [None]
    if not metrics:
        raise UserError("no metric is named", path=("--metric",), remedy="Name the column of a metric.")
    for option, values in (("--better", better), ("--equivalence", margins)):
        if len(values) not in (1, len(metrics)):
            several = f"1 or {len(metrics)} values" if len(metrics) > 1 else "1 value"
            problem = f"{several} may be given for {len(metrics)} metric{'s' * (len(metrics) > 1)}, got {len(values)}"
            raise UserError(problem, path=(option,), remedy="Give a value for all metrics, or for each in their order.")
    for direction in better:
        if direction not in DIRECTIONS:
            problem = f"{direction!r} is not a direction"
            remedy = "Use min if lower values are better, and max if higher values are."
            raise UserError(problem, path=("--better",), remedy=remedy)
    for margin in margins:
        if margin is not None and not 0 < margin < float("inf"):
            problem = f"the margin must be a number above 0, got {margin}"
            raise UserError(problem, path=("--equivalence",), remedy="Use the largest difference that does not matter.")
    if not 0 < alpha < 0.5:
        raise UserError(f"alpha must be between 0 and 0.5, got {alpha}", path=("--alpha",), remedy="Use e.g. 0.05.")
    number = len(metrics)
    directions = list(better) * (number if len(better) == 1 else 1)
    margins = margins * (number if len(margins) == 1 else 1)
    return [
        Question(metric, "min" if direction == "min" else "max", margin, alpha)
        for metric, direction, margin in zip(metrics, directions, margins, strict=True)
    ]


def _wide(value: str) -> Any:
    if value not in ("", "arms", "seeds"):
        remedy = "Use arms if each column holds the values of one arm, and seeds if it holds those of one seed."
        raise UserError(f"unknown form of a wide table: {value!r}", path=("--wide",), remedy=remedy)
    return value


def _as_tuple(value: Any) -> tuple[str, ...]:
    """Return names of columns, which are numbers in tables that pandas has numbered."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)
