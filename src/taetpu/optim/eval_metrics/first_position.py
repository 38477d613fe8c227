"""The metric of classes that the first position predicts, whether or not they are scored."""

import jax.numpy as jnp

from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.data.base import Task
from taetpu.optim.eval_metrics.on_sets import EvalMetric, Evaluated, Sums
from taetpu.optim.loss import position_losses


@register("eval_metric", "first_position")
class FirstPosition(EvalMetric):
    """Share of sequences whose first position predicts its target, also where this target is not scored.

    In texts with `samples: pairs`, this is the share of pairs whose class is predicted, whatever else is.
    """

    better, bounds, unit = "max", (0.0, 1.0), "share of sequences"
    mean_of = ("right", "sequences")
    reads_logits = True

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`."""
        assert seen.logits is not None  # see `reads_logits`
        ones = jnp.ones((len(seen.logits), 1), jnp.float32)
        right = position_losses(seen.logits[:, :1], seen.batch.targets[:, :1], ones)["correct"]
        lengths = seen.batch.lengths  # batches are filled with empty sequences
        real = (seen.weight > 0).any(-1) if lengths is None else lengths > 0
        return {"right": right[:, 0] * real, "sequences": real.astype(jnp.float32)}

    def check_task(self, task: Task) -> None:
        """Raise `UserError` if the targets of a task are real numbers."""
        if task.batch.real_targets:
            problem = f"{self.kind!r} counts classes, and task {task.kind!r} has real targets"
            raise UserError(problem, remedy="Remove the metric, or use a task with classes.")
