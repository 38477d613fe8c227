"""Slot `scores` in attention: a change to the scaled scores before the mask and the softmax."""

from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Component, Traced
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, Fixed, Unchanged

Scores = Float[Array, "batch head query key"]


@register("scores", "none")
class NoScores(Unchanged):
    """The scores unchanged."""


@register("scores", "softcap")
class SoftcapConfig(Component):
    """cap * tanh(scores / cap), so that no score exceeds the cap. Gemma Team 2024 (Gemma 2, with a cap of 50).

    Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", arXiv 2408.00118.
    Reference: transformers.models.gemma2.modeling_gemma2.eager_attention_forward.
    """

    cap: Annotated[PositiveFloat, Traced()] = 50.0
    """Upper bound of the scores' magnitude."""

    def init(self, dims: Dims, *, key: Key) -> "Softcap":
        """Build the module at the given sizes."""
        return Softcap(Fixed(self.cap))


class Softcap(eqx.Module):
    """Scores or logits capped by tanh."""

    cap: Fixed

    def __call__(self, x: Float[Array, "..."], *rest: Any) -> Float[Array, "..."]:
        """Return the capped numbers; other arguments are ignored."""
        return self.cap.value * jnp.tanh(x / self.cap.value)
