"""Layers without updates, chosen at random in each step: `{train.hooks: [freeze-layers]}`."""

from typing import Annotated

import jax
from pydantic import Field
from taetpu.plugin import Hook, Traced, num_layers, register, scale_layers


@register("hook", "freeze-layers")
class FreezeLayers(Hook):
    """Each step, each layer is left as it is with probability `share`; under Adam and weight decay, too."""

    share: Annotated[float, Field(ge=0, le=1), Traced()] = 0.5

    def updates(self, updates, params, now):
        moves = jax.random.bernoulli(now.key, 1 - self.share, (num_layers(params),))
        return scale_layers(updates, moves)
