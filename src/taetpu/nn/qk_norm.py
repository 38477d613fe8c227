"""Slot `qk_norm` in attention: normalisation of queries and keys before positions are encoded."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Component
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites
from taetpu.nn.common import AttentionDims, Dims
from taetpu.nn.norm import RMSNorm

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
    """

    over: Literal["head", "all"] = "head"
    """The elements that are normalised together: those of a head (`head`) or of all heads of a token (`all`)."""
    eps: PositiveFloat = 1e-6
    """Number added to the mean square."""

    def init(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "QKRMSNorm":
        """Build the module at the given sizes."""
        sizes = (heads.num_heads, heads.num_kv_heads) if self.over == "all" else (1, 1)
        return QKRMSNorm(*(RMSNorm(jnp.ones(size * heads.head_dim), self.eps) for size in sizes))


class QKRMSNorm(eqx.Module):
    """RMS norms of queries and keys; see `QKRMSNormConfig`."""

    q: RMSNorm
    k: RMSNorm

    def __call__(self, q: Heads, k: KVHeads) -> tuple[Heads, KVHeads]:
        """Return the normalised queries and keys."""
        with rename_sites("norm", "mixer.q_norm"):
            q = _normalised(self.q, q)
        with rename_sites("norm", "mixer.k_norm"):
            return q, _normalised(self.k, k)


def _normalised(norm: RMSNorm, x: Heads) -> Heads:
    batch, heads, seq, head_dim = x.shape
    if norm.weight.shape[0] == head_dim:
        return norm(x)
    together = norm(x.transpose(0, 2, 1, 3).reshape(batch, seq, heads * head_dim))
    return together.reshape(batch, seq, heads, head_dim).transpose(0, 2, 1, 3)
