"""Slot `stop`: whether a run ends before its last step."""

from typing import Any, ClassVar

from jaxtyping import Array, Bool, Int

from taetpu.core.config import Component
from taetpu.core.registry import register
from taetpu.nn.lm import LM
from taetpu.optim.selection import Patient, Scalar, Wait, first_wait


class StopConfig(Component):
    """Base of the kinds of slot `stop`. A kind that ends runs also extends `optim.selection.Observer`."""

    def stops(self, state: Any) -> Bool[Array, ""]:
        """Return whether the run ends, given the state of the component after an observation."""
        raise NotImplementedError


@register("stop", "never")
class Never(StopConfig):
    """Every run is trained to its last step."""


@register("stop", "patience")
class Patience(Patient, StopConfig):
    """Ends a run after `patience` observations in a row without a lower validation loss (early stopping).

    The learning rate must not depend on the length of training (`schedule`: constant, inverse-sqrt or plateau), and the
    primary metric must be one of the test split. The loss is that of the parameters that are evaluated without
    `train.evaluate`. A run that stopped is not updated any more, while the other runs of its pack are trained.

    Source: Prechelt 1998, "Early Stopping - But When?", in Neural Networks: Tricks of the Trade, criterion UP.
    """

    example: ClassVar = {"every": 2, "windows": 8, "patience": 2, "train.schedule": "constant"}

    def begin(self, model: LM) -> Wait:
        """Return the state before the first step."""
        return first_wait()

    def observe(self, state: Wait, loss: Scalar, model: LM, step: Int[Array, ""]) -> Wait:
        """Return the state after an observation."""
        return self.wait(state, loss)

    def facts(self, state: Wait) -> dict[str, Array]:
        """Return the lowest loss."""
        return {"loss": state.lowest}

    def stops(self, state: Wait) -> Bool[Array, ""]:
        """Return whether the last `patience` observations were no improvement."""
        return state.since >= self.patience
