"""Slot `optimizer`: the computation of updates from gradients, and the parameters to evaluate.

The optax chain is built inside the training step, from numbers that may be traced. The shapes of its state do not
depend on these numbers.
"""

from collections.abc import Hashable
from typing import Annotated, Any, ClassVar

import jax
import optax
from pydantic import Field, NonNegativeFloat, PositiveFloat

from taetpu.core.config import Component, Size, Traced
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.nn.parameters import Parameter, Parameters
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
    base_dim: Annotated[Size | None, Traced(neutral=None)] = None
    """With muP, the width of the model at which `lr` is tuned: the learning rate of matrices between layers is
    multiplied by base_dim / dim, and their weight decay divided by it (Yang et al. 2022, table 8); `none`: one learning
    rate for all widths.
    """

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


@register("optimizer", "muon")
class Muon(OptimizerConfig):
    """Orthogonalised momentum for the matrices between layers, and AdamW for all other parameters. Jordan et al. 2024.

    Five Newton-Schulz steps orthogonalise the Nesterov momentum of each matrix: of each layer of a stack, and of each
    head or expert that `Dims.weight` draws as a matrix. Embeddings, the unembedding, position tables and vectors use
    AdamW, with the same learning rate; `groups` changes it. The momentum is corrected for its bias, as in optax.
    """

    momentum: Beta = 0.95
    """Decay rate of the mean of gradients of matrices between layers."""
    consistent_rms: Annotated[PositiveFloat | None, Traced(neutral=None)] = 0.2
    """Root mean square of the updates of matrices, so that the learning rate of AdamW fits (Liu et al. 2025); `none`:
    updates with singular values near sqrt(max(1, fan_out / fan_in)).
    """
    b1: Beta = 0.9
    """Decay rate of the mean of gradients in AdamW."""
    b2: Beta = 0.99
    """Decay rate of the mean of squared gradients in AdamW."""
    eps: Annotated[PositiveFloat, Traced()] = 1e-8
    """Number added to the root of the mean square in AdamW."""
    weight_decay: Annotated[NonNegativeFloat, Traced()] = 0.1
    """Share of each matrix that a step removes, before multiplication by the learning rate."""

    def update_rule(self, lr: Any, parameters: Parameters) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`, with the settings of groups."""
        described = parameters.described
        # Functions return the trees, because optax would call a tree like the model, which is callable.
        labels = jax.tree.map(lambda parameter: "muon" if parameter.hidden else "adamw", described)
        axes = jax.tree.map(matrix_axes, described)

        def scale(updates: Any, _: Any) -> Any:
            return jax.tree.map(lambda one, update: update * self.factor(one), described, updates)

        def transform(lr: Any, decayed: Any) -> optax.GradientTransformation:
            rules: dict[Hashable, optax.GradientTransformation] = {
                "muon": optax.contrib.scale_by_muon(beta=self.momentum, weight_dimension_numbers=lambda _: axes),
                "adamw": optax.scale_by_adam(self.b1, self.b2, self.eps),
            }
            return optax.chain(
                optax.partition(rules, lambda _: labels),
                optax.stateless(scale),
                optax.add_decayed_weights(self.weight_decay, decayed),
                optax.scale(-lr),
            )

        return with_groups(self, lr, parameters, transform)

    def factor(self, parameter: Parameter) -> Any:
        """Return the factor on the orthogonalised momentum of matrices; 1 for parameters that AdamW updates."""
        if not parameter.hidden:
            return 1.0
        fan_in, fan_out = parameter.fan_in or 1, parameter.fan_out or 1
        if self.consistent_rms is None:
            return max(1, fan_out / fan_in) ** 0.5
        return max(fan_in, fan_out) ** 0.5 * self.consistent_rms


def matrix_axes(parameter: Parameter) -> optax.contrib.MuonDimensionNumbers | optax.MaskedNode:
    """Return the axes of the matrices that an array consists of, as optax takes them for arrays of hidden matrices."""
    if not parameter.hidden:
        return optax.MaskedNode()
    return optax.contrib.MuonDimensionNumbers(parameter.in_axes, parameter.out_axes)
