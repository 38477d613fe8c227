"""Linear attention: a kernel of queries and keys in place of the softmax, computed as a recurrence."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveInt

from taetpu.core.config import Size
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import site
from taetpu.nn.attention import head_width, join_heads, split_heads
from taetpu.nn.common import Context, Dims, project
from taetpu.nn.mixer.common import Stream, masked, read_state, write_state
from taetpu.nn.mixer.recurrence import decayed_sum
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.position.base import PositionConfig


@register("mixer", "linear")
class LinearConfig(MixerConfig):
    """sum_j f(q_i).f(k_j) v_j / sum_j f(q_i).f(k_j) over j <= i, with f(u) = elu(u) + 1. Katharopoulos et al. 2020.

    Positions that act in attention do not act here.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", arXiv 2006.16236.
    """

    num_heads: PositiveInt = 4
    """Number of heads."""
    head_dim: Size | None = None
    """Width of a head; `none`: dim / num_heads."""
    chunk: PositiveInt = 64
    """Number of tokens that are computed at once; it changes only the speed."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        head_width(dims, self.num_heads, self.head_dim)

    def init(self, dims: Dims, position: PositionConfig, *, key: Key) -> "Linear":
        """Build the module at the given sizes."""
        inner = self.num_heads * head_width(dims, self.num_heads, self.head_dim)
        wq, wk, wv = (dims.weight(named(key, f"w{x}"), dims.dim, inner, role=x) for x in "qkv")
        wo = dims.weight(named(key, "wo"), inner, dims.dim, role="out")
        return Linear(wq, wk, wv, wo, self.num_heads, self.chunk)


class Linear(eqx.Module):
    """Linear attention; see `LinearConfig`."""

    wq: Float[Array, "dim inner"]
    wk: Float[Array, "dim inner"]
    wv: Float[Array, "dim inner"]
    wo: Float[Array, "inner dim"]
    num_heads: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the outputs of all heads, projected to the stream."""
        q, k, v = (split_heads(project(x, w), self.num_heads) for w in (self.wq, self.wk, self.wv))
        q, k, v = site("mixer.q", q), site("mixer.k", k), site("mixer.v", v)
        q, k = (jax.nn.elu(part.astype(jnp.float32)) + 1 for part in (q, k))
        k = masked(jnp.ones(k.shape[:-1]), ctx)[..., None] * k
        both = jnp.concatenate([v.astype(jnp.float32), jnp.ones((*v.shape[:-1], 1))], -1)
        state = read_state(ctx, "state", (*q.shape[:2], q.shape[-1], both.shape[-1]))
        o, state = decayed_sum(q, k, both, jnp.zeros(q.shape[:-1]), state, ctx.segments, self.chunk)
        write_state(ctx, "state", state)
        # Queries in padding read nothing, so their denominator is 0.
        z = site("mixer.z", (o[..., :-1] / jnp.maximum(o[..., -1:], 1e-6)).astype(x.dtype))
        return project(join_heads(z), self.wo)

    def cache_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of the state of a sequence."""
        size = self.wq.shape[-1] // self.num_heads
        return {"state": (self.num_heads, size, size + 1)}
