"""Slot `layer_dropout`: branches or whole layers that training skips at random. It has no effect in evaluation."""

from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from pydantic import Field

from taetpu.core.config import Component, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Context, Dims, Fixed
from taetpu.nn.residual.single import NoResidualConfig

if TYPE_CHECKING:
    from taetpu.nn.block import LayerConfig

Branch = Float[Array, "batch seq dim"]
Stream = Float[Array, "batch seq *streams dim"]  # see `nn.residual.num_streams`
Rate = Annotated[float, Field(ge=0, lt=1), Traced()]


class LayerDropoutConfig(Component):
    """Base of all layer dropouts. `init` returns a `LayerDropout`, one for each layer."""

    def init(self, dims: Dims, *, key: Key) -> "LayerDropout":
        """Build the module at the given sizes."""
        raise NotImplementedError

    def check_layer(self, layer: "LayerConfig") -> None:
        """Raise `UserError` if a layer's other components cannot be used with this layer dropout."""


class LayerDropout(eqx.Module):
    """Layer dropout that skips nothing; base of the others.

    The number of the layer is `ctx.layer`, also in layers that share parameters.
    """

    def branch(self, y: Branch, ctx: Context) -> Branch:
        """Return the output of a branch, as its residual connection adds it to the stream."""
        return y

    def layer(self, x: Stream, y: Stream, ctx: Context) -> Stream:
        """Return the stream after a layer's branches, from the streams before (`x`) and after them (`y`)."""
        return y


@register("layer_dropout", "none")
class NoLayerDropoutConfig(LayerDropoutConfig):
    """Every branch of every layer is used."""

    def init(self, dims: Dims, *, key: Key) -> LayerDropout:
        """Build the module at the given sizes."""
        return LayerDropout()


@register("layer_dropout", "stochastic-depth")
class StochasticDepthConfig(LayerDropoutConfig):
    """In training, x + y b / (1 - p) for each branch, where b is 0 with probability p = rate (l + 1) / L, else 1.

    l is the number of the layer, from 0, and L the number of layers (Huang et al. 2016). b is drawn for each branch and
    each sequence. Evaluation uses every branch, without a factor. Huang et al. draw b for each batch, and multiply
    branches by 1 - p in evaluation in place of 1 / (1 - p) in training, which has the same mean. A skipped branch is
    computed, so training is not faster.

    Source: Huang et al. 2016, "Deep Networks with Stochastic Depth", arXiv 1603.09382.
    Reference: transformers.models.dinov2.modeling_dinov2.Dinov2DropPath.
    Excludes: residual none, because a skipped branch would make the stream zero.
    """

    draws_in_training = True

    rate: Rate = 0.1
    """Probability of skipping a branch of the last layer; the paper uses 0.5."""

    def check_layer(self, layer: "LayerConfig") -> None:
        """Raise `UserError` if a layer's other components cannot be used with this layer dropout."""
        for branch in ("mixer", "ffn"):
            alone = isinstance(layer.residual, NoResidualConfig) and layer.residual.removes(branch)
            if alone and getattr(layer, branch).kind != "none":
                problem = f"layer_dropout {self.kind!r} skips the {branch}, which has no skip connection in this layer"
                remedy = "Use layer_dropout layerskip, which skips whole layers, or residual standard."
                raise UserError(problem, path=("layer_dropout",), remedy=remedy)

    def init(self, dims: Dims, *, key: Key) -> "StochasticDepth":
        """Build the module at the given sizes."""
        return StochasticDepth(Fixed(self.rate), dims.num_layers)


class StochasticDepth(LayerDropout):
    """Branches that are skipped at random; see `StochasticDepthConfig`."""

    rate: Fixed
    num_layers: int = eqx.field(static=True)

    def branch(self, y: Branch, ctx: Context) -> Branch:
        """Return y b / (1 - p)."""
        if ctx.key is None:
            return y
        keep = 1.0 - self.rate.value * (ctx.layer + 1) / self.num_layers
        return jnp.where(draw_sequences(ctx.key, keep, y), y / keep, 0.0).astype(y.dtype)


@register("layer_dropout", "layerskip")
class LayerSkipConfig(LayerDropoutConfig):
    """In training, a layer is skipped with probability rate (2^(l / (L - 1)) - 1) = rate (e^(l ln 2 / (L - 1)) - 1).

    l is the number of the layer, from 0, and L the number of layers (Elhoushi et al. 2024, LayerSkip). The choice is
    made for each layer and each sequence. A skipped layer returns its input; `after` still acts. Outputs are not
    scaled, neither in training nor in evaluation, which uses every layer. The rate is constant over training. A skipped
    layer is computed, so training is not faster. The paper also adds the loss of early exits: see head `early-exit`.

    Source: Elhoushi et al. 2024, "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding",
        arXiv 2404.16710.
    Excludes: models with one layer, because the first layer is never skipped.
    """

    draws_in_training = True

    rate: Rate = 0.1
    """Probability p_max of skipping the last layer; the paper uses 0.1 or 0.2."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        if dims.num_layers < 2:
            problem = f"layerskip never skips the first layer, and this model has num_layers={dims.num_layers}"
            raise UserError(problem, remedy="Use num_layers of 2 or more, or layer_dropout stochastic-depth.")

    def init(self, dims: Dims, *, key: Key) -> "LayerSkip":
        """Build the module at the given sizes."""
        return LayerSkip(Fixed(self.rate), dims.num_layers)


class LayerSkip(LayerDropout):
    """Layers that are skipped at random; see `LayerSkipConfig`."""

    rate: Fixed
    num_layers: int = eqx.field(static=True)

    def layer(self, x: Stream, y: Stream, ctx: Context) -> Stream:
        """Return y, or x for the sequences that skip the layer."""
        if ctx.key is None:
            return y
        share = jnp.exp2(ctx.layer / (self.num_layers - 1)) - 1.0
        return jnp.where(draw_sequences(ctx.key, 1.0 - self.rate.value * share, y), y, x)


def draw_sequences(key: Key, keep: Any, x: Stream) -> Bool[Array, "batch ..."]:
    """Return for each sequence of `x` whether it is kept, with probability `keep`; it broadcasts with `x`."""
    return jax.random.bernoulli(key, keep, (len(x), *[1] * (x.ndim - 1)))
