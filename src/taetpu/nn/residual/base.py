"""The residual stream, and how a branch is connected to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float

from taetpu.core.config import Component

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
