"""Slot `after`: a change to a block's output before the next block."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Context, Dims, Identity

Stream = Float[Array, "batch seq *streams dim"]  # see `nn.residual.num_streams`


@register("after", "none")
class NoAfter(Component):
    """The block's output unchanged."""

    def init(self, dims: Dims, *, key: Key) -> Identity:
        """Build the module at the given sizes."""
        return Identity()


@register("after", "x0")
class X0Config(Component):
    """a x + b x0, with the stream x0 before the first layer and trained numbers a and b, initially 1 and 0.

    From modded-nanogpt (Jordan et al. 2024).
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
        return (self.own * x + self.first * ctx.embedded).astype(x.dtype)


@register("after", "u-net")
class UNetConfig(Component):
    """Skips from the first to the second half of the layers. From modded-nanogpt (Jordan et al. 2024).

    Before layer L - 1 - i of L layers, the output of layer i is added, for each i < L / 2 - 1, times a trained number
    for each layer that starts at 1.
    """

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
        return UNet(jnp.ones(()), dims.num_layers)


class UNet(eqx.Module):
    """The skips into and out of one layer."""

    weight: Float[Array, ""]
    num_layers: int = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the block's output, plus the output of the opposite layer if the next layer is in the second half."""
        half, kept = self.num_layers // 2, ctx.carried["u-net"]
        place = jnp.clip(ctx.layer, 0, half - 1)
        kept = kept.at[:, :, place].set(jnp.where(ctx.layer < half, x, kept[:, :, place]))
        ctx.carried["u-net"] = kept
        opposite = self.num_layers - 2 - ctx.layer  # of the next layer
        skip = self.weight * kept[:, :, jnp.clip(opposite, 0, half - 1)]
        return jnp.where((opposite >= 0) & (opposite < half - 1), x + skip, x).astype(x.dtype)
