"""`taetpu.open_study`: a stored study as tables and pictures for notebooks."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taetpu.core.errors import UserError
from taetpu.report import charts, summary
from taetpu.report.chart_files import as_altair
from taetpu.report.notebook import notebook_html
from taetpu.report.text_formats import arm_rows, run_rows
from taetpu.stats.analyse import compute_results
from taetpu.stats.results import Arm, Results, Run
from taetpu.store.addresses import Match, resolve
from taetpu.store.frame import metrics_table
from taetpu.store.study import StudyFolder

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd


@dataclass(frozen=True, repr=False)
class OpenedStudy:
    """A stored study. Its results are computed from the finished runs when they are first read, and are not stored.

    The tables `arms`, `runs` and `metrics` show the arm or run that the address names, if it names one. Everything else
    shows the whole study.

    Attributes:
        match: What the address names.
        computed: The results, if they were computed before.
    """

    match: Match
    computed: Results | None = None

    @property
    def folder(self) -> StudyFolder:
        """The study's folder."""
        return self.match.study

    @cached_property
    def results(self) -> Results:
        """The results, as in `results.json`; without verdicts while runs are missing.

        Raises:
            UserError: if the study or a run is damaged.
        """
        return compute_results(self.folder) if self.computed is None else self.computed

    @property
    def arms(self) -> "pd.DataFrame":
        """A row for each arm with its effect, intervals and verdict; the columns of `arms.csv` in the report."""
        return self._table(*arm_rows(self.results))

    @property
    def runs(self) -> "pd.DataFrame":
        """A row for each finished run with its arm, seed, ID, outcome and value of the primary metric."""
        match = self.match

        def is_named(run: Run) -> bool:
            return match.seed in (None, run["seed"]) and (match.run is None or run["id"] == match.run.id)

        named: list[Arm] = [{**arm, "runs": [*filter(is_named, arm["runs"])]} for arm in self.results["arms"]]
        return self._table(*run_rows({**self.results, "arms": named}))

    @property
    def metrics(self) -> "pd.DataFrame":
        """All stored metrics of the runs, with the columns `arm, seed, step, metric, value`."""
        return metrics_table(self.match.runs())

    def report(self) -> "alt.TopLevelMixin":
        """Return the forest plot of the report, which a notebook displays and `.save(file)` writes to a file.

        Raises:
            UserError: if no arm is compared with a baseline, or the study or a run is damaged.
        """
        chart = charts.forest_plot(self.results)
        if chart is None:
            remedy = "Add arms to the study."
            raise UserError("the study has no arm to compare with the baseline", file=self.folder.where, remedy=remedy)
        return as_altair(chart)

    def _table(self, columns: list[str], rows: list[list[Any]]) -> "pd.DataFrame":
        """Return the rows of the arm that the address names, if it names one; the first column is that of arms."""
        import pandas as pd

        return pd.DataFrame([row for row in rows if self.match.arm in (None, row[0])], columns=pd.Index(columns))

    def __repr__(self) -> str:
        """Return the name of the study, arm or run, and the study's headline."""
        return f"OpenedStudy({self.match.name}: {summary.headline(self.results)})"

    def _repr_html_(self) -> str:
        """Return the headline, the forest plot and the verdicts as HTML for notebooks."""
        return notebook_html(self.results, {})


def open_study(address: str | Path, root: str | Path | None = None) -> OpenedStudy:
    """Open a stored study, finished or not.

    Args:
        address: the address of the study (see `taetpu.store.addresses`). That of an arm or run opens its study, with
            tables of this arm or run only.
        root: the root of the studies; by default, `TAETPU_ROOT` or `runs`.

    Raises:
        UserError: if nothing or several studies have this address.
    """
    opened = OpenedStudy(resolve(address, root))
    _ = opened.folder  # refuses several studies
    return opened
