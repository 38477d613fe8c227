"""Slot `residual`: the connection of a branch's output to the stream. Each branch has a connection of its own."""

from collections.abc import Callable

import equinox as eqx
from jaxtyping import Array, Float

from taetpu.core.config import Component
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims

Stream = Float[Array, "batch seq dim"]


def num_streams(config: Component) -> int:
    """Return the number of residual streams of a kind: its attribute `streams`, or 1.

    With several streams, the stream is `(batch, seq, streams, dim)`. It starts as copies of the embeddings, and the sum
    of the streams is the input of the final norm.
    """
    return getattr(config, "streams", 1)


def branch_input(residual: Callable[..., Array], x: Array) -> Stream:
    """Return the input of a branch: `residual.read(x)` if the connection has this method, otherwise `x`."""
    return residual.read(x) if hasattr(residual, "read") else x


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

    def init(self, dims: Dims, *, key: Key) -> "NoResidual":
        """Build the module at the given sizes."""
        return NoResidual()


class NoResidual(eqx.Module):
    """The branch's output without the residual stream."""

    def __call__(self, x: Stream, y: Stream) -> Stream:
        """Return y."""
        return y
