"""The outcome of running a study: its results, its report, and what failed."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taetpu.report.summary import headline
from taetpu.stats.results import Results

if TYPE_CHECKING:
    from taetpu.study.post_hoc import FailedTable


@dataclass(frozen=True)
class Failure:
    """An error that a pack or a program raised, with the runs that it affects."""

    runs: tuple[Any, ...]
    error: Exception


@dataclass(frozen=True)
class Outcome:
    """The outcome of `taetpu.run`.

    Attributes:
        results: the content of `results.json`.
        report: the addresses of the report, by format.
        failed: the packs or programs that failed.
        refuted: one message for each reused run whose results differed when it was trained again.
        folder: the study's folder. It can be passed to `taetpu.plot`.
        failed_tables: the post-hoc ablation tables that could not be computed.
    """

    results: Results
    report: dict[str, str]
    failed: list[Failure]
    refuted: list[str] = field(default_factory=list)
    folder: str = ""
    failed_tables: list["FailedTable"] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return the study's name and headline, and the number of runs that failed."""
        runs = sum(len(failure.runs) for failure in self.failed)
        failed = f"; {runs} run{'s' * (runs > 1)} failed" if runs else ""
        return f"Outcome({self.results['study']}: {headline(self.results)}{failed})"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        from taetpu.report.notebook import notebook_html

        failed = [f"{len(failure.runs)} runs failed: {failure.error}" for failure in self.failed]
        failed += [f"table {table.name} failed: {table.run.where}: {table.error}" for table in self.failed_tables]
        return notebook_html(self.results, self.report, [*failed, *self.refuted])

    @property
    def whole(self) -> bool:
        """Whether no run failed and no reused run was refuted."""
        return not self.failed and not self.refuted
