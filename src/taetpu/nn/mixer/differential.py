"""Differential attention: the difference of the attention patterns of two heads."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites, site
from taetpu.nn.attention import Attention, AttentionConfig
from taetpu.nn.attention_kernels import Heads, Keys, KVHeads, Plain, Scores
from taetpu.nn.common import Context, Dims, Fixed
from taetpu.nn.matmul import matmul
from taetpu.nn.norm import RMSNorm
from taetpu.nn.position.base import PositionConfig

STD = 0.1  # of the initial vectors of lambda, as in the authors' code


@register("mixer", "differential")
class DifferentialConfig(AttentionConfig):
    """(1 - l0) RMS((A1 - lambda A2) v), with the patterns A1 and A2 of heads 2i and 2i + 1. Ye et al. 2024.

    v has the values of both heads, side by side. lambda = exp(q1.k1) - exp(q2.k2) + l0, with four trained vectors of
    width head_dim that all heads of a layer share, and l0 = 0.8 - 0.6 exp(-0.3 layer), with layers counted from 0. The
    RMS norm is over 2 head_dim elements and has no weight, as in DiffLlama; the authors' code has one.

    With fewer key-value heads, the two heads of a pair read the two keys of one pair, as in DiffLlama. In the authors'
    code, query head i reads key head floor(i * num_kv_heads / num_heads), so the heads of a pair may share a key.

    Source: Ye et al. 2024, "Differential Transformer", arXiv 2410.05258.
    Reference: transformers.models.diffllama.modeling_diffllama.DiffLlamaAttention.
    Excludes: an odd number of heads or of key-value heads, and attention kernels.
    """

    eps: PositiveFloat = 1e-5
    """Number added to the mean square in the norm of the outputs of heads."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        for name in ("num_heads", "num_kv_heads"):
            value = getattr(self, name)
            if value is not None and value % 2:
                problem = f"{name} must be even, because pairs of heads are subtracted, got {value}"
                raise UserError(problem, path=(name,), remedy=f"Use {name}: {value + 1}, or another even number.")
        super().check(dims)

    def init(self, dims: Dims, position: PositionConfig, *, key: Key) -> Attention:
        """Build the module at the given sizes."""
        attention = super().init(dims, position, key=key)
        size = self.heads(dims).head_dim
        path = Difference(
            **{name: STD * jax.random.normal(named(key, name), (size,)) for name in ("q1", "k1", "q2", "k2")},
            start=Fixed(0.8 - 0.6 * jnp.exp(-0.3 * dims.layer)),
            eps=self.eps,
        )
        return eqx.tree_at(lambda a: a.path, attention, path)


class Difference(Plain):
    """The attention path of `DifferentialConfig`.

    The output `(batch, head, seq, head_dim)` has the two halves of a pair's output as heads 2i and 2i + 1.
    """

    q1: Float[Array, " head_dim"]
    k1: Float[Array, " head_dim"]
    q2: Float[Array, " head_dim"]
    k2: Float[Array, " head_dim"]
    start: Fixed
    eps: float = eqx.field(static=True)

    def shared(self, kv: KVHeads, heads: int) -> Keys:
        """Repeat each pair of key-value heads for the pairs of query heads that read it."""
        if heads == 1:
            return kv
        pairs = kv.reshape(kv.shape[0], -1, 2, *kv.shape[2:])
        return jnp.repeat(pairs, heads, axis=1).reshape(kv.shape[0], -1, *kv.shape[2:])

    def read(self, attention: Attention, scores: Scores, v: Keys, ctx: Context) -> Heads:
        """Return the normalised differences of the weighted values."""
        batch, heads, queries, keys = scores.shape
        pattern, total = attention.normalizer(scores, ctx)
        pattern = site("mixer.pattern", (pattern / total).astype(v.dtype)).astype(jnp.float32)
        pattern = pattern.reshape(batch, heads // 2, 2, queries, keys)
        mixed = (pattern[:, :, 0] - self.factor() * pattern[:, :, 1]).astype(v.dtype)
        mixed = attention.dropout(mixed, None if ctx.key is None else named(ctx.key, "pattern"))
        z = matmul(mixed, _side_by_side(v), jnp.float32)
        with rename_sites("norm", "mixer.z_norm"):
            z = RMSNorm(None, self.eps)(z) * (1 - self.start.value)
        halves = z.reshape(batch, heads // 2, queries, 2, -1).swapaxes(2, 3)
        return halves.reshape(batch, heads, queries, -1).astype(v.dtype)

    def factor(self) -> Float[Array, ""]:
        """Return lambda, in float32."""
        first, second = ((q * k).sum() for q, k in ((self.q1, self.k1), (self.q2, self.k2)))
        return jnp.exp(first) - jnp.exp(second) + self.start.value


def _side_by_side(v: Keys) -> Float[Array, "batch pair key width"]:
    """Return the values of each pair of heads as one head of twice the width."""
    batch, heads, keys, size = v.shape
    return v.reshape(batch, heads // 2, 2, keys, size).swapaxes(2, 3).reshape(batch, heads // 2, keys, 2 * size)
