"""The base of optimizers.

The optax chain is built inside the training step, from numbers that may be traced. The shapes of its state do not
depend on these numbers.
"""

from typing import Annotated, Any, ClassVar

import optax
from pydantic import Field, NonNegativeFloat, PositiveFloat

from taetpu.core.config import Component, Traced
from taetpu.core.errors import UserError
from taetpu.nn.parameters import Parameters
from taetpu.optim.parameter_groups import GroupConfig, with_groups

Beta = Annotated[float, Field(ge=0, lt=1), Traced()]
Epsilon = Annotated[PositiveFloat, Traced()]
Decay = Annotated[NonNegativeFloat, Traced()]


class OptimizerConfig(Component):
    """Base of optimizers.

    A subclass defines `transform(lr, decayed)`, or `update_rule` if it needs the roles of the parameters. It may define
    `evaluated(state, params)`, which returns the parameters to evaluate and store if they differ from the trained
    parameters, given the state of the optimizer.

    Attributes:
        uses_loss: Whether the `update` of the update rule takes the loss of the batch, as the keyword argument `value`.
        uses_curvature: Whether it takes the keyword argument `curvature`, a function without arguments that returns an
            estimate of the curvature of the batch's loss for each parameter (see `train.curvature`).
        decoupled_decay: Whether `weight_decay` is the share of a parameter that a step removes, before multiplication
            by the learning rate; else it is an L2 penalty, which `transform` adds to the gradients.
    """

    uses_loss: ClassVar[bool] = False
    uses_curvature: ClassVar[bool] = False
    decoupled_decay: ClassVar[bool] = True

    lr: Annotated[PositiveFloat, Traced()] = 1e-3
    """Peak learning rate, which the schedule scales."""
    ema: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, Traced(neutral=None)] = None
    """Decay rate of the exponential mean of the weights, which is evaluated and stored; `none`: no mean. The mean
    starts at the initial weights. Polyak and Juditsky 1992.
    """
    groups: dict[str, GroupConfig] = Field(default_factory=dict)
    """Settings of groups of parameters by role, such as `embedding` or `vector`, or by name with a `match`."""

    def transform(self, lr: Any, decayed: Any) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`. `decayed` is True for each parameter with weight decay."""
        raise UserError(
            f"optimizer {self.kind!r} defines neither transform nor update_rule", remedy="Define transform."
        )

    def update_rule(self, lr: Any, parameters: Parameters) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`, with the settings of groups."""
        return with_groups(self, lr, parameters, self.transform)


def finish(
    rule: optax.GradientTransformation, weight_decay: Any, decayed: Any, lr: Any
) -> optax.GradientTransformation:
    """Return a rule followed by decoupled weight decay and the learning rate."""
    return optax.chain(rule, optax.add_decayed_weights(weight_decay, decayed), optax.scale(-lr))
