"""The share of predictions near their target."""

import jax.numpy as jnp

from taetpu.plugin import EvalMetric, register


@register("eval_metric", "within")
class Within(EvalMetric):
    """Share of outputs at most `tolerance` from their target."""

    better, bounds, unit, label = "max", (0, 1), "share of positions", "near the target"
    mean_of, reads_logits = ("near", "weight"), True

    tolerance: float = 0.25

    def sums(self, seen):
        near = jnp.abs(seen.logits[..., 0] - seen.batch.targets) <= self.tolerance
        return {"near": (near * seen.weight).sum(-1), "weight": seen.weight.sum(-1)}
