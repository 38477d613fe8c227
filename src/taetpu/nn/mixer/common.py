"""Parts of mixers without attention: states in a cache, and the width of a head."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.core.errors import UserError
from taetpu.nn.common import Context, Dims

Stream = Float[Array, "batch seq size"]


def head_width(dims: Dims, num_heads: int, head_dim: int | None) -> int:
    """Return the width of a head.

    Raises:
        UserError: if no width is set and the number of heads does not divide the width of the model.
    """
    if head_dim is None and dims.dim % num_heads:
        fits = [n for n in range(1, dims.dim + 1) if dims.dim % n == 0]
        near = sorted(fits, key=lambda n: abs(n - num_heads))[:4]
        raise UserError(
            f"dim={dims.dim} is not divisible by num_heads={num_heads}",
            path=("num_heads",),
            remedy=f"Set num_heads to one of {', '.join(map(str, sorted(near)))}, or set head_dim.",
        )
    return head_dim or dims.dim // num_heads


def read_state(ctx: Context, name: str, shape: tuple[int, ...]) -> Array:
    """Return the state after the earlier tokens, in float32: from the cache, or zeros."""
    return jnp.zeros(shape) if ctx.cache is None else ctx.cache.values[name].astype(jnp.float32)


def write_state(ctx: Context, name: str, state: Array) -> None:
    """Store the state after the current tokens in the cache, if there is one."""
    if ctx.cache is not None:
        ctx.cache.values[name] = state.astype(ctx.cache.values[name].dtype)


def masked(values: Any, ctx: Context) -> Any:
    """Return numbers `(batch, head, seq)` with 0 in place of padding, which then changes no state."""
    return values if ctx.real is None else jnp.where(ctx.real[:, None, :], values, 0.0)
