"""Residual connections with several streams."""

from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from pydantic import Field

from taetpu.core.config import Component, Traced
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, project
from taetpu.nn.residual.base import Stream, Streams

Count = Annotated[int, Field(gt=1, le=64)]
NORM_EPS, SINKHORN_EPS = 1e-6, 1e-6


def branch_number(dims: Dims) -> Array:
    """Return the number of a branch, two for each layer. Branch number k reads stream k mod n at first."""
    return 2 * dims.layer + (dims.branch == "ffn")


@register("residual", "hyper-connections")
class HyperConnectionsConfig(Component):
    """n residual streams X: a branch reads a X, and X becomes R X + b y. Zhu et al. 2024, static hyper-connections.

    a, b and R are trained for each branch. Initially, R is the identity, b is 1, and branch number k (two per layer)
    reads stream k mod n, so that each stream holds the ordinary residual stream.

    Source: Zhu et al. 2024, "Hyper-Connections", arXiv 2409.19606, algorithm 2.
    """

    streams: Count = 4
    """The number n of residual streams."""

    def init(self, dims: Dims, *, key: Key) -> "HyperConnections":
        """Build the module at the given sizes."""
        n = self.streams
        return HyperConnections(jax.nn.one_hot(branch_number(dims) % n, n), jnp.eye(n), jnp.ones(n))


class HyperConnections(eqx.Module):
    """Static hyper-connections of one branch."""

    reads: Float[Array, " stream"]
    mixes: Float[Array, "stream stream"]
    writes: Float[Array, " stream"]

    def read(self, x: Streams) -> Stream:
        """Return the input of the branch."""
        return jnp.einsum("bsnd,n->bsd", x, self.reads.astype(x.dtype))

    def __call__(self, x: Streams, y: Stream) -> Streams:
        """Return the residual streams after the branch."""
        mixed = jnp.einsum("bsnd,mn->bsmd", x, self.mixes.astype(x.dtype))
        return mixed + y[:, :, None] * self.writes.astype(x.dtype)[:, None]


# --- maps that depend on the streams ----------------------------------------------------------------------------------


def read_streams(x: Streams, weights: Float[Array, "batch seq stream"]) -> Stream:
    """Return the weighted sum of the streams, with weights for each token."""
    return (x * weights.astype(x.dtype)[..., None]).sum(2)


def write_streams(
    x: Streams,
    y: Stream,
    mixes: Float[Array, "batch seq target stream"],
    writes: Float[Array, "batch seq stream"],
) -> Streams:
    """Return the sums of the streams weighted by `mixes`, plus `y` weighted by `writes`."""
    mixed = (x[:, :, None] * mixes.astype(x.dtype)[..., None]).sum(3)
    return mixed + y[:, :, None] * writes.astype(x.dtype)[..., None]


@register("residual", "dynamic-hyper-connections")
class DynamicHyperConnectionsConfig(Component):
    """Hyper-connections in which a, b and R depend on the streams: tanh(norm(x) W) s is added. Zhu et al. 2024 (DHC).

    Each stream x has a row norm(x) W of n + 2 numbers: its additions to its elements of a and b, and to its column of
    R. s is one number for a and R, and one for b. W starts at 0 and s at 0.01, so that the connections start as those
    of `hyper-connections`. norm is a layer norm without weight and bias.

    x-transformers 2.31.10 has no such kind: its `HyperConnection` applies sigmoid in place of tanh, as in `mhc`.

    Source: Zhu et al. 2024, "Hyper-Connections", arXiv 2409.19606, algorithm 2.
    """

    streams: Count = 4
    """The number n of residual streams."""

    def init(self, dims: Dims, *, key: Key) -> "DynamicHyperConnections":
        """Build the module at the given sizes."""
        static = HyperConnectionsConfig(streams=self.streams).init(dims, key=key)
        return DynamicHyperConnections(
            static.reads, static.mixes, static.writes, jnp.zeros((dims.dim, self.streams + 2)), jnp.full(2, 0.01)
        )


class DynamicHyperConnections(eqx.Module):
    """Dynamic hyper-connections of one branch; see `DynamicHyperConnectionsConfig`.

    Attributes:
        reads: a.
        mixes: R.
        writes: b.
        weight: W; the columns are those of a, of b, and of each row of R.
        scales: s of a and R, and of b.
    """

    reads: Float[Array, " stream"]
    mixes: Float[Array, "stream stream"]
    writes: Float[Array, " stream"]
    weight: Float[Array, "dim maps"]
    scales: Float[Array, "2"]

    def additions(self, x: Streams) -> Float[Array, "batch seq stream maps"]:
        """Return tanh(norm(x) W) s for each stream, in float32."""
        h = x.astype(jnp.float32)
        h = h - h.mean(-1, keepdims=True)
        h = (h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)
        a, b = self.scales
        scales = jnp.stack([a, b, *[a] * len(self.reads)])
        return jnp.tanh(project(h, self.weight, out=jnp.float32)) * scales

    def read(self, x: Streams) -> Stream:
        """Return the input of the branch."""
        return read_streams(x, self.reads + self.additions(x)[..., 0])

    def __call__(self, x: Streams, y: Stream) -> Streams:
        """Return the residual streams after the branch."""
        added = self.additions(x)
        return write_streams(x, y, self.mixes + added[..., 2:].swapaxes(2, 3), self.writes + added[..., 1])


# --- doubly stochastic mixing -----------------------------------------------------------------------------------------


def sinkhorn(logits: Float[Array, "row column *rest"], iterations: int) -> Float[Array, "row column *rest"]:
    """Return exp(logits) with columns and rows that are divided by their sums in turn. Sinkhorn and Knopp 1967.

    Rows are divided last, so they sum to 1, and columns approximately. `SINKHORN_EPS` is added to the sums and to the
    first matrix, as in DeepSeek V4. The iterations are a loop, since compile time would grow with their number.

    Args:
        logits: The matrices. Tokens are the last axes, because TPUs pad the last two axes to 8 x 128.
        iterations: The number of divisions of columns and rows.
    """

    def divide(_: int | Array, m: Array) -> Array:
        m = m / (m.sum(0) + SINKHORN_EPS)
        return m / (m.sum(1, keepdims=True) + SINKHORN_EPS)

    first = jax.nn.softmax(logits, 0) + SINKHORN_EPS  # has the columns of exp(logits), divided by their sums
    first = first / (first.sum(1, keepdims=True) + SINKHORN_EPS)
    return jax.lax.fori_loop(1, iterations, divide, first)


@register("residual", "mhc")
class ManifoldHyperConnectionsConfig(Component):
    """Hyper-connections with positive a and b and a doubly stochastic R, from the streams. Xie et al. 2025 (mHC).

    A branch reads a X, and the n streams X become R X + b y. a = sigmoid(A), b = 2 sigmoid(B), and R is exp(C) with
    columns and rows divided by their sums in turn. A, B and C are s norm(x) W + bias, where x has all streams of a
    token, norm is an RMS norm without weight, and s is a number for each of A, B and C. s starts at 0.01, as in the
    paper, and W at 0.

    The paper does not give the initial bias. Here, b starts at 1, R has `start` on the diagonal, and branch number k
    (two per layer) reads stream k mod n with `start` and each other stream with (1 - start) / (n - 1), so that each
    stream holds the ordinary residual stream.

    DeepSeek V4 in transformers adds 1e-6 to a, starts with bias 0, s = 1 and a random W, and computes the input of the
    final norm with a further a; here, it is the sum of the streams. In x-transformers 2.31.10, W reads each stream
    alone, sigmoid is applied to b twice, and R consists of ones, because rows are normalised as separate matrices.

    Source: Xie et al. 2025, "mHC: Manifold-Constrained Hyper-Connections", arXiv 2512.24880.
    Reference: transformers.models.deepseek_v4.modeling_deepseek_v4.DeepseekV4HyperConnection.
    """

    streams: Count = 4
    """The number n of residual streams."""
    iterations: Annotated[int, Field(gt=0, le=1000)] = 20
    """The number of divisions of the columns and rows of R by their sums."""
    start: Annotated[float, Field(gt=0, lt=1), Traced()] = 0.9
    """Initial weight of the stream that a branch reads, and initial diagonal of R."""

    def init(self, dims: Dims, *, key: Key) -> "ManifoldHyperConnections":
        """Build the module at the given sizes."""
        n = self.streams
        start, other = jnp.asarray(self.start), (1.0 - jnp.asarray(self.start)) / (n - 1)
        reads = jnp.where(
            jnp.arange(n) == branch_number(dims) % n, jax.scipy.special.logit(start), jax.scipy.special.logit(other)
        )
        mixes = jnp.where(jnp.eye(n, dtype=bool), jnp.log(start), jnp.log(other))
        return ManifoldHyperConnections(
            weight=jnp.zeros((n * dims.dim, n * (n + 2))),
            bias=jnp.concatenate([reads, jnp.zeros(n), mixes.reshape(-1)]),
            scales=jnp.full(3, 0.01),
            streams=n,
            iterations=self.iterations,
        )


class ManifoldHyperConnections(eqx.Module):
    """Manifold-constrained hyper-connections of one branch; see `ManifoldHyperConnectionsConfig`.

    The columns of `weight` and the elements of `bias` are those of A, of B and of each row of C.
    """

    weight: Float[Array, "size maps"]
    bias: Float[Array, " maps"]
    scales: Float[Array, "3"]
    streams: int = eqx.field(static=True)
    iterations: int = eqx.field(static=True)

    def logits(self, x: Streams) -> tuple[Array, Array, Array]:
        """Return A and B, `(stream, token)`, and C, `(target, stream, token)`, in float32."""
        n = self.streams
        rows = x.reshape(-1, n * x.shape[-1])
        scale = jax.lax.rsqrt(jnp.square(rows.astype(jnp.float32)).mean(-1, keepdims=True) + NORM_EPS)
        # The norm divides after the product, as in the paper.
        maps = project(rows, self.weight, out=jnp.float32) * scale
        maps = (maps * self.scales[np.repeat(np.arange(3), (n, n, n * n))] + self.bias).T
        return maps[:n], maps[n : 2 * n], maps[2 * n :].reshape(n, n, -1)

    def read(self, x: Streams) -> Stream:
        """Return the input of the branch."""
        reads = jax.nn.sigmoid(self.logits(x)[0])
        return read_streams(x, reads.T.reshape(x.shape[:3]))

    def __call__(self, x: Streams, y: Stream) -> Streams:
        """Return the residual streams after the branch."""
        _, writes, mixes = self.logits(x)
        writes = 2 * jax.nn.sigmoid(writes)
        # Without a checkpoint, each iteration would keep its matrices for the backward pass.
        mixes = jax.checkpoint(sinkhorn, static_argnums=1)(mixes, self.iterations)
        mixes = mixes.transpose(2, 0, 1).reshape(*x.shape[:2], self.streams, self.streams)
        return write_streams(x, y, mixes, writes.T.reshape(x.shape[:3]))
