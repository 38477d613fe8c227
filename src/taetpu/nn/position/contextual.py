"""Positions that depend on the content of tokens."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveInt

from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import AttentionDims, Context, Dims, project
from taetpu.nn.mask import Causal, visible
from taetpu.nn.position.base import Heads, Keys, PositionConfig, Scores


@register("position", "cope")
class CopeConfig(PositionConfig):
    """Scores plus q_i e(p_ij), with positions p_ij = sum of sigmoid(s_it) over t = j .. i. Golovneva et al. 2024.

    s are the scaled scores. e is a trained table for whole positions, interpolated between them and zero at first; all
    heads of a layer share it.

    Source: Golovneva et al. 2024, "Contextual Position Encoding: Learning to Count What's Important", arXiv 2405.18719.
    Reference: x_transformers.x_transformers.CoPE.
    """

    max_position: PositiveInt = 64
    """The number of entries of the table. Larger positions are those of its last entry."""

    def on_scores(self, dims: Dims, heads: AttentionDims, *, key: Key) -> "Cope":
        """Build the module that acts on scores."""
        return Cope(jnp.zeros((self.max_position, heads.head_dim)))


class Cope(eqx.Module):
    """A table of positions that are counted by gates; see `CopeConfig`."""

    table: Float[Array, "position head_dim"]

    def __call__(self, scores: Scores, q: Heads, k: Keys, ctx: Context) -> Scores:
        """Return the scores with the product of each query and the vector of each key's position."""
        earlier: Any = visible(Causal(), ctx)
        gates = jnp.where(earlier, jax.nn.sigmoid(scores), 0.0)
        position = jax.lax.cumsum(gates, axis=3, reverse=True)
        position = jnp.minimum(position, len(self.table) - 1.0)
        whole = project(q, self.table.T, out=jnp.float32)  # (batch, head, query, position)
        below = jnp.floor(position)
        above = jnp.take_along_axis(whole, jnp.ceil(position).astype(jnp.int32), -1)
        share = position - below
        return scores + above * share + jnp.take_along_axis(whole, below.astype(jnp.int32), -1) * (1 - share)
