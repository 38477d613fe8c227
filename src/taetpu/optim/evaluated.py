"""Slot `evaluate`: which parameters of a run are evaluated, sampled and stored."""

from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
from pydantic import Field

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.lm import LM
from taetpu.optim.selection import Observer, Scalar, Selector


class EvaluatedConfig(Component):
    """Base of the kinds of slot `evaluate`. A kind that keeps parameters also extends `optim.selection.Observer`."""

    def evaluated(self, state: Any, model: LM) -> LM:
        """Return the model to evaluate, given the state of the component and the model evaluated without it."""
        raise NotImplementedError


@register("evaluate", "last")
class Last(EvaluatedConfig):
    """The parameters after the last step, or what the optimizer evaluates in their place (`ema`, schedule-free)."""


class Chosen(NamedTuple):
    """The model with the lowest loss so far, its loss, and the number of steps after which it was observed, or -1."""

    model: LM
    loss: Scalar
    step: Int[Array, ""]


@register("evaluate", "best")
class Best(Selector, EvaluatedConfig):
    """The parameters with the lowest validation loss among those after every n-th and after the last step.

    The primary metric must be one of the test split. During training, the best parameters so far are evaluated.

    Source: Prechelt 1998, "Early Stopping - But When?", in Neural Networks: Tricks of the Trade.
    """

    example: ClassVar = {"every": 4, "windows": 8}
    at_end: ClassVar[bool] = True

    def begin(self, model: LM) -> Chosen:
        """Return the state before the first step."""
        return Chosen(model, jnp.asarray(jnp.inf, jnp.float32), jnp.full((), -1, jnp.int32))

    def observe(self, state: Chosen, loss: Scalar, model: LM, step: Int[Array, ""]) -> Chosen:
        """Return the state after an observation. Of equal losses, the first one counts."""
        lower = loss < state.loss
        return jax.tree.map(lambda new, old: jnp.where(lower, new, old), Chosen(model, loss, step), state)

    def facts(self, state: Chosen) -> dict[str, Array]:
        """Return the number of steps after which the model was chosen, and its loss."""
        return {"step": state.step, "loss": state.loss}

    def evaluated(self, state: Chosen, model: LM) -> LM:
        """Return the best model so far; `model` before the first observation."""
        return jax.tree.map(lambda chosen, now: jnp.where(state.step < 0, now, chosen), state.model, model)


class Snapshots(NamedTuple):
    """The parameters at the last observations, with a leading axis, and the number of observations."""

    params: LM
    taken: Int[Array, ""]


@register("evaluate", "average-last")
class AverageLast(Observer, EvaluatedConfig):
    """The mean of the parameters at the last `count` multiples of `every` steps, or at as many as there were.

    Source: Kaddour 2022, "Stop Wasting My Time! Saving Days of ImageNet and BERT Training with Latest Weight
    Averaging", arXiv 2209.14981.
    """

    example: ClassVar = {"count": 2, "every": 4}

    count: Annotated[int, Field(ge=2, le=64)] = 5
    """Number of sets of parameters in the mean. All are kept in memory."""

    def begin(self, model: LM) -> Snapshots:
        """Return the state before the first step."""
        params, _ = partition_trainable(model)
        return Snapshots(jax.tree.map(lambda a: jnp.zeros((self.count, *a.shape), a.dtype), params), jnp.int32(0))

    def is_due(self, step: Any, steps: int) -> Any:
        """Return whether parameters are kept after `step` steps, which may be the last ones."""
        return step % self.every == 0

    def observe(self, state: Snapshots, loss: Scalar, model: LM, step: Int[Array, ""]) -> Snapshots:
        """Return the state in which the current parameters replace the oldest ones."""
        params, _ = partition_trainable(model)
        place = state.taken % self.count
        kept = jax.tree.map(lambda old, new: old.at[place].set(new), state.params, params)
        return Snapshots(kept, state.taken + 1)

    def facts(self, state: Snapshots) -> dict[str, Array]:
        """Return the number of sets of parameters in the mean."""
        return {"models": jnp.minimum(state.taken, self.count)}

    def evaluated(self, state: Snapshots, model: LM) -> LM:
        """Return the model with the mean parameters; `model` before the first observation."""
        params, rest = partition_trainable(model)
        number = jnp.minimum(state.taken, self.count)

        def mean(kept: Array, now: Array) -> Array:  # places that were never written are 0
            return jnp.where(number == 0, now, kept.sum(0) / jnp.maximum(number, 1).astype(now.dtype))

        return combine_trainable(jax.tree.map(mean, state.params, params), rest)

    def check_steps(self, steps: int) -> None:
        """Raise `UserError` if a run is too short for the mean. The path is relative to the component."""
        super().check_steps(steps)
        if self.count * self.every > steps:
            problem = f"count={self.count} with every={self.every} needs {self.count * self.every} steps"
            problem += f", and training has {steps}"
            every = steps // self.count
            remedy = f"Use every: {every}." if every else f"Use count: {max(1, steps // self.every)}."
            raise UserError(problem, path=("every",) if every else ("count",), remedy=remedy)
