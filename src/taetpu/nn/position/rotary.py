"""Rotary positions: queries and keys rotated by angles that are proportional to the position."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field, PositiveFloat

from taetpu.core.config import SlotMark, Traced
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.nn.common import Context, Fixed
from taetpu.nn.position.base import Heads, KVHeads, PositionConfig
from taetpu.nn.rope_scaling import ByLength, NoScaling


@register("position", "rope")
class RopeConfig(PositionConfig):
    """Pairs of elements of queries and keys, rotated by position / base^(2i/size). Su et al. 2021 (RoPE).

    `size` is the number of elements of a head that are rotated: `fraction` times head_dim. The others, which follow,
    stay as they are (GPT-NeoX: 0.25). Pair i has the elements i and i + size/2 (`pairs: half`; Llama, GPT-NeoX) or 2i
    and 2i + 1 (`interleaved`; GPT-J, DeepSeek). The two differ by a permutation of the columns of the projections.

    Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", arXiv 2104.09864.
    Reference: transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXRotaryEmbedding.
    """

    base: Annotated[PositiveFloat, Traced()] = 10000.0
    """Wavelengths range from 2 pi to 2 pi times this base."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a head's elements that are rotated."""
    pairs: Literal["half", "interleaved"] = "half"
    """The elements that are rotated together: one of each half (`half`) or neighbours (`interleaved`)."""
    scaling: Annotated[Any, SlotMark("rope_scaling")] = NoScaling()
    """Change of the frequencies for sequences that are longer than those of an earlier training."""

    def in_attention(self, head_dim: int) -> "Rope":
        """Build the module that acts on queries and keys."""
        size = self.rotated(head_dim)
        self.scaling.check_pairs(size // 2)
        return Rope(Fixed(self.base), size, self.pairs == "interleaved", self.scaling.init())

    def rotated(self, head_dim: int) -> int:
        """Return the number of elements of a head that are rotated.

        Raises:
            UserError: if it is odd or zero.
        """
        size = int(head_dim * self.fraction)
        if size % 2 or not size:
            share = "" if self.fraction == 1 else f" times fraction={self.fraction}, rounded down"
            raise UserError(
                f"{self.kind} rotates pairs and needs an even head_dim{share}, got {size}",
                path=("position",),
                remedy=f"Use another num_heads, or set head_dim (rope_dim in mla){' or fraction' if share else ''}.",
            )
        return size


class Rope(eqx.Module):
    """Rotary positions, computed from their base; see `RopeConfig`."""

    base: Fixed
    size: int = eqx.field(static=True)
    interleaved: bool = eqx.field(static=True, default=False)
    scaling: Any = None

    def __call__(self, q: Heads, k: KVHeads, ctx: Context) -> tuple[Heads, KVHeads]:
        """Return the rotated queries and keys."""
        cos, sin = self.cos_sin(ctx, q.dtype)
        return self.rotate(q, cos, sin), self.rotate(k, cos, sin)

    def cos_sin(self, ctx: Context, dtype: Any) -> tuple[Array, Array]:
        """Return the factors of each element, `(seq, size)` or `(batch, 1, seq, size)`."""
        factor, scaling = None, self.scaling
        if isinstance(scaling, ByLength):
            scaling = scaling.at_length(ctx.keys.tokens.shape[1])
        if scaling is None:
            angle = angles(ctx.positions, self.size, self.base.value)
        else:
            frequencies, factor = scaling(angles(jnp.ones(()), self.size, self.base.value), self.base.value)
            angle = ctx.positions[..., None] * frequencies

        def at_elements(function: Callable[[Array], Array]) -> Array:
            values = function(angle) if factor is None else function(angle) * factor
            return self.at_elements(values, ctx).astype(dtype)

        return at_elements(jnp.cos), at_elements(jnp.sin)

    def at_elements(self, values: Float[Array, "*seq half"], ctx: Context) -> Float[Array, "*batch_and_seq size"]:
        """Return values of pairs at both elements of each pair, with an axis for heads if sequences differ."""
        both = jnp.repeat(values, 2, -1) if self.interleaved else jnp.concatenate([values] * 2, -1)
        return both[:, None] if ctx.positions.ndim == 2 else both

    def rotate(self, x: Heads, cos: Array, sin: Array) -> Heads:
        """Return queries or keys with rotated pairs."""
        if self.size == x.shape[-1]:
            return x * cos + self.quarter_turn(x) * sin
        x, rest = x[..., : self.size], x[..., self.size :]
        return jnp.concatenate([x * cos + self.quarter_turn(x) * sin, rest], -1)

    def quarter_turn(self, x: Heads) -> Heads:
        """Return each pair (a, b) as (-b, a)."""
        if self.interleaved:
            return jnp.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([-second, first], -1)


@register("position", "xpos")
class XposConfig(RopeConfig):
    """Rope, with queries times z^(position / scale_base) and keys divided by it, so that scores decay with distance.

    z = (2i/size + 0.4) / 1.4 for pair i. Sun et al. 2023. The factor on a score depends only on the distance. For later
    keys it would grow, so xpos is meant for causal masks.

    Source: Sun et al. 2023, "A Length-Extrapolatable Transformer", arXiv 2212.10554.
    Reference: x_transformers.x_transformers.RotaryEmbedding.
    """

    scale_base: Annotated[PositiveFloat, Traced()] = 512.0
    """Distance over which the scores of pair i fall by the factor z."""

    def in_attention(self, head_dim: int) -> "Xpos":
        """Build the module that acts on queries and keys."""
        rope = super().in_attention(head_dim)
        return Xpos(rope.base, rope.size, rope.interleaved, rope.scaling, Fixed(self.scale_base))


class Xpos(Rope):
    """Rotary positions with decay; see `XposConfig`."""

    scale_base: Any = None

    def __call__(self, q: Heads, k: KVHeads, ctx: Context) -> tuple[Heads, KVHeads]:
        """Return the rotated and scaled queries and keys."""
        parts = self.cos_sin(ctx, jnp.float32)
        share = (jnp.arange(0, self.size, 2) / self.size + 0.4) / 1.4
        scale = self.at_elements(share ** (ctx.positions[..., None] / self.scale_base.value), ctx)

        def scaled(x: Heads, scale: Array) -> Heads:
            return self.rotate(x, *((part * scale).astype(x.dtype) for part in parts))

        return scaled(q, scale), scaled(k, 1 / scale)


def angles(positions: Array, size: int, base: Array) -> Float[Array, "*seq half"]:
    """Return position / base^(2i/size) for i = 0 .. size/2 - 1."""
    return positions[..., None] / base ** (jnp.arange(0, size, 2) / size)
