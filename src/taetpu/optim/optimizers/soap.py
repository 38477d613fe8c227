"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int
from pydantic import PositiveFloat, PositiveInt

from taetpu.core.config import Traced
from taetpu.core.registry import register
from taetpu.nn.parameters import Parameter, Parameters
from taetpu.optim.optimizers.base import Beta, Decay, Epsilon, OptimizerConfig, finish
from taetpu.optim.optimizers.matrices import as_matrix, from_matrix
from taetpu.optim.parameter_groups import with_groups

Matrix = Float[Array, "*count n m"]
SHIFT = 1e-5
"""Multiple of the identity that is added to a covariance, as a share of its trace."""


@register("optimizer", "soap")
class SOAP(OptimizerConfig):
    """Q_L adam(Q_L^T G Q_R) Q_R^T, with eigenvectors Q_L and Q_R of the means of G G^T and G^T G. Vyas et al. 2024.

    Matrices between layers are rotated, each matrix of a stack alone; all other parameters use Adam, as do matrices
    with a side above `max_size`. Every `frequency` steps, the eigenvectors are updated by one power iteration and a QR
    decomposition; if several runs train in one pack, this is computed in every step and kept in these. The first step
    only initialises them and changes nothing. The authors' code initialises them by an eigendecomposition instead and
    sorts them in later steps. As in the paper, the mean of gradients is kept in the original basis.

    Source: Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam", arXiv 2409.11321.
    """

    lr: Annotated[PositiveFloat, Traced()] = 3e-3
    """Peak learning rate, which the schedule scales."""
    b1: Beta = 0.95
    """Decay rate of the mean of gradients."""
    b2: Beta = 0.95
    """Decay rate of the mean of squared gradients, in the eigenbasis."""
    shampoo_beta: Beta = 0.95
    """Decay rate of the means of G G^T and G^T G."""
    eps: Epsilon = 1e-8
    """Number added to the root of the mean square."""
    frequency: PositiveInt = 10
    """Steps between two updates of the eigenvectors."""
    max_size: PositiveInt = 4096
    """Largest side of a rotated matrix."""
    weight_decay: Decay = 0.01
    """Share of each matrix that a step removes, before multiplication by the learning rate."""

    def update_rule(self, lr: Any, parameters: Parameters) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`, with the settings of groups."""
        rule = scale_by_soap(parameters.described, self)
        return with_groups(self, lr, parameters, lambda lr, decayed: finish(rule, self.weight_decay, decayed, lr))


class SoapState(NamedTuple):
    """The state of SOAP: the means of Adam and, for each rotated array, both covariances with their eigenvectors."""

    step: Int[Array, ""]
    mean: Any
    square: Any
    bases: Any


class Bases(NamedTuple):
    """The covariances of the gradients of a matrix along both sides, and their eigenvectors."""

    left: Matrix
    right: Matrix
    left_vectors: Matrix
    right_vectors: Matrix


def rotated(parameter: Parameter, max_size: int) -> bool:
    """Return whether the array consists of matrices whose gradients are rotated."""
    return parameter.hidden and max(parameter.fan_in or 0, parameter.fan_out or 0) <= max_size


def _transpose(matrix: Matrix) -> Float[Array, "*count m n"]:
    return jnp.swapaxes(matrix, -1, -2)


def _power_iteration(covariance: Matrix, vectors: Matrix) -> Matrix:
    """Return eigenvectors after one power iteration, orthonormalised by Gram-Schmidt, as in a QR decomposition.

    The shift keeps the directions in which there were no gradients yet; otherwise, rounding would choose them.
    """
    shift = SHIFT * jnp.trace(covariance, axis1=-2, axis2=-1)[..., None, None]
    return orthonormalise(covariance @ vectors + shift * vectors)


def orthonormalise(matrix: Float[Array, "*count n n"]) -> Float[Array, "*count n n"]:
    """Return orthonormal columns, each from the column of the matrix minus its projection on earlier ones.

    Each projection is removed twice, which is as exact as Householder's QR. jnp.linalg.qr is not used, because on a CPU
    that is divided into several devices it can wait forever for a thread (seen with jax 0.10.2).
    """

    def add(number: Array, columns: Matrix) -> Matrix:
        column = jax.lax.dynamic_index_in_dim(matrix, number, -1, keepdims=True)
        for _ in range(2):
            column = column - columns @ (_transpose(columns) @ column)
        column = column / jnp.maximum(jnp.linalg.norm(column, axis=-2, keepdims=True), 1e-30)
        return jax.lax.dynamic_update_index_in_dim(columns, column[..., 0], number, -1)

    return jax.lax.fori_loop(0, matrix.shape[-1], add, jnp.zeros_like(matrix))


def scale_by_soap(described: Any, config: SOAP) -> optax.GradientTransformation:
    """Return SOAP's scaling of gradients.

    Args:
        described: A tree with a `Parameter` for each array.
        config: The settings; numbers may be traced.
    """

    def init(params: Any) -> Any:
        def bases(parameter: Parameter, array: Array) -> Bases | None:
            if not rotated(parameter, config.max_size):
                return None
            *count, n, m = as_matrix(parameter, array).shape  # pyright: ignore[reportOptionalMemberAccess]
            left, right = (jnp.broadcast_to(jnp.eye(size), (*count, size, size)) for size in (n, m))
            return Bases(jnp.zeros_like(left), jnp.zeros_like(right), left, right)

        zeros = jax.tree.map(jnp.zeros_like, params)
        return SoapState(jnp.zeros((), jnp.int32), zeros, zeros, jax.tree.map(bases, described, params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        step = state.step + 1
        first, due = step == 1, step % config.frequency == 0

        def update_array(parameter: Parameter, gradient: Array, mean: Array, square: Array, bases: Bases | None) -> Any:
            mean = jnp.where(first, mean, config.b1 * mean + (1 - config.b1) * gradient)
            inside = gradient if bases is None else _rotate(parameter, gradient, bases)
            square = jnp.where(first, square, config.b2 * square + (1 - config.b2) * inside**2)
            number = jnp.maximum(step - 1, 1).astype(jnp.float32)  # the first step is not counted
            direction = mean if bases is None else _rotate(parameter, mean, bases)
            scaled = direction / (1 - config.b1**number)
            scaled = scaled / (jnp.sqrt(square / (1 - config.b2**number)) + config.eps)
            back = scaled if bases is None else _rotate(parameter, scaled, bases, back=True)
            return jnp.where(first, 0.0, back), mean, square, _next_bases(parameter, gradient, bases)

        def _next_bases(parameter: Parameter, gradient: Array, bases: Bases | None) -> Bases | None:
            if bases is None:
                return None
            g, beta = as_matrix(parameter, gradient), config.shampoo_beta
            assert g is not None
            left = beta * bases.left + (1 - beta) * (g @ _transpose(g))
            right = beta * bases.right + (1 - beta) * (_transpose(g) @ g)

            def renew() -> tuple[Array, Array]:
                return _power_iteration(left, bases.left_vectors), _power_iteration(right, bases.right_vectors)

            vectors = jax.lax.cond(first | due, renew, lambda: (bases.left_vectors, bases.right_vectors))
            return Bases(left, right, *vectors)

        results = jax.tree.map(update_array, described, updates, state.mean, state.square, state.bases)
        parts = [jax.tree.map(lambda _, four, i=i: four[i], described, results) for i in range(4)]
        return parts[0], SoapState(step, *parts[1:])

    return optax.GradientTransformation(init, update)


def _rotate(parameter: Parameter, array: Array, bases: Bases, back: bool = False) -> Array:
    """Return an array in the eigenbasis, or an array of the eigenbasis in the original basis."""
    matrix, left, right = as_matrix(parameter, array), bases.left_vectors, bases.right_vectors
    assert matrix is not None
    turned = left @ matrix @ _transpose(right) if back else _transpose(left) @ matrix @ right
    return from_matrix(parameter, turned)
