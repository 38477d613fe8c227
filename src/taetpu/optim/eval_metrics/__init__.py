"""Slot `eval_metric`: metrics beside loss and accuracy, listed under `train.eval_metrics`."""

from taetpu.optim.eval_metrics.on_sets import (
    NO_METRICS,
    EvalMetric,
    Evaluated,
    metric_values,
    sequence_sums,
)

__all__ = ["NO_METRICS", "EvalMetric", "Evaluated", "metric_values", "sequence_sums"]
