"""Slot `residual`: the connection of a branch's output to the stream. Each branch has a separate connection."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field, PositiveFloat

from taetpu.core.config import Component, Traced
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, Fixed

Stream = Float[Array, "batch seq dim"]
Streams = Float[Array, "batch seq stream dim"]


def num_streams(config: Component) -> int:
    """Return the number of residual streams of a kind: its attribute `streams`, or 1.

    With several streams, the stream is `(batch, seq, streams, dim)`. It starts as copies of the embeddings, and the sum
    of the streams is the input of the final norm.
    """
    return getattr(config, "streams", 1)


def branch_input(residual: Any, x: Array) -> Stream:
    """Return the input of a branch: `residual.read(x)` if the connection has this method, otherwise `x`."""
    return residual.read(x) if hasattr(residual, "read") else x


@dataclass(frozen=True)
class Connection:
    """A residual connection that changes the branch's output first.

    Attributes:
        residual: The module of a kind.
        change: A function of the branch's output.
    """

    residual: Any
    change: Callable[[Stream], Stream]

    def read(self, x: Array) -> Stream:
        """Return the input of the branch."""
        return branch_input(self.residual, x)

    def __call__(self, x: Array, y: Stream) -> Array:
        """Return the residual stream after the branch."""
        return self.residual(x, self.change(y))


@register("residual", "standard")
class StandardConfig(Component):
    """x + y, with the branch's output y. He et al. 2016."""

    def init(self, dims: Dims, *, key: Key) -> "Standard":
        """Build the module at the given sizes."""
        return Standard()


class Standard(eqx.Module):
    """The sum of the residual stream and the branch's output."""

    def __call__(self, x: Stream, y: Stream) -> Stream:
        """Return x + y."""
        return x + y


@register("residual", "none")
class NoResidualConfig(Component):
    """The branch's output y alone, without a skip connection."""

    branch: Literal["both", "mixer", "ffn"] = "both"
    """The branch without a skip connection: the `mixer`, the `ffn`, or `both`. The other branch has x + y."""

    def removes(self, branch: str) -> bool:
        """Return whether a branch, `mixer` or `ffn`, has no skip connection."""
        return self.branch in ("both", branch)

    def init(self, dims: Dims, *, key: Key) -> "NoResidual | Standard":
        """Build the module at the given sizes."""
        return NoResidual() if self.removes(dims.branch) else Standard()


class NoResidual(eqx.Module):
    """The branch's output without the residual stream."""

    def __call__(self, x: Stream, y: Stream) -> Stream:
        """Return y."""
        return y


# --- trained connections ----------------------------------------------------------------------------------------------


@register("residual", "rezero")
class ReZeroConfig(Component):
    """x + a y, with a trained number a for each branch that starts at 0. Bachlechner et al. 2020 (ReZero)."""

    def init(self, dims: Dims, *, key: Key) -> "Scaled":
        """Build the module at the given sizes."""
        return Scaled(jnp.zeros(()))


@register("residual", "layer-scale")
class LayerScaleConfig(Component):
    """x + g * y, with a trained vector g for each branch. Touvron et al. 2021 (LayerScale)."""

    start: Annotated[PositiveFloat, Traced()] = 0.1
    """Initial value of each element of g; the paper uses 0.1 up to 18 layers, and less for deeper models."""

    def init(self, dims: Dims, *, key: Key) -> "Scaled":
        """Build the module at the given sizes."""
        return Scaled(jnp.full(dims.dim, 1.0) * self.start)


class Scaled(eqx.Module):
    """The sum of the stream and the branch's output times a trained factor."""

    factor: Float[Array, ""] | Float[Array, " dim"]

    def __call__(self, x: Stream, y: Stream) -> Stream:
        """Return x + factor * y."""
        return x + y * self.factor.astype(y.dtype)


@register("residual", "deepnorm")
class DeepNormConfig(Component):
    """a x + y with a = (2 num_layers)^(1/4), for norms with placement `post`. Wang et al. 2022 (DeepNorm), decoders.

    The paper combines it with the init `deepnorm`.
    """

    example: ClassVar = {"model.norm.placement": "post", "model.init": "deepnorm"}

    def init(self, dims: Dims, *, key: Key) -> "DeepNorm":
        """Build the module at the given sizes."""
        return DeepNorm(Fixed((2 * dims.num_layers) ** 0.25))


class DeepNorm(eqx.Module):
    """The sum of the scaled stream and the branch's output."""

    scale: Fixed

    def __call__(self, x: Stream, y: Stream) -> Stream:
        """Return a x + y."""
        return x * self.scale.value.astype(x.dtype) + y


@register("residual", "hyper-connections")
class HyperConnectionsConfig(Component):
    """n residual streams X: a branch reads a X, and X becomes R X + b y. Zhu et al. 2024, static hyper-connections.

    a, b and R are trained for each branch. Initially, R is the identity, b is 1, and branch number k (two per layer)
    reads stream k mod n, so that each stream holds the ordinary residual stream.
    """

    streams: Annotated[int, Field(gt=1, le=64)] = 4
    """The number n of residual streams."""

    def init(self, dims: Dims, *, key: Key) -> "HyperConnections":
        """Build the module at the given sizes."""
        number = 2 * dims.layer + (dims.branch == "ffn")
        n = self.streams
        return HyperConnections(jax.nn.one_hot(number % n, n), jnp.eye(n), jnp.ones(n))


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
