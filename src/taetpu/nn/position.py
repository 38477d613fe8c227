"""Slot `position`: the encoding of token order.

A kind may act on the input embeddings (`at_input`), on queries and keys (`in_attention`) and on scores (`on_scores`). A
kind that is set for a single layer replaces only the model's actions in attention, so it must change one of them (see
`check_layer`).

In sequences of several documents (`Context.segments`), absolute positions restart in each document. Relative positions
are differences, which a restart would not change between tokens of one document.
"""

from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from taetpu.core.config import MAX_SIZE, Component, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import kinds, register
from taetpu.nn.common import AttentionDims, Context, Dims, Fixed, Identity

Heads = Float[Array, "batch head seq head_dim"]
KVHeads = Float[Array, "batch kv_head seq head_dim"]
Keys = Float[Array, "batch head key head_dim"]
Scores = Float[Array, "batch head query key"]


class PositionConfig(Component):
    """Base of position kinds, which override `at_input`, `in_attention` or `on_scores`. The base class changes nothing.

    Attributes:
        shared: Whether all layers use one module, built once, for their scores.
        extrapolates: Whether the modules accept sequences that are longer than those of training.
    """

    shared: ClassVar[bool] = False
    extrapolates: ClassVar[bool] = True

    @model_validator(mode="after")
    def _acts(self) -> "PositionConfig":
        if self.kind != "none" and not (self.acts_at_input() or self.acts_in_attention() or self.acts_on_scores()):
            problem = f"position {self.kind!r} changes nothing"
            raise UserError(problem, remedy="Define at_input, in_attention or on_scores.")
        return self

    @classmethod
    def acts_at_input(cls) -> bool:
        """Return whether the kind acts on the input embeddings."""
        return cls.at_input is not PositionConfig.at_input

    @classmethod
    def acts_in_attention(cls) -> bool:
        """Return whether the kind acts on queries and keys."""
        return cls.in_attention is not PositionConfig.in_attention

    @classmethod
    def acts_on_scores(cls) -> bool:
        """Return whether the kind acts on scores."""
        return cls.on_scores is not PositionConfig.on_scores

    def check_layer(self, own: "PositionConfig", number: int) -> None:
        """Raise `UserError` if `own`, the position of layer `number`, cannot act in a single layer.

        `self` is the position of the model.
        """
        if own == self:
            return
        if own.acts_at_input():
            known = kinds("position").items()
            usable = [kind for kind, cls in known
                      if issubclass(cls, PositionConfig) and not cls.acts_at_input() and not cls.shared]  # fmt: skip
            raise UserError(
                f"{own.kind!r} positions are added to the input embeddings, so a single layer cannot have them",
                path=("position",),
                remedy=f"Set model.position, or give the layer one of: {', '.join(sorted(usable))}.",
            )
        if own.shared:
            raise UserError(
                f"{own.kind!r} positions are shared by all layers, so a single layer cannot have them",
                path=("position",),
                remedy=f"Set model.position to {own.kind}, or remove the layer's position.",
            )
        if not any(one.acts_in_attention() or one.acts_on_scores() for one in (own, self)):
            raise UserError(
                f"{own.kind!r} changes nothing in layer {number}, because {self.kind} positions act on the input "
                "embeddings",
                path=("position",),
                remedy=f"Set model.position to {own.kind}, or remove the layer's position.",
            )

    def at_input(self, dims: Dims, *, key: Key) -> eqx.Module:
        """Build the module that acts on the input embeddings."""
        return Identity()

    def in_attention(self, head_dim: int) -> eqx.Module:
        """Build the module that acts on queries and keys."""
        return Untouched()

    def on_scores(self, dims: Dims, heads: AttentionDims, *, key: Key) -> Any:
        """Build the module `(scores, q, k, ctx) -> scores`; None if scores are unchanged.

        The module receives the scaled scores, the queries and keys after `in_attention`, with a key for each query
        head, and the mixer's input as `ctx.x`.
        """
        return None


class SharedScores(eqx.Module):
    """A call of the module that acts on the scores of all layers (`PositionConfig.shared`)."""

    def __call__(self, scores: Scores, q: Heads, k: Keys, ctx: Context) -> Scores:
        """Return the changed scores."""
        return ctx.shared_scores(scores, q, k, ctx)


SHARED = SharedScores()


class Untouched(eqx.Module):
    """The identity function for queries and keys."""

    def __call__(self, q: Heads, k: KVHeads, ctx: Context) -> tuple[Heads, KVHeads]:
        """Return queries and keys unchanged."""
        return q, k


@register("position", "none")
class NoPosition(PositionConfig):
    """No encoding, so that only the causal mask depends on order. Haviv et al. 2022 (NoPE)."""


@register("position", "learned")
class LearnedConfig(PositionConfig):
    """A trained vector for each position, added to the embeddings. Radford et al. 2018."""

    extrapolates = False

    def at_input(self, dims: Dims, *, key: Key) -> "Learned":
        """Build the module that acts on the input embeddings."""
        return Learned(dims.weight(named(key, "weight"), dims.seq_len, dims.dim, role="position"))


class Learned(eqx.Module):
    """A table of trained position vectors."""

    weight: Float[Array, "max_seq dim"]

    def __call__(self, x: Float[Array, "batch seq dim"], ctx: Context) -> Float[Array, "batch seq dim"]:
        """Return the embeddings plus the vector of each position."""
        seq, known = ctx.keys.tokens.shape[1], len(self.weight)
        if seq > known:  # an index beyond the table would read its last row
            raise UserError(
                f"a sequence of {seq} tokens is longer than the table of learned positions, which has {known}",
                remedy=f"Use at most {known} tokens, or train with a longer task.seq_len or with rope positions.",
            )
        return x + self.weight[ctx.positions_in_document].astype(x.dtype)


@register("position", "sinusoidal")
class SinusoidalConfig(PositionConfig):
    """sin and cos of position / base^(2i/dim), interleaved, added to sqrt(dim) times the embeddings.

    Vaswani et al. 2017, section 3.5 (factor: section 3.4). At initialisation, the table (root mean square 0.7)
    outweighs embeddings with a std of 0.02 up to a dim of about 1250. With init `fan-in`, both have unit scale.
    """

    base: Annotated[PositiveFloat, Traced()] = 10000.0
    """Wavelengths range from 2 pi to 2 pi times this base."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        if dims.dim % 2:
            raise UserError(f"sinusoidal positions need an even dim, got {dims.dim}")

    def at_input(self, dims: Dims, *, key: Key) -> "Sinusoidal":
        """Build the module that acts on the input embeddings."""
        return Sinusoidal(Fixed(self.base))


class Sinusoidal(eqx.Module):
    """The sinusoidal table, computed from its base."""

    base: Fixed

    def __call__(self, x: Float[Array, "batch seq dim"], ctx: Context) -> Float[Array, "batch seq dim"]:
        """Return sqrt(dim) times the embeddings plus the table."""
        angle = angles(ctx.positions_in_document, x.shape[-1], self.base.value)
        table = jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(*angle.shape[:-1], x.shape[-1])
        return x * x.shape[-1] ** 0.5 + table.astype(x.dtype)


@register("position", "rope")
class RopeConfig(PositionConfig):
    """Queries and keys rotated by position, in pairs of one element from each half of a head. Su et al. 2021 (RoPE)."""

    base: Annotated[PositiveFloat, Traced()] = 10000.0
    """Wavelengths range from 2 pi to 2 pi times this base."""

    def in_attention(self, head_dim: int) -> "Rope":
        """Build the module that acts on queries and keys."""
        if head_dim % 2:
            raise UserError(
                f"rope rotates pairs and needs an even head_dim, got {head_dim}",
                path=("position",),
                remedy="Use another num_heads, or set head_dim.",
            )
        return Rope(Fixed(self.base))


class Rope(eqx.Module):
    """Rotary positions, computed from their base."""

    base: Fixed

    def __call__(self, q: Heads, k: KVHeads, ctx: Context) -> tuple[Heads, KVHeads]:
        """Return the rotated queries and keys."""
        angle = angles(ctx.positions, q.shape[-1], self.base.value)
        cos, sin = (jnp.concatenate([f(angle)] * 2, -1).astype(q.dtype) for f in (jnp.cos, jnp.sin))
        if ctx.positions.ndim == 2:  # one row per sequence, for all heads
            cos, sin = cos[:, None], sin[:, None]
        return q * cos + _rotated(q) * sin, k * cos + _rotated(k) * sin


def _rotated(x: Heads) -> Heads:
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([-second, first], -1)


def angles(positions: Array, size: int, base: Array) -> Float[Array, "*seq half"]:
    """Return position / base^(2i/size) for i = 0 .. size/2 - 1."""
    return positions[..., None] / base ** (jnp.arange(0, size, 2) / size)


# --- biases of the scores --------------------------------------------------------------------------------------------


@register("position", "alibi")
class AlibiConfig(PositionConfig):
    """Scores minus m_h (i - j), with m_h = 2^(-8 h / heads) for head h = 1 .. heads. Press et al. 2022.

    If the number of heads is not a power of two, the slopes are those of the next lower power, followed by every other
    slope of the next higher power, as in the authors' code.
    """

    def on_scores(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "Alibi":
        """Build the module that acts on scores."""
        return Alibi(Fixed(alibi_slopes(heads.num_heads)))


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope of each head; see `AlibiConfig`."""
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return slopes if power == num_heads else slopes + alibi_slopes(2 * power)[::2][: num_heads - power]


class Alibi(eqx.Module):
    """Linear biases."""

    slopes: Fixed

    def __call__(self, scores: Scores, q: Heads, k: Keys, ctx: Context) -> Scores:
        """Return the scores with the bias of each head."""
        queries, keys = ctx.position_pairs
        apart = queries - keys
        return scores - self.slopes.value[:, None, None] * apart


@register("position", "t5")
class T5Config(PositionConfig):
    """A trained bias for each head and each bucket of relative positions, shared by all layers. Raffel et al. 2020.

    Half of the buckets are single distances; the other half are distances that grow logarithmically up to
    `max_distance`. Causal buckets, as in T5's decoder: distances to later positions belong to bucket 0.
    """

    shared = True

    buckets: Annotated[int, Field(ge=2, le=MAX_SIZE)] = 32
    """Number of buckets."""
    max_distance: PositiveInt = 128
    """Distance from which all positions belong to the last bucket."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        if self.max_distance <= self.buckets // 2:
            problem = f"max_distance={self.max_distance} is not above half of the {self.buckets} buckets"
            raise UserError(problem, path=("max_distance",), remedy=f"Set it above {self.buckets // 2}.")

    def on_scores(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "T5Bias":
        """Build the module that acts on scores."""
        table = dims.weight(named(key, "bias"), self.buckets, heads.num_heads, role="position")
        return T5Bias(table, self.max_distance)


class T5Bias(eqx.Module):
    """A table of biases by bucket and head."""

    bias: Float[Array, "bucket head"]
    max_distance: int = eqx.field(static=True)

    def __call__(self, scores: Scores, q: Heads, k: Keys, ctx: Context) -> Scores:
        """Return the scores with the bias of each head and distance."""
        queries, keys = ctx.position_pairs
        bucket = t5_bucket(jnp.maximum(queries - keys, 0), len(self.bias), self.max_distance)
        if bucket.ndim == 4:  # (batch, 1, query, key)
            return scores + self.bias[bucket[:, 0]].transpose(0, 3, 1, 2)
        return scores + self.bias[bucket].transpose(2, 0, 1)


def t5_bucket(apart: Int[Array, "*shape"], buckets: int, max_distance: int) -> Int[Array, "*shape"]:
    """Return the bucket of each distance, which is at least 0; see `T5Config`."""
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(apart, 1) / exact) / jnp.log(max_distance / exact)
    large = exact + (ratio * (buckets - exact)).astype(jnp.int32)
    return jnp.where(apart < exact, apart, jnp.minimum(large, buckets - 1))
