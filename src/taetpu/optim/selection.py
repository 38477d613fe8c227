"""Choices that a run makes while it trains: when to stop, when to lower the learning rate, which model to evaluate.

Choices by the loss on validation data read the first windows of the validation split in the order of
`data.base.evaluation_order`. They have an interval and a number of windows of their own, which are part of a run's
identity, so they do not depend on how often, and on how many windows, the run is evaluated.
"""

from typing import Annotated, Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree
from pydantic import NonNegativeFloat, PositiveInt

from taetpu.core.config import Config, Size, Traced
from taetpu.core.errors import UserError
from taetpu.nn.lm import LM

Scalar = Float[Array, ""]
SLOTS = ("stop", "schedule", "evaluate")
"""The fields of `train` whose components may observe a run."""
SELECTION = "selection"
"""The prefix of the series of losses by which a run chooses, e.g. `selection/stop`."""


class Observer(Config):
    """A component that sees the state of its run every `every` steps.

    Attributes:
        at_end: Whether the state after the last step is observed too.
    """

    at_end: ClassVar[bool] = False

    every: PositiveInt = 100
    """Number of steps between observations."""

    def begin(self, model: LM) -> PyTree:
        """Return the state of the component before the first step."""
        raise NotImplementedError

    def observe(self, state: PyTree, loss: Scalar, model: LM, step: Int[Array, ""]) -> PyTree:
        """Return the state of the component after an observation.

        Args:
            state: The state before it.
            loss: The loss of `model` on the component's validation windows; NaN if the component reads none.
            model: The model that would be evaluated without `train.evaluate`.
            step: The number of steps taken.
        """
        raise NotImplementedError

    def facts(self, state: PyTree) -> dict[str, Array]:
        """Return the numbers by name that a run's result records, from the last state. Arrays have a run axis."""
        return {}

    def is_due(self, step: Any, steps: int) -> Any:
        """Return whether the component observes the run after `step` of `steps` steps, for a number or an array."""
        due = step % self.every == 0
        return due | (step == steps) if self.at_end else due & (step != steps)

    def check_steps(self, steps: int) -> None:
        """Raise `UserError` if runs with `steps` steps are too short. The path is relative to the component."""
        if self.every > steps:
            problem = f"every={self.every} exceeds the {steps} steps of training"
            raise UserError(problem, path=("every",), remedy=f"Use at most {steps}.")


class Selector(Observer):
    """An observer that reads the loss on validation windows."""

    windows: Size = 64
    """Number of windows of the validation split on which the loss is measured."""


class Wait(NamedTuple):
    """The lowest loss so far, and the number of observations since."""

    lowest: Scalar
    since: Int[Array, ""]


class Patient(Selector):
    """A selector that acts after `patience` observations without an improvement."""

    patience: Annotated[PositiveInt, Traced()] = 5
    """Number of observations in a row without a lower loss, after which the component acts."""
    min_delta: Annotated[NonNegativeFloat, Traced()] = 0.0
    """Least difference to the lowest loss that counts as lower."""

    def wait(self, state: Wait, loss: Scalar) -> Wait:
        """Return the state after an observation. A loss that is NaN is no improvement."""
        lower = loss < state.lowest - jnp.asarray(self.min_delta, jnp.float32)
        return Wait(jnp.where(lower, loss, state.lowest), jnp.where(lower, 0, state.since + 1))

    def check_steps(self, steps: int) -> None:
        """Raise `UserError` if the component cannot act before the last step. The path is relative to the component."""
        super().check_steps(steps)
        first = self.every * (self.patience + 1)
        if first >= steps:
            problem = (
                f"patience={self.patience} with every={self.every} acts after step {first} at the earliest, and "
                f"training has {steps} steps"
            )
            most = (steps - 1) // self.every - 1
            every = (steps - 1) // (self.patience + 1)
            remedy = f"Use every: {every}." if every else "Train for more steps."
            if most > 0:
                remedy = f"Use a patience of at most {most}."
            raise UserError(problem, path=("patience",), remedy=remedy)


def first_wait() -> Wait:
    """Return the state of a `Patient` component before the first step."""
    return Wait(jnp.asarray(jnp.inf, jnp.float32), jnp.zeros((), jnp.int32))


def observers(train: Any) -> dict[str, Any]:
    """Return the components of a training config that observe their run, by slot."""
    return {slot: component for slot in SLOTS if isinstance(component := getattr(train, slot), Observer)}


def selectors(train: Any) -> dict[str, Any]:
    """Return the components of a training config that choose by the loss on validation windows, by slot."""
    return {slot: component for slot, component in observers(train).items() if isinstance(component, Selector)}
