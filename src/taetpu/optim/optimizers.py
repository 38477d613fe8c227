"""Slot `optimizer`: the computation of updates from gradients, and the parameters to evaluate.

The optax chain is built inside the training step, from numbers that may be traced. The shapes of its state do not
depend on these numbers.
"""

from typing import Annotated, Any, ClassVar

import optax
from pydantic import Field, NonNegativeFloat, PositiveFloat

from taetpu.core.config import Component, Traced
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.nn.parameters import Parameters
from taetpu.optim.parameter_groups import GroupConfig, with_groups

Beta = Annotated[float, Field(ge=0, lt=1), Traced()]


class OptimizerConfig(Component):
    """Base of optimizers.

    A subclass defines `transform(lr, decayed)`, or `update_rule` if it needs the roles of the parameters. It may define
    `evaluated(state, params)`, which returns the parameters to evaluate and store if they differ from the trained
    parameters, given the state of the optimizer.

    Attributes:
        uses_loss: Whether the `update` of the update rule takes the loss of the batch, as the keyword argument `value`.
    """

    uses_loss: ClassVar[bool] = False

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


@register("optimizer", "adamw")
class AdamW(OptimizerConfig):
    """Adam with decoupled weight decay on matrices, but not on biases and norms. Loshchilov and Hutter 2019.

    The decay of a step is lr * weight_decay * parameter. The default of 0.1 is common for language models; the default
    is 1e-4 in optax and 1e-2 in torch.
    """

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


@register("optimizer", "schedule-free")
class ScheduleFree(AdamW):
    """AdamW whose evaluated parameters are a running mean, so that no decay of the learning rate is needed.

    Defazio et al. 2024 (arXiv 2405.15682, algorithm 1). Gradients are computed at y = (1 - b1) z + b1 x. AdamW without
    its mean of gradients updates z. The evaluated parameters x are the mean of z, weighted by the square of the highest
    learning rate so far. Use it with `schedule: constant`, with or without warm-up.
    """

    b1: Annotated[float, Field(gt=0, lt=1), Traced()] = 0.9
    """Weight of the mean x in the trained parameters y."""

    def transform(self, lr: Any, decayed: Any) -> optax.GradientTransformation:
        """Return the update rule of z. `decayed` is True for each parameter with weight decay."""
        return optax.chain(
            optax.scale_by_rms(self.b2, self.eps, eps_in_sqrt=False, bias_correction=True),
            optax.add_decayed_weights(self.weight_decay, decayed),
            optax.scale(-lr),
        )

    def update_rule(self, lr: Any, parameters: Parameters) -> optax.GradientTransformation:
        """Return the update rule of y at learning rate `lr`, with the settings of groups."""
        return optax.contrib.schedule_free(super().update_rule(lr, parameters), lr, self.b1)

    def evaluated(self, state: Any, params: Any) -> Any:
        """Return the mean x, given the trained parameters y."""
        return optax.contrib.schedule_free_eval_params(state, params)
