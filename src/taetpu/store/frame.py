"""All stored metrics of a study as a pandas table."""

from pathlib import Path

import pandas as pd

from taetpu.store.index import find_study

COLUMNS = ("arm", "seed", "step", "metric", "value")


def read_metrics(place: str | Path) -> pd.DataFrame:
    """Read the metrics of all runs of a study, including unfinished runs.

    Args:
        place: the study's folder, or a root that contains exactly one study.

    Returns:
        A table with one row per value and the columns `arm, seed, step, metric, value`.

    Raises:
        UserError: if `place` contains no study or several studies, or a metrics file is damaged.
    """
    parts = []
    for run in find_study(place).runs():
        for metric, series in run.metrics().items():
            columns = {"arm": run.arm, "seed": run.seed, "metric": metric, "step": series.step, "value": series.value}
            parts.append(pd.DataFrame(columns))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
    return table.loc[:, list(COLUMNS)]
