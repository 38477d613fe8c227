"""Slot `after`: a change to a block's output before the next block."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Context, Dims, Unchanged

Stream = Float[Array, "batch seq *streams dim"]  # see `nn.residual.num_streams`


@register("after", "none")
class NoAfter(Unchanged):
    """The block's output unchanged."""


@register("after", "x0")
class X0Config(Component):
    """a x + b x0, with the stream x0 before the first layer and trained numbers a and b, initially 1 and 0.

    From modded-nanogpt (Jordan et al. 2024), which computes the sum at the input of each layer. Here it follows each
    layer, so the first layer has no sum before it, and the last layer has one after it. modded-nanogpt normalises x0
    (stem `norm`).

    Source: Jordan et al. 2024, modded-nanogpt, github.com/KellerJordan/modded-nanogpt.
    """

    def init(self, dims: Dims, *, key: Key) -> "X0":
        """Build the module at the given sizes."""
        return X0(jnp.ones(()), jnp.zeros(()))


class X0(eqx.Module):
    """A weighted sum of the stream and the embeddings."""

    own: Float[Array, ""]
    first: Float[Array, ""]

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return a x + b x0."""
        embedded = ctx.embedded if x.ndim == ctx.embedded.ndim else ctx.embedded[:, :, None]  # for each stream
        return (self.own * x + self.first * embedded).astype(x.dtype)


@register("after", "u-net")
class UNetConfig(Component):
    """Skips from the first to the second half of L layers. From modded-nanogpt (Jordan et al. 2024).

    For each i < L / 2, w times the output of layer i is added to the input of layer L - 1 - i, with a trained number w
    for each skip that starts at 1. Layers differ in their skips, so each layer is compiled separately.

    Source: Jordan et al. 2024, modded-nanogpt, github.com/KellerJordan/modded-nanogpt.
    Excludes: models with an odd number of layers, and several residual streams.
    """

    static_layer, one_stream = True, True

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        if dims.num_layers % 2:
            problem = f"u-net skips connect two halves, but the model has {dims.num_layers} layers"
            raise UserError(problem, remedy="Use an even num_layers.")

    def carries(self, dims: Dims) -> dict[str, tuple[int, ...]]:
        """Return the shape of the outputs of the first half."""
        return {"u-net": (dims.num_layers // 2, dims.dim)}

    def init(self, dims: Dims, *, key: Key) -> "UNet":
        """Build the module at the given sizes."""
        layer, half = dims.layer, dims.num_layers // 2
        source = dims.num_layers - 2 - layer  # the skip that ends in the next layer
        return UNet(
            weight=jnp.ones(()) if 0 <= source < half else None,
            source=source,
            place=layer if layer < half else None,
        )


class UNet(eqx.Module):
    """The skips that start and end after one layer.

    Attributes:
        weight: The factor of the skip that ends here; None if no skip ends here.
        source: The layer in which this skip starts.
        place: The number of the skip that starts here; None if no skip starts here.
    """

    weight: Float[Array, ""] | None
    source: int = eqx.field(static=True)
    place: int | None = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the block's output plus the skip that ends here."""
        if self.place is not None:
            ctx.carried["u-net"] = ctx.carried["u-net"].at[:, :, self.place].set(x)
        if self.weight is None:
            return x
        return (x + self.weight * ctx.carried["u-net"][:, :, self.source]).astype(x.dtype)
