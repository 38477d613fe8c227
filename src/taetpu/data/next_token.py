"""The base of tasks in which each position predicts the next token of a text."""

from collections.abc import Mapping
from typing import Any

from pydantic import field_validator

from taetpu.core.errors import UserError
from taetpu.core.metric_spec import TASK_METRICS, MetricSpec
from taetpu.data.base import Task
from taetpu.data.mixture import shares_of


class NextTokenTask(Task):
    """Base of the tasks `text` and `tokens`."""

    @property
    def causal(self) -> bool:
        """True, because each position predicts the next token."""
        return True

    @property
    def metric_specs(self) -> dict[str, MetricSpec]:
        """See `Task.metric_specs`."""
        return TASK_METRICS

    @field_validator("source", mode="before", check_fields=False)
    @classmethod
    def _weights(cls, source: Any) -> Any:
        """Check the weights of a mixture."""
        if isinstance(source, Mapping):
            try:
                shares_of(source)
            except UserError as error:
                raise error.within("source") from None
        return source
