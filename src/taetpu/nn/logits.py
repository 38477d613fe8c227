"""Slot `logits`: a change to the logits before the loss. It acts on each position alone."""

from typing import Annotated

from pydantic import PositiveFloat

from taetpu.core.config import Component, Traced
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, Fixed, Identity
from taetpu.nn.scores import Softcap


@register("logits", "none")
class NoLogits(Component):
    """The logits unchanged."""

    def init(self, dims: Dims, *, key: Key) -> Identity:
        """Build the module at the given sizes."""
        return Identity()


@register("logits", "softcap")
class LogitCapConfig(Component):
    """cap * tanh(logits / cap), so that no logit exceeds the cap. Gemma Team 2024 (Gemma 2, with a cap of 30)."""

    cap: Annotated[PositiveFloat, Traced()] = 30.0
    """Upper bound of the logits' magnitude."""

    def init(self, dims: Dims, *, key: Key) -> Softcap:
        """Build the module at the given sizes."""
        return Softcap(Fixed(self.cap))
