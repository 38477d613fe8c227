"""Gated DeltaNet: a matrix state that decays and is corrected towards each value."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveInt

from taetpu.core.config import Size
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites, site
from taetpu.nn.attention import head_width, join_heads, split_heads
from taetpu.nn.common import Context, Dims, project
from taetpu.nn.mixer.common import Stream, masked, read_state, write_state
from taetpu.nn.mixer.recurrence import gated_delta_rule
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.norm import RMSNorm
from taetpu.nn.position.base import PositionConfig
from taetpu.nn.short_conv import draw_taps, short_convolution


@register("mixer", "gated-delta")
class GatedDeltaConfig(MixerConfig):
    """S <- e^g S, then S <- S + beta k (v - S^T k)^T and o = S^T q, for a state S of each head. Yang et al. 2024.

    g = -e^A softplus(x W_a + dt) and beta = sigmoid(x W_b) for each head. q, k and v pass through a convolution over
    `conv` tokens and silu; q and k then have length 1, and q is divided by sqrt(head_dim). The output is RMSNorm(o) *
    silu(x W_z), as in Qwen3-Next. Positions that act in attention do not act here.

    Source: Yang et al. 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule", arXiv 2412.06464.
    Reference: transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet.
    """

    num_heads: PositiveInt = 4
    """Number of heads."""
    head_dim: Size | None = None
    """Width of a head; `none`: dim / num_heads."""
    conv: PositiveInt = 4
    """Number of tokens of the convolution."""
    chunk: PositiveInt = 64
    """Number of tokens that are computed at once; it changes only the speed."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        head_width(dims, self.num_heads, self.head_dim)

    def init(self, dims: Dims, position: PositionConfig, *, key: Key) -> "GatedDelta":
        """Build the module at the given sizes."""
        size = head_width(dims, self.num_heads, self.head_dim)
        inner = self.num_heads * size
        return GatedDelta(
            wq=dims.weight(named(key, "wq"), dims.dim, inner, role="q"),
            wk=dims.weight(named(key, "wk"), dims.dim, inner, role="k"),
            wv=dims.weight(named(key, "wv"), dims.dim, inner, role="v"),
            wz=dims.weight(named(key, "wz"), dims.dim, inner, role="gate"),
            wa=dims.weight(named(key, "wa"), dims.dim, self.num_heads),
            wb=dims.weight(named(key, "wb"), dims.dim, self.num_heads),
            wo=dims.weight(named(key, "wo"), inner, dims.dim, role="out"),
            taps=draw_taps(named(key, "taps"), self.conv, 3 * inner),
            decay=jnp.log(jax.random.uniform(named(key, "decay"), (self.num_heads,), minval=1.0, maxval=16.0)),
            step=jnp.ones(self.num_heads),
            norm=RMSNorm(jnp.ones(size), 1e-6),
            num_heads=self.num_heads,
            chunk=self.chunk,
        )


class GatedDelta(eqx.Module):
    """Gated DeltaNet; see `GatedDeltaConfig`."""

    wq: Float[Array, "dim inner"]
    wk: Float[Array, "dim inner"]
    wv: Float[Array, "dim inner"]
    wz: Float[Array, "dim inner"]
    wa: Float[Array, "dim head"]
    wb: Float[Array, "dim head"]
    wo: Float[Array, "inner dim"]
    taps: Float[Array, "conv inner_qkv"]
    decay: Float[Array, " head"]
    step: Float[Array, " head"]
    norm: RMSNorm
    num_heads: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the gated outputs of all heads, projected to the stream."""
        qkv = jnp.concatenate([project(x, w) for w in (self.wq, self.wk, self.wv)], -1)
        qkv = jax.nn.silu(short_convolution(qkv, self.taps, ctx))
        q, k, v = (split_heads(part, self.num_heads) for part in jnp.split(qkv, 3, -1))
        q, k, v = (part.astype(jnp.float32) for part in (site("mixer.q", q), site("mixer.k", k), site("mixer.v", v)))
        q, k = (part * jax.lax.rsqrt((part * part).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
        beta = jax.nn.sigmoid(project(x, self.wb, out=jnp.float32)).transpose(0, 2, 1)
        speed = jax.nn.softplus(project(x, self.wa, out=jnp.float32) + self.step)
        g = (-jnp.exp(self.decay) * speed).transpose(0, 2, 1)
        state = read_state(ctx, "state", (*q.shape[:2], q.shape[-1], v.shape[-1]))
        o, state = gated_delta_rule(
            q * q.shape[-1] ** -0.5, k, v, masked(g, ctx), masked(beta, ctx), state, ctx.segments, self.chunk
        )
        write_state(ctx, "state", state)
        with rename_sites("norm", "mixer.norm"):
            o = self.norm(o)
        z = o.astype(x.dtype) * jax.nn.silu(split_heads(project(x, self.wz), self.num_heads))
        return project(join_heads(site("mixer.z", z)), self.wo)

    def cache_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the state of a sequence and of the window of the convolution."""
        size = self.wq.shape[-1] // self.num_heads
        return {"state": (self.num_heads, size, size), "conv": (len(self.taps) - 1, self.taps.shape[1])}
