"""The base of tasks in which each position predicts the next token of a text."""

from taetpu.core.metric_spec import TASK_METRICS, MetricSpec
from taetpu.data.base import Task


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
