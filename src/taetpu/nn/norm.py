"""Slot `norm`: normalisation of the residual stream, and where it stands in a block (`placement`).

Norms work on rows: XLA's CPU backend reduces two axes at twice the speed of three (measured: a tenth of a train step).
"""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Component
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, Identity, flatten_rows


class NormConfig(Component):
    """What every norm but `none` has: `pre` is x + f(N(x)), `post` is N(x + f(x)) with no norm before the output."""

    placement: Literal["pre", "post"] = "pre"
    """Before each branch (`pre`), or after its output is added (`post`)."""


@register("norm", "layer")
class LayerNormConfig(NormConfig):
    """(x - mean) / sqrt(variance + eps) * weight + bias. Ba et al. 2016; eps as in torch.nn.LayerNorm."""

    eps: PositiveFloat = 1e-5
    """Added to the variance."""
    bias: bool | None = None
    """Whether a bias is added; `none`: as `model.bias`."""

    def init(self, dims: Dims, *, key: Key) -> "LayerNorm":
        return LayerNorm(jnp.ones(dims.dim), dims.zeros(dims.dim, self.bias), self.eps)


class LayerNorm(eqx.Module):
    weight: Float[Array, " dim"]
    bias: Float[Array, " dim"] | None
    eps: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*lead dim"]) -> Float[Array, "*lead dim"]:
        h = flatten_rows(x).astype(jnp.float32)
        h = h - h.mean(-1, keepdims=True)
        h = h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + self.eps) * self.weight
        return (h if self.bias is None else h + self.bias).astype(x.dtype).reshape(x.shape)


@register("norm", "rms")
class RMSNormConfig(NormConfig):
    """x / sqrt(mean(x^2) + eps) * weight. Zhang and Sennrich 2019; eps as in Llama."""

    eps: PositiveFloat = 1e-6
    """Added to the mean square."""

    def init(self, dims: Dims, *, key: Key) -> "RMSNorm":
        return RMSNorm(jnp.ones(dims.dim), self.eps)


class RMSNorm(eqx.Module):
    weight: Float[Array, " dim"]
    eps: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*lead dim"]) -> Float[Array, "*lead dim"]:
        h = flatten_rows(x).astype(jnp.float32)
        h = h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + self.eps) * self.weight
        return h.astype(x.dtype).reshape(x.shape)


@register("norm", "none")
class NoNorm(Component):
    """No normalisation anywhere, the one before the output included; so `placement` is no setting of it."""

    placement: ClassVar[str] = "pre"

    def init(self, dims: Dims, *, key: Key) -> Identity:
        return Identity()
