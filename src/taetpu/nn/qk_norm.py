"""Slot `qk_norm` in attention: normalisation of queries and keys before positions are encoded."""

from typing import Annotated, Literal

import equinox as eqx
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Component, Traced
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites
from taetpu.nn.common import AttentionDims, Dims, Fixed
from taetpu.nn.norm import RMSNorm, Weight, build_rms

Heads = Float[Array, "batch head seq head_dim"]
KVHeads = Float[Array, "batch kv_head seq head_dim"]


@register("qk_norm", "none")
class NoQKNorm(Component):
    """Queries and keys unchanged."""

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> None:
        """Return None."""
        return


@register("qk_norm", "rms")
class QKRMSNormConfig(Component):
    """RMS normalisation of queries and keys, each with trained weights. Dehghani et al. 2023; Qwen 3, Gemma 3, OLMo 2.

    With `over: head`, each head is normalised, with weights that all heads share (Qwen 3, Gemma 3). With `over: all`,
    the heads of a token are normalised together, before they are split (OLMo 2).

    nanochat normalises without weights, after RoPE, and multiplies by 1.2: `weight: none, factor: 1.2` computes the
    same, because a rotation changes no norm.

    Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters", arXiv 2302.05442.
    Reference: transformers.models.qwen3.modeling_qwen3.Qwen3Attention.
    """

    over: Literal["head", "all"] = "head"
    """The elements that are normalised together: those of a head (`head`) or of all heads of a token (`all`)."""
    eps: PositiveFloat = 1e-6
    """Number added to the mean square."""
    weight: Weight = "plain"
    """Factor on the result: a weight that starts at 1 (`plain`), 1 + weight with a weight that starts at 0
    (`unit-offset`, as in Gemma), or `none`."""
    factor: Annotated[PositiveFloat, Traced(neutral=1.0)] = 1.0
    """Factor on the normalised queries and keys."""

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "QKRMSNorm":
        """Build the module at the given sizes."""
        sizes = (heads.num_heads, heads.num_kv_heads) if self.over == "all" else (1, 1)
        q, k = (build_rms(size * heads.head_dim, self.eps, self.weight) for size in sizes)
        neutral = isinstance(self.factor, float) and self.factor == 1
        return QKRMSNorm(q, k, None if neutral else Fixed(self.factor), self.over == "all")


class QKRMSNorm(eqx.Module):
    """RMS norms of queries and keys; see `QKRMSNormConfig`."""

    q: RMSNorm
    k: RMSNorm
    factor: Fixed | None = None
    together: bool = eqx.field(static=True, default=False)

    def __call__(self, q: Heads, k: KVHeads) -> tuple[Heads, KVHeads]:
        """Return the normalised queries and keys."""
        with rename_sites("norm", "mixer.q_norm"):
            q = self.normalised(self.q, q)
        with rename_sites("norm", "mixer.k_norm"):
            return q, self.normalised(self.k, k)

    def normalised(self, norm: RMSNorm, x: Heads) -> Heads:
        """Return heads, normalised each alone or all together, times the factor."""
        x = _norm_together(norm, x) if self.together else norm(x)
        return x if self.factor is None else x * self.factor.value.astype(x.dtype)


def _norm_together(norm: RMSNorm, x: Heads) -> Heads:
    batch, heads, seq, head_dim = x.shape
    together = norm(x.transpose(0, 2, 1, 3).reshape(batch, seq, heads * head_dim))
    return together.reshape(batch, seq, heads, head_dim).transpose(0, 2, 1, 3)
