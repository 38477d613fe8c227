"""Arrays as the matrices that they consist of, for optimizers that treat each matrix as a whole."""

from math import prod

import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.nn.parameters import Parameter


def _axes(parameter: Parameter) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Return the axes that count matrices, those of the inputs and those of the outputs; None for vectors.

    An array whose products are unknown, such as an embedding, consists of matrices over its last two axes.
    """
    if not parameter.is_matrix:
        return None
    rank = len(parameter.shape)
    inputs, outputs = (parameter.in_axes, parameter.out_axes) if parameter.in_axes else ((rank - 2,), (rank - 1,))
    return tuple(i for i in range(rank) if i not in (*inputs, *outputs)), inputs, outputs


def as_matrix(parameter: Parameter, array: Array) -> Float[Array, "*count inputs outputs"] | None:
    """Return an array with the shape `(*count, inputs, outputs)` of its matrices; None if it consists of vectors."""
    axes = _axes(parameter)
    if axes is None:
        return None
    count, inputs, outputs = axes
    sizes = [prod(array.shape[i] for i in part) for part in (inputs, outputs)]
    return jnp.transpose(array, (*count, *inputs, *outputs)).reshape(*(array.shape[i] for i in count), *sizes)


def from_matrix(parameter: Parameter, matrix: Float[Array, "*count inputs outputs"]) -> Array:
    """Return matrices in the layout of their array, the inverse of `as_matrix`."""
    axes = _axes(parameter)
    assert axes is not None
    order = [i for part in axes for i in part]
    array = matrix.reshape([parameter.shape[i] for i in order])
    return jnp.transpose(array, [order.index(i) for i in range(len(order))])
