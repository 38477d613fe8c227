"""Slot `short_conv`: short convolutions of the inputs of branches, and the convolution that recurrent mixers use."""

from typing import Annotated, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field

from taetpu.core.config import Component
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.nn.common import Context, Dims, Identity, Unchanged

Stream = Float[Array, "batch seq size"]


def draw_taps(key: Key, width: int, size: int) -> Float[Array, "width size"]:
    """Return the initial taps of a convolution of each channel: uniform, as in torch.nn.Conv1d."""
    bound = width**-0.5
    return jax.random.uniform(key, (width, size), minval=-bound, maxval=bound)


def keep_real(x: Stream, ctx: Context) -> Stream:
    """Return a stream with zeros in place of padding."""
    return x if ctx.real is None else jnp.where(ctx.real[..., None], x, 0)


def short_convolution(x: Stream, taps: Float[Array, "width size"], ctx: Context, name: str = "conv") -> Stream:
    """Return a causal convolution of each channel over the last `width` tokens of a document.

    The last row of `taps` is the factor of the current token. The cache holds the last `width` - 1 tokens under `name`.
    Padding counts as zeros.
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


# --- kinds ------------------------------------------------------------------------------------------------------------


@register("short_conv", "none")
class NoShortConvConfig(Unchanged):
    """The inputs of branches unchanged."""


@register("short_conv", "canon")
class CanonConfig(Component):
    """h_t + w_0 h_t + w_1 h_(t-1) + w_2 h_(t-2) + w_3 h_(t-3) for each channel of a branch's input. Allen-Zhu 2025.

    h is the input after the norm. Canon-B (queries, keys and values) and Canon-D (inside the ffn) are not available.
    There is no bias and no activation, as the paper recommends for Transformers. Taps start as those of
    torch.nn.Conv1d. The first ffn of order `macaron` has no convolution.

    Source: Allen-Zhu 2025, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon Layers",
        arXiv 2512.17351.
    Reference: torch.nn.Conv1d.
    """

    width: Annotated[int, Field(gt=1, le=64)] = 4
    """Number of tokens of the convolution."""
    branch: Literal["both", "mixer", "ffn"] = "both"
    """The branch whose input is convolved: the `mixer` (Canon-A), the `ffn` (Canon-C), or `both`."""

    def init(self, dims: Dims, *, key: Key) -> "Canon | Identity":
        """Build the module of a branch at the given sizes."""
        if self.branch not in ("both", dims.branch):
            return Identity()
        return Canon(draw_taps(named(key, "taps"), self.width, dims.dim), dims.branch)


class Canon(eqx.Module):
    """The convolution of one branch's input, with a residual connection; see `CanonConfig`."""

    taps: Float[Array, "width dim"]
    branch: str = eqx.field(static=True)

    @property
    def cached(self) -> str:
        """The name of the last tokens in a cache."""
        return f"short_conv.{self.branch}"

    def __call__(self, h: Stream, ctx: Context) -> Stream:
        """Return h plus its convolution."""
        return h + short_convolution(h, self.taps, ctx, self.cached)

    def cache_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of the last tokens of a sequence."""
        return {self.cached: (len(self.taps) - 1, self.taps.shape[1])}
