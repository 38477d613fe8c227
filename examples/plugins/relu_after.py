"""A ReLU behind a block: `{model.layers.0.after: relu}` puts one after the first layer."""

import equinox as eqx
import jax
from taetpu.plugin import Component, register


@register("after", "relu")
class ReLUConfig(Component):
    """max(x, 0) of the residual stream."""

    def init(self, dims, *, key):
        return ReLU()


class ReLU(eqx.Module):
    def __call__(self, x, ctx):
        return jax.nn.relu(x)
