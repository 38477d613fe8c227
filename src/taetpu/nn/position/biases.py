"""Positions that are added to the scores."""

from typing import Annotated, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pydantic import Field, PositiveFloat, PositiveInt

from taetpu.core.config import MAX_SIZE, Size, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.nn.common import AttentionDims, Context, Dims, Fixed
from taetpu.nn.mask import distances
from taetpu.nn.position.base import Heads, Keys, PositionConfig, Scores


@register("position", "alibi")
class AlibiConfig(PositionConfig):
    """Scores minus m_h (i - j), with m_h = 2^(-8 h / heads) for head h = 1 .. heads. Press et al. 2022.

    If the number of heads is not a power of two, the slopes are those of the next lower power, followed by every other
    slope of the next higher power, as in the authors' code.

    Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", arXiv 2108.12409.
    Reference: transformers.models.bloom.modeling_bloom.build_alibi_tensor.
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
        apart = distances(ctx)
        return scores - self.slopes.value[:, None, None] * apart


@register("position", "t5")
class T5Config(PositionConfig):
    """A trained bias for each head and each bucket of relative positions, shared by all layers. Raffel et al. 2020.

    Half of the buckets are single distances; the other half are distances that grow logarithmically up to
    `max_distance`. Causal buckets, as in T5's decoder: distances to later positions belong to bucket 0.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
    arXiv 1910.10683.
    Reference: transformers.models.t5.modeling_t5.T5Attention.
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
        bucket = t5_bucket(jnp.maximum(distances(ctx), 0), len(self.bias), self.max_distance)
        if bucket.ndim == 4:  # (batch, 1, query, key)
            return scores + self.bias[bucket[:, 0]].transpose(0, 3, 1, 2)
        return scores + self.bias[bucket].transpose(2, 0, 1)


def t5_bucket(apart: Int[Array, "*shape"], buckets: int, max_distance: int) -> Int[Array, "*shape"]:
    """Return the bucket of each distance, which is at least 0; see `T5Config`."""
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(apart, 1) / exact) / jnp.log(max_distance / exact)
    large = exact + (ratio * (buckets - exact)).astype(jnp.int32)
    return jnp.where(apart < exact, apart, jnp.minimum(large, buckets - 1))


@register("position", "kerple")
class KerpleConfig(PositionConfig):
    """Scores minus r1 log(1 + r2 |i - j|) (`form: log`) or r1 |i - j|^r2 (`power`), r1 and r2 trained for each head.

    Chi et al. 2022. r1 and r2 are at least 0.01, and r2 is at most 2 in the form `power`. Bounds and initial values are
    those of the authors' code.

    Source: Chi et al. 2022, "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", arXiv
    2205.09921.
    """

    form: Literal["log", "power"] = "log"
    """The kernel."""

    def on_scores(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "Kerple":
        """Build the module that acts on scores."""
        power = self.form == "power"

        def draw(name: str, upper: float) -> Array:
            return jax.random.uniform(named(key, name), (heads.num_heads,), maxval=upper)

        return Kerple(draw("r1", 1.0 if power else 2.0), draw("r2", 2.0 if power else 1.0), power)


class Kerple(eqx.Module):
    """Biases by a kernel; see `KerpleConfig`."""

    r1: Float[Array, " head"]
    r2: Float[Array, " head"]
    power: bool = eqx.field(static=True)

    def __call__(self, scores: Scores, q: Heads, k: Keys, ctx: Context) -> Scores:
        """Return the scores with the bias of each head and distance."""
        apart = jnp.abs(distances(ctx))
        r1 = clip_with_gradient(self.r1, 0.01, jnp.inf)[:, None, None]
        r2 = clip_with_gradient(self.r2, 0.01, 2.0 if self.power else jnp.inf)[:, None, None]
        if not self.power:
            return scores - r1 * jnp.log1p(r2 * apart)
        return scores - r1 * jnp.where(apart > 0, jnp.maximum(apart, 1) ** r2, 0.0)  # 0^r2 has no gradient


def clip_with_gradient(x: Array, low: float, high: float) -> Array:
    """Return clipped numbers whose gradient ignores the bounds, so that training can move them back."""
    return x + jax.lax.stop_gradient(jnp.clip(x, low, high) - x)


@register("position", "fire")
class FireConfig(PositionConfig):
    """Scores plus f(log(1 + c |i - j|) / log(1 + c max(L, i))) with a small network f for each head. Li et al. 2023.

    f has one hidden layer of ReLUs, c starts at 0.1, and L at `threshold`; all are trained. The query position i counts
    from the start of its document. f starts as torch.nn.Linear does, as in the authors' code. Its output has no bias,
    because one number added to all scores of a query does not change their softmax.

    Source: Li et al. 2023, "Functional Interpolation for Relative Positions Improves Long Context Transformers", arXiv
    2310.04418.
    """

    width: Size = 32
    """Number of hidden units of f."""
    threshold: Annotated[PositiveFloat, Traced()] = 512.0
    """The initial L, below which all queries have the same normaliser."""

    def on_scores(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "Fire":
        """Build the module that acts on scores."""

        def draw(name: str, *shape: int) -> Array:
            bound = shape[0] ** -0.5
            return jax.random.uniform(named(key, name), shape, minval=-bound, maxval=bound)

        return Fire(
            up=draw("up", 1, self.width)[0],
            up_bias=draw("up_bias", 1, self.width)[0],
            down=draw("down", self.width, heads.num_heads),
            c=jnp.full((), 0.1),
            multiplier=jnp.ones(()),
            threshold=Fixed(self.threshold),
        )


class Fire(eqx.Module):
    """Biases by a network of the relative distance; see `FireConfig`."""

    up: Float[Array, " width"]
    up_bias: Float[Array, " width"]
    down: Float[Array, "width head"]
    c: Float[Array, ""]
    multiplier: Float[Array, ""]
    threshold: Fixed

    def __call__(self, scores: Scores, q: Heads, k: Keys, ctx: Context) -> Scores:
        """Return the scores with the bias of each head and distance."""
        queries, keys = ctx.position_pairs
        reach = jnp.maximum(ctx.positions_in_document, jnp.abs(self.multiplier * self.threshold.value))
        reach = reach[:, None] if reach.ndim == 1 else reach[:, None, :, None]
        distance = jnp.log1p(jnp.abs(self.c * (queries - keys)))
        share = distance / (jnp.log1p(jnp.abs(self.c * reach)) + 1e-6)
        hidden = jax.nn.relu(share[..., None] * self.up + self.up_bias)
        bias = hidden @ self.down  # (..., query, key, head)
        return scores + (bias.transpose(2, 0, 1) if bias.ndim == 3 else bias[:, 0].transpose(0, 3, 1, 2))
