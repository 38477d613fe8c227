"""Adafactor: second moments of matrices as the product of the means of rows and columns."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int
from pydantic import Field, PositiveFloat

from taetpu.core.config import Traced
from taetpu.core.registry import register
from taetpu.nn.parameters import Parameter, Parameters
from taetpu.optim.optimizers.base import Beta, Decay, Epsilon, OptimizerConfig, finish
from taetpu.optim.optimizers.matrices import as_matrix, from_matrix
from taetpu.optim.parameter_groups import with_groups


@register("optimizer", "adafactor")
class Adafactor(OptimizerConfig):
    """g / sqrt(r c / mean(r)), with means r over the rows and c over the columns of g^2. Shazeer and Stern 2018.

    Each matrix is factored alone: of each layer of a stack, of each head or expert. Vectors keep all second moments.
    The decay rate in step t, from 1, is 1 - t^-decay, so no correction of a bias is needed. The update of a matrix or
    vector is divided by max(1, RMS / clip). The learning rate is absolute: it is relative neither to the parameters nor
    to the step.

    Source: Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", arXiv 1804.04235.
    Reference: optax.adafactor.
    """

    decay: Annotated[float, Field(gt=0, le=1), Traced()] = 0.8
    """Exponent of the decay rate of second moments."""
    clip: Annotated[PositiveFloat, Traced()] = 1.0
    """Root mean square of an array's update above which it is scaled down."""
    momentum: Annotated[Beta | None, Traced(neutral=None)] = None
    """Decay rate of a mean of updates; `none`: no mean, which saves its memory."""
    eps: Epsilon = 1e-30
    """Number added to the squared gradients."""
    weight_decay: Decay = 0.0
    """Share of each matrix that a step removes, before multiplication by the learning rate."""

    def update_rule(self, lr: Any, parameters: Parameters) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`, with the settings of groups."""
        factored = scale_by_factored_rms(parameters.described, self.decay, self.eps, self.clip)
        mean = () if self.momentum is None else (optax.ema(self.momentum, debias=False),)
        rule = optax.chain(factored, *mean)
        return with_groups(self, lr, parameters, lambda lr, decayed: finish(rule, self.weight_decay, decayed, lr))


class FactoredState(NamedTuple):
    """The second moments of gradients: for each array the means of rows and columns, or the mean of each element."""

    step: Int[Array, ""]
    rows: Any
    columns: Any


def scale_by_factored_rms(described: Any, decay: Any, eps: Any, clip: Any) -> optax.GradientTransformation:
    """Return the scaling of gradients by factored second moments, and the clipping of each array's update.

    Args:
        described: A tree with a `Parameter` for each array.
        decay: The exponent of the decay rate.
        eps: The number added to squared gradients.
        clip: The root mean square above which an update is scaled down.
    """

    def init(params: Any) -> Any:
        def moments(axis: int) -> Any:
            def zero(parameter: Any, array: Array) -> Array:
                matrix = as_matrix(parameter, array)
                return jnp.zeros_like(array) if matrix is None else jnp.zeros_like(matrix.mean(axis))

            return jax.tree.map(zero, described, params)

        return FactoredState(jnp.zeros((), jnp.int32), moments(-1), moments(-2))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        step = state.step + 1
        rate = 1.0 - step.astype(jnp.float32) ** -decay

        def update_array(
            parameter: Parameter, gradient: Array, rows: Array, columns: Array
        ) -> tuple[Array, Array, Array]:
            matrix = as_matrix(parameter, gradient)
            if matrix is None:
                rows = columns = rate * rows + (1 - rate) * (gradient**2 + eps)
                scaled = (gradient * jax.lax.rsqrt(rows)).reshape(len(parameter.names), -1)
                return clip_rms(scaled, (-1,), clip).reshape(gradient.shape), rows, columns
            square = matrix**2 + eps
            rows = rate * rows + (1 - rate) * square.mean(-1)
            columns = rate * columns + (1 - rate) * square.mean(-2)
            by_row, by_column = jax.lax.rsqrt(rows / rows.mean(-1, keepdims=True)), jax.lax.rsqrt(columns)
            scaled = matrix * by_row[..., None] * by_column[..., None, :]
            return from_matrix(parameter, clip_rms(scaled, (-2, -1), clip)), rows, columns

        results = jax.tree.map(update_array, described, updates, state.rows, state.columns)
        parts = [jax.tree.map(lambda _, three, i=i: three[i], described, results) for i in range(3)]
        return parts[0], FactoredState(step, parts[1], parts[2])

    return optax.GradientTransformation(init, update)


def clip_rms(updates: Array, axes: tuple[int, ...], bound: Any) -> Array:
    """Return updates, scaled down where their root mean square over the given axes exceeds a bound."""
    return updates / jnp.maximum(1.0, jnp.sqrt(jnp.mean(updates**2, axes, keepdims=True)) / bound)
