"""All stored metrics of a study as a pandas table."""

from pathlib import Path

import pandas as pd

from taetpu.store.index import find_study

COLUMNS = ("arm", "seed", "step", "metric", "value")


def read_metrics(place: str | Path) -> pd.DataFrame:
    """Read all metrics of a study's runs, finished or not.

    Args:
        place: the study's folder, or a root with one study in it.

    Returns:
        A table with one row per value and the columns `arm, seed, step, metric, value`.

    Raises:
        UserError: no study or more than one is stored there, or a metrics file is damaged.
    """
    parts = []
    for run in find_study(place).runs():
        for metric, series in run.metrics().items():
            columns = {"arm": run.arm, "seed": run.seed, "metric": metric, "step": series.step, "value": series.value}
            parts.append(pd.DataFrame(columns))
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
    return table.loc[:, list(COLUMNS)]
