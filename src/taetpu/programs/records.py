"""Runs as read from a source of any format, before the columns of arms, seeds and metrics are known.

A reader of a format returns one `Record` for each run, with everything that the source says about it. A reader does not
choose: metrics that are not judged and fields that are no arm's are left out later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taetpu.store.metrics import Series

Items = Mapping[str, float]
"""The scores of a metric by item of the evaluation set. The name of an item is the same in all runs."""


@dataclass(frozen=True)
class Record:
    """One run of any source.

    Attributes:
        where: The place of the run for messages, such as `results.csv, row 3` or the run's folder.
        fields: The columns that describe the run, such as `method`, `seed` or `optimizer.lr`. Nested settings have
            dotted names. Values are as the source has them: text, numbers, booleans or None.
        metrics: The last reported value of each metric, never the best; None if that value is NaN or infinite.
        curves: The steps and values of each metric that was reported during training.
        items: The scores of single items by metric, where the source has them.
    """

    where: str
    fields: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    curves: Mapping[str, Series] = field(default_factory=dict)
    items: Mapping[str, Items] = field(default_factory=dict)
