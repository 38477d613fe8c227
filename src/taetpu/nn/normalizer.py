"""Slot `normalizer` in attention: the attention weights as a function of the masked scores.

The module of a kind returns unnormalised weights and the total by which they are divided. Attention divides after the
product with the values, which is cheaper because the product is smaller than the weights.
"""

from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.core.config import Component, Traced
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import AttentionDims, Context, Dims, Fixed
from taetpu.nn.matmul import matmul

Scores = Float[Array, "batch head query key"]
Total = Float[Array, "batch head query 1"]
HIDDEN_BELOW = -1e29  # attention sets the scores of hidden keys to -1e30


@register("normalizer", "softmax")
class SoftmaxConfig(Component):
    """exp(s) / sum(exp(s)). Vaswani et al. 2017.

    Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.
    Reference: torch.nn.functional.scaled_dot_product_attention.
    """

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "Softmax":
        """Build the module at the given sizes."""
        return Softmax()


class Softmax(eqx.Module):
    """The softmax over keys."""

    def __call__(self, scores: Scores, ctx: Context) -> tuple[Scores, Total]:
        """Return the unnormalised weights and their total."""
        weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
        return weights, weights.sum(-1, keepdims=True)


@register("normalizer", "softmax1")
class Softmax1Config(Component):
    """exp(s) / (1 + sum(exp(s))), so that a head may attend to nothing. Miller 2023.

    Source: Miller 2023, "Attention Is Off By One", www.evanmiller.org/attention-is-off-by-one.html.
    Reference: x_transformers.attend.Attend.
    """

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "Softmax1":
        """Build the module at the given sizes."""
        return Softmax1()


class Softmax1(eqx.Module):
    """The softmax with an additional score of zero that belongs to no key."""

    def __call__(self, scores: Scores, ctx: Context) -> tuple[Scores, Total]:
        """Return the unnormalised weights and their total."""
        return _with_sink(scores, jnp.zeros(()))


@register("normalizer", "sink")
class SinkConfig(Component):
    """exp(s) / (exp(b) + sum(exp(s))), with a trained sink b for each head. OpenAI 2025 (gpt-oss).

    Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv 2508.10925.
    Reference: transformers.models.gpt_oss.modeling_gpt_oss.eager_attention_forward.
    """

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "Sink":
        """Build the module at the given sizes."""
        return Sink(jnp.zeros(heads.num_heads))


class Sink(eqx.Module):
    """The softmax with an additional trained score for each head that belongs to no key."""

    bias: Float[Array, " head"]

    def __call__(self, scores: Scores, ctx: Context) -> tuple[Scores, Total]:
        """Return the unnormalised weights and their total."""
        return _with_sink(scores, self.bias[:, None, None])


def _with_sink(scores: Scores, sink: Array) -> tuple[Scores, Total]:
    top = jax.lax.stop_gradient(jnp.maximum(scores.max(-1, keepdims=True), sink))
    weights = jnp.exp(scores - top)
    return weights, weights.sum(-1, keepdims=True) + jnp.exp(sink - top)


@register("normalizer", "sigmoid")
class SigmoidConfig(Component):
    """sigmoid(s + b), without normalisation over keys. Ramapuram et al. 2024.

    The default of b is -log(seq_len), with which the weights of a query sum to about 1 at initialisation.

    Source: Ramapuram et al. 2024, "Theory, Analysis, and Best Practices for Sigmoid Self-Attention", arXiv 2409.04431.
    Reference: x_transformers.attend.Attend.
    """

    bias: Annotated[float | None, Traced(neutral=None)] = None
    """The number b that is added to scores; `none`: -log(seq_len)."""

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "Sigmoid":
        """Build the module at the given sizes."""
        return Sigmoid(Fixed(-jnp.log(dims.seq_len) if self.bias is None else self.bias))


class Sigmoid(eqx.Module):
    """Weights that do not depend on other keys."""

    bias: Fixed

    def __call__(self, scores: Scores, ctx: Context) -> tuple[Scores, Total]:
        """Return the weights, and 1."""
        return jax.nn.sigmoid(scores + self.bias.value), jnp.ones((*scores.shape[:-1], 1))


@register("normalizer", "talking-heads")
class TalkingHeadsConfig(Component):
    """P softmax(L s), with trained matrices L and P that mix the scores and the weights of all heads. Shazeer 2020.

    Both matrices start at the identity, so a model starts as one with a softmax. A score that the mask of its own head
    hides counts as 0 in the mixed scores of other heads. The mixed weights may be negative, and need not sum to 1.

    Source: Shazeer et al. 2020, "Talking-Heads Attention", arXiv 2003.02436.
    Reference: x_transformers.attend.Attend, which adds the mixed scores to the scores: its matrix is L - 1.
    Excludes: attention kernels.
    """

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "TalkingHeads":
        """Build the module at the given sizes."""
        return TalkingHeads(jnp.eye(heads.num_heads), jnp.eye(heads.num_heads))


class TalkingHeads(eqx.Module):
    """The softmax over keys between two mixtures over heads; see `TalkingHeadsConfig`."""

    before: Float[Array, "head head"]
    after: Float[Array, "head head"]

    def __call__(self, scores: Scores, ctx: Context) -> tuple[Scores, Total]:
        """Return the weights, and 1."""
        hidden = scores < HIDDEN_BELOW
        mixed = jnp.where(hidden, scores, _mix_heads(self.before, jnp.where(hidden, 0.0, scores)))
        weights = _mix_heads(self.after, jax.nn.softmax(mixed, -1))
        return jnp.where(hidden, 0.0, weights), jnp.ones((*scores.shape[:-1], 1))


def _mix_heads(matrix: Float[Array, "head head"], x: Scores) -> Scores:
    """Return the sum over heads of x, weighted by each row of the matrix."""
    batch, heads, queries, keys = x.shape
    wide = x.reshape(batch, heads, queries * keys)
    return matmul(jnp.broadcast_to(matrix, (batch, heads, heads)), wide).reshape(x.shape)


@register("normalizer", "entmax")
class EntmaxConfig(Component):
    """1.5-entmax: max(s / 2 - t, 0)^2 with t such that the weights sum to 1; many weights are 0. Peters et al. 2019.

    Correia et al. 2019 use it in Transformers. The threshold t is exact; it is found by sorting the scores.

    Source: Peters et al. 2019, "Sparse Sequence-to-Sequence Models", arXiv 1905.05702; Correia et al. 2019, "Adaptively
    Sparse Transformers", arXiv 1909.00015.
    """

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "Entmax":
        """Build the module at the given sizes."""
        return Entmax()


class Entmax(eqx.Module):
    """Sparse weights that sum to 1."""

    def __call__(self, scores: Scores, ctx: Context) -> tuple[Scores, Total]:
        """Return the weights, and 1."""
        return entmax15(scores), jnp.ones((*scores.shape[:-1], 1))


@jax.custom_vjp
def entmax15(scores: Float[Array, "*lead key"]) -> Float[Array, "*lead key"]:
    """Return 1.5-entmax over the last axis. Peters et al. 2019, algorithm 2 and proposition 1."""
    # The threshold is at least -1, so the clipped scores have a weight of 0. Squares of masked scores would overflow.
    half = jnp.maximum((scores - scores.max(-1, keepdims=True)) / 2, -2.0)
    ordered = jnp.flip(jnp.sort(half, -1), -1)
    count = jnp.arange(1, scores.shape[-1] + 1)
    mean, square = jnp.cumsum(ordered, -1) / count, jnp.cumsum(ordered**2, -1) / count
    thresholds = mean - jnp.sqrt(jnp.maximum(1 / count - (square - mean**2), 0.0))
    size = (thresholds <= ordered).sum(-1, keepdims=True)
    threshold = jnp.take_along_axis(thresholds, size - 1, -1)
    return jnp.maximum(half - threshold, 0.0) ** 2


def _entmax15_forward(scores: Array) -> tuple[Array, Array]:
    weights = entmax15(scores)
    return weights, weights


def _entmax15_backward(weights: Array, cotangent: Array) -> tuple[Array]:
    root = jnp.sqrt(weights)
    product = cotangent * root
    return (product - root * (product.sum(-1, keepdims=True) / root.sum(-1, keepdims=True)),)


entmax15.defvjp(_entmax15_forward, _entmax15_backward)
