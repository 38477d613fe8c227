"""Slot `optimizer`: the computation of updates from gradients.

The optax chain is built inside the training step, from numbers that may be traced. Its initial state does not depend on
these numbers.
"""

from typing import Annotated, Any

import optax
from pydantic import Field, NonNegativeFloat, PositiveFloat

from taetpu.core.config import Component, Traced
from taetpu.core.registry import register

Beta = Annotated[float, Field(ge=0, lt=1), Traced()]


@register("optimizer", "adamw")
class AdamW(Component):
    """Adam with decoupled weight decay on matrices, but not on biases and norms. Loshchilov and Hutter 2019.

    The decay of a step is lr * weight_decay * parameter. The default of 0.1 is common for language models; the default
    is 1e-4 in optax and 1e-2 in torch.
    """

    lr: Annotated[PositiveFloat, Traced()] = 1e-3
    """Peak learning rate, which the schedule scales."""
    b1: Beta = 0.9
    """Decay rate of the mean of gradients."""
    b2: Beta = 0.99
    """Decay rate of the mean of squared gradients."""
    eps: Annotated[PositiveFloat, Traced()] = 1e-8
    """Number added to the root of the mean square."""
    weight_decay: Annotated[NonNegativeFloat, Traced()] = 0.1
    """Share of each matrix that a step removes, before multiplication by the learning rate."""

    def transform(self, lr: Any, decayed: Any) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`. `decayed` is True for each parameter with weight decay."""
        return optax.chain(
            optax.scale_by_adam(self.b1, self.b2, self.eps),
            optax.add_decayed_weights(self.weight_decay, decayed),
            optax.scale(-lr),
        )
