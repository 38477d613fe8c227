"""The largest parameter, every n steps: `train: {metrics: {largest-parameter: {every: 20}}}`."""

import jax
import jax.numpy as jnp
from taetpu.plugin import Metric, register


@register("metric", "largest-parameter")
class LargestParameter(Metric):
    """The largest magnitude among all parameters."""

    def measure(self, seen):
        return jnp.stack([jnp.abs(a).max() for a in jax.tree.leaves(seen.params)]).max()
