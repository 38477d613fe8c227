"""Multi-head latent attention: keys and values are projections of one small latent of each token."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Size, SlotMark, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites, site
from taetpu.nn.attention import HeadCount, head_width, join_heads, score_scale, split_heads
from taetpu.nn.attention_kernels import PLAIN
from taetpu.nn.common import AttentionDims, Context, Dims, Fixed, build_dropout, check_slots, project
from taetpu.nn.mask import CausalConfig, visible
from taetpu.nn.mixer.common import Stream
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.norm import RMSNorm, build_rms
from taetpu.nn.normalizer import SoftmaxConfig
from taetpu.nn.position.base import IN_ATTENTION, PositionConfig
from taetpu.nn.scores import NoScores

SLOTS = ("mask", "scores", "normalizer")


@register("mixer", "mla")
class LatentConfig(MixerConfig):
    """Attention with k = [RMS(x D) K, rope(x R)] and v = RMS(x D) V. DeepSeek 2024 (multi-head latent attention, MLA).

    D maps a token to its latent of width kv_latent, and K and V map the latent to head_dim and value_dim elements of
    each head. R gives one key of width rope_dim that all heads share; positions act only on it and on the last rope_dim
    elements of queries. q = x Q, or RMS(x P) Q with a latent of width q_latent. Both norms have trained weights. Scores
    are divided by sqrt(head_dim + rope_dim). There are no biases.

    A cache holds the latent and the shared key of each token, kv_latent + rope_dim numbers. The keys and values of
    earlier tokens are computed from them in each call.

    The default widths are in the proportions of DeepSeek-V2-Lite. DeepSeek-V3 has q_latent 0.21 dim and kv_latent 0.07
    dim. DeepSeek rotates neighbouring elements: `position: {kind: rope, pairs: interleaved}`.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, section 2.1.
    Reference: transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention.
    Excludes: attention kernels.
    """

    position_parts = IN_ATTENTION

    num_heads: HeadCount = 4
    """Number of heads."""
    kv_latent: Size | None = None
    """Width of the latent of keys and values; `none`: dim / 4."""
    q_latent: Size | None = None
    """Width of the latent of queries; `none`: queries are projected from the input."""
    head_dim: Size | None = None
    """Width of the part of queries and keys without positions; `none`: dim / num_heads."""
    rope_dim: Size | None = None
    """Width of the part of queries and keys with positions; `none`: head_dim / 2, rounded up to an even number."""
    value_dim: Size | None = None
    """Width of the values of a head; `none`: head_dim."""
    eps: PositiveFloat = 1e-6
    """Number added to the mean square in the norms of latents."""
    scale: Annotated[PositiveFloat | Literal["1/head_dim"] | None, Traced(neutral=None)] = None
    """Factor by which scores are multiplied; `none`: (head_dim + rope_dim)^-0.5; `1/head_dim` for muP:
    1 / (head_dim + rope_dim)."""
    scores: Annotated[Any, SlotMark("scores")] = NoScores()
    """Change of the scores before the softmax."""
    mask: Annotated[Any, SlotMark("mask")] = CausalConfig()
    """The keys that a query may attend to."""
    normalizer: Annotated[Any, SlotMark("normalizer")] = SoftmaxConfig()
    """The attention weights as a function of the scores."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        check_slots(self, SLOTS, dims)
        head_width(dims, self.num_heads, self.head_dim)

    def widths(self, dims: Dims) -> tuple[int, int, int, int]:
        """Return the widths of the key-value latent, and of a head without positions, with positions and of values."""
        size = head_width(dims, self.num_heads, self.head_dim)
        latent = self.kv_latent or max(1, dims.dim // 4)
        return latent, size, self.rope_dim or 2 * -(-size // 4), self.value_dim or size

    def heads(self, dims: Dims) -> AttentionDims:
        """Return the number of heads, and the width of their queries and keys, at the given sizes."""
        _, size, rope, _ = self.widths(dims)
        return AttentionDims(self.num_heads, self.num_heads, size + rope)

    def position_heads(self, dims: Dims) -> AttentionDims:
        """Return the number of heads, and the width, of the parts of queries and keys that positions act on."""
        return AttentionDims(self.num_heads, 1, self.widths(dims)[2])

    def cache_size(self, dims: Dims) -> int:
        """Return the number of elements that text generation caches for each token: its latent and the shared key."""
        latent, _, rope, _ = self.widths(dims)
        return latent + rope

    def init(self, dims: Dims, position: PositionConfig, *, key: Key) -> "Latent":
        """Build the module at the given sizes."""
        latent, size, rope, value = self.widths(dims)
        heads = self.heads(dims)

        def weight(name: str, size_in: int, size_out: int, role: str) -> Array:
            return dims.weight(named(key, name), size_in, size_out, role=role)

        return Latent(
            wq_down=None if self.q_latent is None else weight("wq_down", dims.dim, self.q_latent, "in"),
            q_norm=None if self.q_latent is None else build_rms(self.q_latent, self.eps, "plain"),
            wq=weight("wq", self.q_latent or dims.dim, self.num_heads * heads.head_dim, "q"),
            wkv_down=weight("wkv_down", dims.dim, latent, "in"),
            kv_norm=build_rms(latent, self.eps, "plain"),
            wk=weight("wk", latent, self.num_heads * size, "k"),
            wv=weight("wv", latent, self.num_heads * value, "v"),
            wk_rope=weight("wk_rope", dims.dim, rope, "k"),
            wo=weight("wo", self.num_heads * value, dims.dim, "out"),
            scale=Fixed(score_scale(self.scale, heads.head_dim)),
            position=position.in_attention(rope),
            on_scores=position.on_scores(dims, heads, key=named(key, "on_scores")),
            scores=self.scores.init(dims, key=named(key, "scores")),
            mask=self.mask.init(dims, key=named(key, "mask")),
            normalizer=self.normalizer.init(dims, heads, key=named(key, "normalizer")),
            dropout=build_dropout(dims),
            num_heads=self.num_heads,
            cached=self.mask.causal,
        )


class Latent(eqx.Module):
    """Multi-head latent attention; see `LatentConfig`."""

    wq_down: Float[Array, "dim q_latent"] | None
    q_norm: RMSNorm | None
    wq: Float[Array, "q_in inner"]
    wkv_down: Float[Array, "dim kv_latent"]
    kv_norm: RMSNorm
    wk: Float[Array, "kv_latent inner_k"]
    wv: Float[Array, "kv_latent inner_v"]
    wk_rope: Float[Array, "dim rope"]
    wo: Float[Array, "inner_v dim"]
    scale: Fixed
    position: Any
    on_scores: Any
    scores: Any
    mask: Any
    normalizer: Any
    dropout: Any
    num_heads: int = eqx.field(static=True)
    cached: bool = eqx.field(static=True)  # whether no query attends to a later key

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the attention output of all heads, projected to the stream."""
        rope = self.wk_rope.shape[-1]
        with rename_sites("norm", "mixer.q_norm"):
            q = x if self.wq_down is None or self.q_norm is None else self.q_norm(project(x, self.wq_down))
        q = split_heads(project(q, self.wq), self.num_heads)
        with rename_sites("norm", "mixer.kv_norm"):
            latent = self.kv_norm(project(x, self.wkv_down))[:, None]
        q_rope, k_rope = self.position(q[..., -rope:], project(x, self.wk_rope)[:, None], ctx)
        if ctx.cache is not None:
            latent, k_rope = ctx.cache.extend("latent", latent), ctx.cache.extend("rope_key", k_rope)
        k, v = (split_heads(project(latent[:, 0], w), self.num_heads) for w in (self.wk, self.wv))
        k = jnp.concatenate([k, jnp.broadcast_to(k_rope, (*k.shape[:3], rope)).astype(k.dtype)], -1)
        q = site("mixer.q", jnp.concatenate([q[..., :-rope], q_rope], -1))
        z = PLAIN(self, q, site("mixer.k", k), site("mixer.v", v), replace(ctx, x=x))
        return project(join_heads(site("mixer.z", z)), self.wo)

    def visible(self, ctx: Context) -> Any:
        """Return whether each query may attend to each key (see `nn.mask.visible`)."""
        return visible(self.mask, ctx)

    def cache_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a sequence's latents and shared keys in a cache for `length` tokens.

        Raises:
            UserError: if queries may attend to later tokens, whose keys are not in the cache yet.
        """
        if not self.cached:
            problem = "this attention is not causal, so earlier tokens depend on later ones and cannot be cached"
            raise UserError(problem, remedy="Compute the whole sequence at once.")
        return {"latent": (1, length, self.wkv_down.shape[-1]), "rope_key": (1, length, self.wk_rope.shape[-1])}
