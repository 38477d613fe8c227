"""Tracker for trackio, which stores runs in a local SQLite file. `trackio show` reads this file.

Rows are written with trackio's storage class. `trackio.init` and `trackio.log` are not used, because they support only
one run at a time, print to the terminal, and drop rows that they cannot write. A row's ID consists of the run's ID and
the step, so that a row is written only once.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from taetpu.core.registry import register
from taetpu.trackers.base import Row, Sink, TrackedRun, Tracker, final_metrics


@register("tracker", "trackio")
class Trackio(Tracker):
    """trackio on this machine. Show runs with `trackio show --project NAME`. `TRACKIO_DIR` sets the folder."""

    project: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")] = "taetpu"
    """Project to which runs are logged."""

    def open(self, run: TrackedRun) -> Sink:
        """Open the run. Rows that have already been logged are skipped."""
        import trackio.sqlite_storage  # noqa: F401 (a missing library is reported at once)

        return Rows(self.project, run)


class Rows(Sink):
    """The rows of a run in trackio's storage."""

    def __init__(self, project: str, run: TrackedRun):
        self.project, self.run, self.last = project, run, 0
        self.config: dict[str, Any] | None = {
            **run.settings,
            "_Group": run.study,
            "_Created": datetime.now(UTC).isoformat(),
            "_Username": None,
        }

    def log(self, rows: Sequence[Row]) -> None:
        """See `Sink.log`."""
        texts = [{} if row.text is None else {"sample": row.text} for row in rows]
        self._write({f"{row.step}": (row.step, {**row.values, **text}) for row, text in zip(rows, texts, strict=True)})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the result as a separate row at the last step, because trackio has no run summary."""
        self._write({"end": (self.last, {"outcome": result["outcome"], **final_metrics(result)})})

    def _write(self, rows: Mapping[str, tuple[int, dict[str, Any]]]) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        if not rows:
            return
        SQLiteStorage.bulk_log(
            project=self.project,
            run=self.run.name,
            run_id=self.run.id,
            metrics_list=[values for _, values in rows.values()],
            steps=[step for step, _ in rows.values()],
            log_ids=[f"{self.run.id}-{name}" for name in rows],
            config=self.config,
        )
        self.config, self.last = None, max(step for step, _ in rows.values())
