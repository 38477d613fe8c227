"""Slot `position`: the encoding of token order.

A kind may act on the input embeddings (`at_input`) and on queries and keys (`in_attention`). A kind that is set
for a single layer replaces only the model's action on queries and keys, so it must change that action (see
`check_layer`).
"""

from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Component, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import kinds, register
from taetpu.nn.common import Context, Dims, Fixed, Identity

Heads = Float[Array, "batch head seq head_dim"]
KVHeads = Float[Array, "batch kv_head seq head_dim"]


class PositionConfig(Component):
    """Base of position kinds, which override `at_input`, `in_attention` or both. The base class changes nothing."""

    @classmethod
    def acts_at_input(cls) -> bool:
        """Return whether the kind acts on the input embeddings."""
        return cls.at_input is not PositionConfig.at_input

    @classmethod
    def acts_in_attention(cls) -> bool:
        """Return whether the kind acts on queries and keys."""
        return cls.in_attention is not PositionConfig.in_attention

    def check_layer(self, own: "PositionConfig", number: int) -> None:
        """Raise `UserError` if `own`, the position of layer `number`, cannot act in a single layer.

        `self` is the position of the model.
        """
        if own == self:
            return
        if own.acts_at_input():
            known = kinds("position").items()
            usable = [kind for kind, cls in known if issubclass(cls, PositionConfig) and not cls.acts_at_input()]
            raise UserError(
                f"{own.kind!r} positions are added to the input embeddings, so a single layer cannot have them",
                path=("position",),
                remedy=f"Set model.position, or give the layer one of: {', '.join(sorted(usable))}.",
            )
        if not (own.acts_in_attention() or self.acts_in_attention()):
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

    def at_input(self, dims: Dims, *, key: Key) -> "Learned":
        """Build the module that acts on the input embeddings."""
        return Learned(dims.weight(named(key, "weight"), dims.seq_len, dims.dim, role="position"))


class Learned(eqx.Module):
    """A table of trained position vectors."""

    weight: Float[Array, "max_seq dim"]

    def __call__(self, x: Float[Array, "batch seq dim"], ctx: Context) -> Float[Array, "batch seq dim"]:
        """Return the embeddings plus the vector of each position."""
        seq, known = x.shape[1], len(self.weight)
        if seq > known:  # an index beyond the table would read its last row
            raise UserError(
                f"a sequence of {seq} tokens is longer than the table of learned positions, which has {known}",
                remedy=f"Use at most {known} tokens, or train with a longer task.seq_len or with rope positions.",
            )
        return x + self.weight[ctx.positions].astype(x.dtype)


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
        angle = angles(ctx.positions, x.shape[-1], self.base.value)
        table = jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(-1, x.shape[-1])
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
        return q * cos + _rotated(q) * sin, k * cos + _rotated(k) * sin


def _rotated(x: Heads) -> Heads:
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([-second, first], -1)


def angles(positions: Array, size: int, base: Array) -> Float[Array, "seq half"]:
    """Return position / base^(2i/size) for i = 0 .. size/2 - 1."""
    return positions[:, None] / base ** (jnp.arange(0, size, 2) / size)
