"""All stored metrics of a study as a pandas table."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from taetpu.store.addresses import resolve
from taetpu.store.runs import RunFolder

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("arm", "seed", "step", "metric", "value")


def read_metrics(address: str | Path, root: str | Path | None = None) -> "pd.DataFrame":
    """Read the metrics of all runs of a study, an arm or a run, including unfinished runs.

    Args:
        address: the address of a study, an arm or a run (see `taetpu.store.addresses`).
        root: the root of the studies; by default, `TAETPU_ROOT` or `runs`.

    Returns:
        A table with one row per value and the columns `arm, seed, step, metric, value`.

    Raises:
        UserError: if nothing or several studies have this address, or a metrics file is damaged.
    """
    match = resolve(address, root)
    return metrics_table([run for run in match.study.runs() if match.selects(run)])


def metrics_table(runs: Iterable[RunFolder]) -> "pd.DataFrame":
    """Return the metrics of runs in the form of `read_metrics`."""
    import pandas as pd

    parts = [
        pd.DataFrame({"arm": run.arm, "seed": run.seed, "metric": metric, "step": series.step, "value": series.value})
        for run in runs
        for metric, series in run.metrics().items()
    ]
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
    return table.loc[:, list(COLUMNS)]
