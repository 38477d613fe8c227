"""Slot `gate` in attention: a factor on the output of each head, before the output projection."""

from typing import Literal

import equinox as eqx
import jax
from jaxtyping import Array, Float

from taetpu.core.config import Component
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.nn.common import AttentionDims, Context, Dims, project

Stream = Float[Array, "batch seq dim"]
Heads = Float[Array, "batch head seq head_dim"]


@register("gate", "none")
class NoGate(Component):
    """The outputs of the heads unchanged."""

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> None:
        """Return None."""
        return


@register("gate", "sigmoid")
class SigmoidGateConfig(Component):
    """z * sigmoid(x W), with the mixer's input x and the outputs z of the heads. Qiu et al. 2025, gate G1.

    Source: Qiu et al. 2025, "Gated Attention for Large Language Models: Non-linearity, Sparsity, and
    Attention-Sink-Free", arXiv 2505.06708.
    Reference: transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextAttention.
    """

    over: Literal["head", "element"] = "element"
    """What a factor applies to: a whole head (`head`) or one element of its output (`element`)."""

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "SigmoidGate":
        """Build the module at the given sizes."""
        size = heads.num_heads * (heads.head_dim if self.over == "element" else 1)
        return SigmoidGate(dims.weight(named(key, "weight"), dims.dim, size, role="gate"), heads.num_heads)


class SigmoidGate(eqx.Module):
    """A gate on heads; see `SigmoidGateConfig`."""

    weight: Float[Array, "dim size"]
    num_heads: int = eqx.field(static=True)

    def __call__(self, z: Heads, x: Stream, ctx: Context) -> Heads:
        """Return the gated outputs of the heads."""
        gate = jax.nn.sigmoid(project(x, self.weight))
        return z * gate.reshape(*x.shape[:2], self.num_heads, -1).transpose(0, 2, 1, 3)
