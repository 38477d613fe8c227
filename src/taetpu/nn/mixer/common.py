"""Parts of mixers without attention: short convolutions, states in a cache, and the number of heads."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.core.errors import UserError
from taetpu.core.keys import Key
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


def draw_taps(key: Key, width: int, size: int) -> Float[Array, "width size"]:
    """Return the initial taps of a convolution of each channel: uniform, as in torch.nn.Conv1d."""
    bound = width**-0.5
    return jax.random.uniform(key, (width, size), minval=-bound, maxval=bound)


def keep_real(x: Stream, ctx: Context) -> Stream:
    """Return a stream with zeros in place of padding."""
    return x if ctx.real is None else jnp.where(ctx.real[..., None], x, 0)


def short_convolution(x: Stream, taps: Float[Array, "width size"], ctx: Context, name: str = "conv") -> Stream:
    """Return a causal convolution of each channel over the last `width` tokens of a document.

    The cache holds the last `width` - 1 tokens under `name`. Padding counts as zeros.
    """
    width, seq = len(taps), x.shape[1]
    x = keep_real(x, ctx)
    before = jnp.zeros((len(x), width - 1, x.shape[-1]), x.dtype)
    if ctx.cache is not None:
        before = ctx.cache.values[name].astype(x.dtype)
    whole = jnp.concatenate([before, x], 1)
    if ctx.cache is not None:
        ctx.cache.values[name] = whole[:, seq:].astype(ctx.cache.values[name].dtype)
    total = jnp.zeros_like(x)
    for i in range(width):
        part = whole[:, i : i + seq]
        if ctx.segments is not None:
            shifted = jnp.pad(ctx.segments, ((0, 0), (width - 1 - i, 0)), mode="edge")[:, :seq]
            part = jnp.where((shifted == ctx.segments)[..., None], part, 0)
        total = total + part * taps[i].astype(x.dtype)
    return total


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
