"""The matrix product that models use, with gradients that are also fast on CPUs."""

import re
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def matmul(
    a: Float[Array, "*lead rows inner"], b: Float[Array, "*lead inner columns"], out: Any = None
) -> Float[Array, "*lead rows columns"]:
    """Return `a @ b` in a's precision, accumulated and returned as `out` (default: a's dtype).

    The gradient with respect to `b` is the transpose of `a` times the output's gradient. This product contracts the
    rows of both factors. XLA's CPU backend has no fast path for it: it was measured to take up to three times as long
    as a product that contracts inner axes. The smaller factor is therefore transposed in memory first. Only
    reverse-mode differentiation is supported.
    """
    return jnp.asarray(_product(a, b, out or a.dtype))


def active_share(used: int, computed: int) -> AbstractContextManager[Any]:
    """Return a context in which only `used` of `computed` parts of each matrix product contribute to the result.

    FLOPs are counted accordingly (see `train.matmul_count`): a mixture of experts may compute all experts for each
    token, although only the chosen ones contribute.
    """
    return jax.named_scope(f"{_ACTIVE}{used}_of_{computed}")


def parse_active_share(scopes: str) -> tuple[int, int] | None:
    """Return the arguments of the innermost `active_share` in a stack of JAX's named scopes; None if there is none."""
    shares = re.findall(rf"{_ACTIVE}(\d+)_of_(\d+)", scopes)
    return (int(shares[-1][0]), int(shares[-1][1])) if shares else None


_ACTIVE = "active_"


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(a: Array, b: Array, out: Any) -> Array:
    return jnp.matmul(a, b, preferred_element_type=out)


def _forward(a: Array, b: Array, out: Any) -> tuple[Any, tuple[Array, Array]]:
    return jnp.matmul(a, b, preferred_element_type=out), (a, b)


def _backward(out: Any, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    a, b = saved
    g = gradient.astype(a.dtype)
    wide = a.shape[-1] > g.shape[-1]
    return jnp.matmul(g, b.mT), _transpose(jnp.matmul(_transpose(g), a)) if wide else jnp.matmul(_transpose(a), g)


_product.defvjp(_forward, _backward)


def _transpose(x: Array) -> Array:
    """Return `x.mT`, materialised on CPUs. Without the barriers, XLA would fold the transpose into the product."""
    barrier = jax.lax.optimization_barrier
    return jax.lax.platform_dependent(x, cpu=lambda x: barrier(barrier(x).mT), default=lambda x: x.mT)
