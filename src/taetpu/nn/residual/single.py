"""Residual connections with one stream."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Component, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, Fixed
from taetpu.nn.residual.base import Stream

if TYPE_CHECKING:
    from taetpu.nn.block import LayerConfig


@register("residual", "standard")
class StandardConfig(Component):
    """x + y, with the branch's output y. He et al. 2016.

    Source: He et al. 2016, "Deep Residual Learning for Image Recognition", arXiv 1512.03385.
    """

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


@register("residual", "scale")
class ScaledConfig(Component):
    """x + factor * y, with the branch's output y. IBM 2024 (Granite 3.0).

    Source: IBM Granite Team 2024, "Granite 3.0 Language Models".
    Reference: transformers.GraniteForCausalLM.
    """

    example: ClassVar = {"factor": 0.25}

    factor: Annotated[PositiveFloat, Traced()]
    """Factor on the branch's output."""

    def init(self, dims: Dims, *, key: Key) -> "Multiplied":
        """Build the module at the given sizes."""
        return Multiplied(Fixed(self.factor))


class Multiplied(eqx.Module):
    """The sum of the stream and the branch's output times a constant."""

    factor: Fixed

    def __call__(self, x: Stream, y: Stream) -> Stream:
        """Return x + factor * y."""
        return x + y * self.factor.value.astype(y.dtype)


# --- trained connections ----------------------------------------------------------------------------------------------


@register("residual", "rezero")
class ReZeroConfig(Component):
    """x + a y, with a trained number a for each branch that starts at 0. Bachlechner et al. 2020 (ReZero).

    Source: Bachlechner et al. 2020, "ReZero is All You Need: Fast Convergence at Large Depth", arXiv 2003.04887.
    Reference: x_transformers.x_transformers.LayerScale.
    """

    def init(self, dims: Dims, *, key: Key) -> "Scaled":
        """Build the module at the given sizes."""
        return Scaled(jnp.zeros(()))


@register("residual", "layer-scale")
class LayerScaleConfig(Component):
    """x + g * y, with a trained vector g for each branch. Touvron et al. 2021 (LayerScale).

    Source: Touvron et al. 2021, "Going deeper with Image Transformers", arXiv 2103.17239.
    Reference: x_transformers.x_transformers.LayerScale.
    """

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

    Source: Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers", arXiv 2203.00555.
    Reference: x_transformers.x_transformers.Residual.
    Excludes: layers without norms or with another placement.
    """

    example: ClassVar = {"model.norm.placement": "post", "model.init": "deepnorm"}

    def check_layer(self, layer: "LayerConfig") -> None:
        """Raise `UserError` unless a norm follows each sum. The path is relative to the layer."""
        absent = layer.norm.kind == "none"
        if absent or layer.norm.placement != "post":
            norms = "has no norms" if absent else f"has norms with placement {layer.norm.placement!r}"
            problem = f"deepnorm scales the stream in each branch, so norms must follow the sums, but the layer {norms}"
            remedy = "Set norm.placement: post with a norm such as layer, or use another residual."
            raise UserError(problem, path=("residual",), remedy=remedy)

    def init(self, dims: Dims, *, key: Key) -> "DeepNorm":
        """Build the module at the given sizes."""
        return DeepNorm(Fixed((2 * dims.num_layers) ** 0.25))


class DeepNorm(eqx.Module):
    """The sum of the scaled stream and the branch's output."""

    scale: Fixed

    def __call__(self, x: Stream, y: Stream) -> Stream:
        """Return a x + y."""
        return x * self.scale.value.astype(x.dtype) + y
