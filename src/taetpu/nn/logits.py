"""Slot `logits`: a change to the logits before the loss. It acts on each position alone."""

from typing import Annotated, ClassVar

import equinox as eqx
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Component, Size, Traced
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, Fixed, Unchanged
from taetpu.nn.scores import Softcap


@register("logits", "none")
class NoLogits(Unchanged):
    """The logits unchanged."""


@register("logits", "softcap")
class LogitCapConfig(Component):
    """cap * tanh(logits / cap), so that no logit exceeds the cap. Gemma Team 2024 (Gemma 2, with a cap of 30).

    Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", arXiv 2408.00118.
    Reference: transformers.Gemma2ForCausalLM.
    """

    cap: Annotated[PositiveFloat, Traced()] = 30.0
    """Upper bound of the logits' magnitude."""

    def init(self, dims: Dims, *, key: Key) -> Softcap:
        """Build the module at the given sizes."""
        return Softcap(Fixed(self.cap))


@register("logits", "scale")
class LogitScaleConfig(Component):
    """Logits times `factor`. IBM 2024 (Granite 3.0).

    Source: IBM Granite Team 2024, "Granite 3.0 Language Models".
    Reference: transformers.GraniteForCausalLM.
    """

    example: ClassVar = {"factor": 0.125}

    factor: Annotated[PositiveFloat, Traced()]
    """Factor on the logits."""

    def init(self, dims: Dims, *, key: Key) -> "Scaled":
        """Build the module at the given sizes."""
        return Scaled(Fixed(self.factor))


@register("logits", "mup")
class MuPLogits(Component):
    """Logits times base_dim / dim, so that their size does not grow with the width. Yang et al. 2022 (table 8).

    Source: Yang et al. 2022, "Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer",
    arXiv 2203.03466.
    """

    example: ClassVar = {"base_dim": 64}

    base_dim: Annotated[Size, Traced()]
    """Width of the model at which the logits are unchanged."""

    def init(self, dims: Dims, *, key: Key) -> "Scaled":
        """Build the module at the given sizes."""
        return Scaled(Fixed(self.base_dim / dims.dim))


class Scaled(eqx.Module):
    """Logits times a factor."""

    factor: Fixed

    def __call__(self, logits: Float[Array, "batch seq vocab"]) -> Float[Array, "batch seq vocab"]:
        """Return the scaled logits."""
        return self.factor.value * logits
