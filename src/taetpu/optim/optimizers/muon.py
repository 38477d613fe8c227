"""Muon: orthogonalised momentum for the matrices between layers."""

from collections.abc import Hashable
from typing import Annotated, Any

import jax
import optax
from pydantic import PositiveFloat

from taetpu.core.config import Traced
from taetpu.core.registry import register
from taetpu.nn.parameters import Parameter, Parameters
from taetpu.optim.optimizers.base import Beta, Decay, Epsilon, OptimizerConfig
from taetpu.optim.parameter_groups import with_groups


@register("optimizer", "muon")
class Muon(OptimizerConfig):
    """Orthogonalised momentum for the matrices between layers, and AdamW for all other parameters. Jordan et al. 2024.

    Five Newton-Schulz steps orthogonalise the Nesterov momentum of each matrix: of each layer of a stack, and of each
    head or expert that `Dims.weight` draws as a matrix. Embeddings, the unembedding, position tables and vectors use
    AdamW, with the same learning rate; `groups` changes it. The momentum is corrected for its bias, as in optax.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
    kellerjordan.github.io/posts/muon.
    Reference: optax.contrib.muon.
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
    eps: Epsilon = 1e-8
    """Number added to the root of the mean square in AdamW."""
    weight_decay: Decay = 0.1
    """Share of each matrix that a step removes, before multiplication by the learning rate."""

    def update_rule(self, lr: Any, parameters: Parameters) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`, with the settings of groups."""
        described = parameters.described
        # optax calls a callable argument, and trees like the model are callable, so functions return them.
        labels = jax.tree.map(lambda parameter: "muon" if parameter.hidden else "adamw", described)
        axes = jax.tree.map(matrix_axes, described)

        def scale(updates: Any, _: Any) -> Any:
            return jax.tree.map(lambda parameter, update: update * self.factor(parameter), described, updates)

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
