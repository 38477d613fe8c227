"""Parts of mixers without attention: states in a cache, and the width of a head."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.nn.common import Context

Stream = Float[Array, "batch seq size"]


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
