"""Mamba 2: a selective state space whose state decays by one number for each head."""

from math import gcd

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveInt

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites, site
from taetpu.nn.attention import join_heads, split_heads
from taetpu.nn.common import Context, Dims, project
from taetpu.nn.mixer.common import Stream, masked, read_state, write_state
from taetpu.nn.mixer.recurrence import decayed_sum
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.norm import RMSNorm
from taetpu.nn.position.base import PositionConfig
from taetpu.nn.short_conv import draw_taps, short_convolution


@register("mixer", "mamba2")
class Mamba2Config(MixerConfig):
    """S <- e^(dt A) S + dt b u^T and y = S^T c + d u, for a state S of each head of u. Dao and Gu 2024 (Mamba 2).

    u, b and c are projections of x that pass through a convolution over `conv` tokens and silu; all heads share b and
    c, of size `state`. dt = softplus(x W_dt + bias) and A = -e^a for each head. The output is RMSNorm(y * silu(x W_z)),
    projected to the stream. Positions that act in attention do not act here.

    Source: Dao and Gu 2024, "Transformers are SSMs", arXiv 2405.21060.
    Reference: transformers.models.mamba2.modeling_mamba2.Mamba2Mixer.
    """

    expand: PositiveInt = 2
    """Inner width as a multiple of dim."""
    head_dim: Size | None = None
    """Width of a head, a divisor of the inner width; `none`: the greatest common divisor of the inner width and 64."""
    state: Size = 64
    """Size of b and c, so that a head's state is (state, head_dim)."""
    conv: PositiveInt = 4
    """Number of tokens of the convolution."""
    chunk: PositiveInt = 64
    """Number of tokens that are computed at once; it changes only the speed."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        inner = self.expand * dims.dim
        if self.head_dim is not None and inner % self.head_dim:
            fits = [n for n in range(1, inner + 1) if inner % n == 0 and n <= 128]
            raise UserError(
                f"head_dim={self.head_dim} does not divide the inner width {inner} (expand * dim)",
                path=("head_dim",),
                remedy=f"Use a divisor, e.g. {', '.join(map(str, fits[-4:]))}.",
            )

    def init(self, dims: Dims, position: PositionConfig, *, key: Key) -> "Mamba2":
        """Build the module at the given sizes."""
        inner = self.expand * dims.dim
        head_dim = self.head_dim or gcd(inner, 64)
        heads, mixed = inner // head_dim, inner + 2 * self.state
        # dt is log-uniform from 0.001 to 0.1 at first; the bias is its inverse softplus.
        dt = jnp.exp(jax.random.uniform(named(key, "dt"), (heads,), minval=jnp.log(1e-3), maxval=jnp.log(0.1)))
        return Mamba2(
            wz=dims.weight(named(key, "wz"), dims.dim, inner, role="gate"),
            wx=dims.weight(named(key, "wx"), dims.dim, inner, role="v"),
            wb=dims.weight(named(key, "wb"), dims.dim, self.state, role="k"),
            wc=dims.weight(named(key, "wc"), dims.dim, self.state, role="q"),
            wdt=dims.weight(named(key, "wdt"), dims.dim, heads),
            wo=dims.weight(named(key, "wo"), inner, dims.dim, role="out"),
            taps=draw_taps(named(key, "taps"), self.conv, mixed),
            conv_bias=jnp.zeros(mixed),
            dt_bias=dt + jnp.log(-jnp.expm1(-dt)),
            decay=jnp.log(jnp.arange(1, heads + 1, dtype=jnp.float32)),
            skip=jnp.ones(heads),
            norm=RMSNorm(jnp.ones(inner), 1e-5),
            head_dim=head_dim,
            chunk=self.chunk,
        )


class Mamba2(eqx.Module):
    """Mamba 2; see `Mamba2Config`."""

    wz: Float[Array, "dim inner"]
    wx: Float[Array, "dim inner"]
    wb: Float[Array, "dim state"]
    wc: Float[Array, "dim state"]
    wdt: Float[Array, "dim head"]
    wo: Float[Array, "inner dim"]
    taps: Float[Array, "conv mixed"]
    conv_bias: Float[Array, " mixed"]
    dt_bias: Float[Array, " head"]
    decay: Float[Array, " head"]
    skip: Float[Array, " head"]
    norm: RMSNorm
    head_dim: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the gated outputs of all heads, projected to the stream."""
        inner, state = self.wx.shape[1], self.wb.shape[1]
        heads = inner // self.head_dim
        mixed = jnp.concatenate([project(x, w) for w in (self.wx, self.wb, self.wc)], -1)
        mixed = jax.nn.silu(short_convolution(mixed, self.taps, ctx) + self.conv_bias.astype(x.dtype))
        u, b, c = jnp.split(mixed, (inner, inner + state), -1)
        u = site("mixer.v", split_heads(u, heads)).astype(jnp.float32)
        b, c = (
            jnp.broadcast_to(part.astype(jnp.float32)[:, None], (len(x), heads, *part.shape[1:])) for part in (b, c)
        )
        dt = jax.nn.softplus(project(x, self.wdt, out=jnp.float32) + self.dt_bias).transpose(0, 2, 1)
        dt = masked(dt, ctx)
        before = read_state(ctx, "state", (len(x), heads, state, self.head_dim))
        g = dt * -jnp.exp(self.decay)[:, None]
        y, after = decayed_sum(c, b, u * dt[..., None], g, before, ctx.segments, self.chunk)
        write_state(ctx, "state", after)
        y = site("mixer.z", (y + self.skip[:, None, None] * u).astype(x.dtype))
        gated = join_heads(y) * jax.nn.silu(project(x, self.wz))
        with rename_sites("norm", "mixer.norm"):
            return project(self.norm(gated), self.wo)

    def cache_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the state of a sequence and of the window of the convolution."""
        heads = self.wx.shape[1] // self.head_dim
        return {"state": (heads, self.wb.shape[1], self.head_dim), "conv": (len(self.taps) - 1, self.taps.shape[1])}
