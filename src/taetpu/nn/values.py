"""Slot `values` in attention: a change to the values of the heads."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import AttentionDims, Context, Dims

KVHeads = Float[Array, "batch kv_head seq head_dim"]


class ValuesConfig(Component):
    """Base of all kinds. `init` returns a module `(v, ctx) -> v`, or None if the values are unchanged."""

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> Any:
        """Build the module at the given sizes."""
        raise NotImplementedError

    def carries_heads(self, dims: Dims, heads: AttentionDims) -> dict[str, tuple[int, ...]]:
        """Return the arrays that layers hand to later layers; see `Component.carries`."""
        return {}


@register("values", "none")
class NoValues(ValuesConfig):
    """The values unchanged."""

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> None:
        """Return None."""
        return


@register("values", "residual")
class ValueResidualConfig(ValuesConfig):
    """a v + b v1, with the values v1 of the first layer and trained numbers a and b, initially 1/2.

    Zhou et al. 2024 (ResFormer). If single layers have this kind, layer 0 must have it too.

    Source: Zhou et al. 2024, "Value Residual Learning", arXiv 2410.17897.
    Reference: x_transformers.x_transformers.Attention.
    """

    def carries_heads(self, dims: Dims, heads: AttentionDims) -> dict[str, tuple[int, ...]]:
        """Return the shape of the values of the first layer."""
        return {"values": (heads.num_kv_heads, heads.head_dim)}

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "ValueResidual":
        """Build the module at the given sizes."""
        return ValueResidual(jnp.full((), 0.5), jnp.full((), 0.5))


def check_first_values(layers: Sequence[Any]) -> None:
    """Raise `UserError` if layers mix values that layer 0 does not hand on, or if layer 0 is the only one that mixes.

    The first layer's mean of its values and its values is its values, so alone it changes nothing.
    """
    mixing = [isinstance(layer.typed_mixer.slot_component("values"), ValueResidualConfig) for layer in layers]
    if not any(mixing):
        return
    number = mixing.index(True)
    problem = remedy = None
    if layers[0].typed_mixer.slot_component("values") is None:
        kind = layers[0].mixer.kind
        problem = f"layer {number} mixes its values with those of layer 0, whose mixer {kind!r} has no values"
        remedy = "Use attention with values: residual in layer 0, or remove values: residual."
    elif number > 0:
        problem = f"layer {number} mixes its values with those of layer 0, which does not pass them on"
        remedy = "Set values: residual in layer 0 too, or in all layers with model.mixer.values."
    elif sum(mixing) == 1:
        problem = "layer 0 mixes its values with themselves, which changes nothing: no later layer has values: residual"
        remedy = "Set values: residual in a later layer with attention too, or remove it."
    if problem is not None:
        raise UserError(problem, path=("layers", number, "mixer", "values"), remedy=remedy)


class ValueResidual(eqx.Module):
    """A weighted sum of the values of this layer and of the first layer."""

    own: Float[Array, ""]
    first: Float[Array, ""]

    def __call__(self, v: KVHeads, ctx: Context) -> KVHeads:
        """Return the weighted sum."""
        first = ctx.carried.first("values", v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        return (self.own * v + self.first * first).astype(v.dtype)
