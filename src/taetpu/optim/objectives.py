"""Slot `objective`: what training minimises. A task names its objective; `train.objective` replaces it.

Objectives act in training steps. Evaluation sets are evaluated with the objective of the task, whatever is trained, so
that arms with different objectives have comparable losses.
"""

from functools import cache, partial
from typing import Any, ClassVar

import jax.numpy as jnp

from taetpu.core.config import Component
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.data.base import Batch, Task
from taetpu.nn.lm import LM
from taetpu.nn.slot_calls import describe_value
from taetpu.optim.loss import MEASURED, Logits, Targets, Weights, position_losses, predict
from taetpu.optim.structure_checks import method_location

RESERVED = ("loss", "accuracy")  # names under which every training step records `nll` and `correct`


class Objective(Component):
    """Base of objectives. The base itself is the cross entropy of the targets.

    An objective gives values at each position, each multiplied by the weight of the position. The mean of
    `objective` over the weights of the batch is minimised, or the mean of `nll` if there is no `objective`. Most
    objectives override `position_losses`, which is called for chunks of positions if losses are chunked.

    Attributes:
        real_targets: Whether the objective is for tasks with real targets (`BatchSpec.real_targets`), not for classes.
        of_task: Whether the objective is only for tasks that name it (`Task.objective`).
    """

    real_targets: ClassVar[bool] = False
    of_task: ClassVar[bool] = False

    def position_losses(self, logits: Logits, targets: Targets, weights: Weights) -> dict[str, Weights]:
        """Return values at each position by name, `(batch, seq)` in float32.

        The names `nll`, `correct` and `weight` are required (see `optim.loss.position_losses`), with real targets
        `nll` and `weight`. Further ones are recorded as `train/NAME`.
        """
        return position_losses(logits, targets, weights)

    def predict(
        self, model: LM, batch: Batch, *, key: Key | None, dtype: Any, whole: bool
    ) -> tuple[Logits | None, dict[str, Weights]]:
        """Return the logits and the values at each position; see `optim.loss.predict`.

        Args:
            model: The model.
            batch: The batch or microbatch, or one device's part of it.
            key: The key of random numbers in the forward pass, such as dropout; None outside of training steps.
            dtype: The dtype of activations and matrix products.
            whole: Whether the logits are required. Otherwise, they may be None.
        """
        return predict(model, batch, key=key, dtype=dtype, whole=whole, losses=partial(compute_losses, self))

    def for_task(self, task: Task) -> "Objective":
        """Return the objective with which a task is trained."""
        return self

    def check_task(self, task: Task) -> None:
        """Raise `UserError` if a task cannot be trained with the objective."""
        if self.of_task and task.objective != self.kind:
            problem = f"task {task.kind!r} is not one of the tasks with objective {self.kind!r}"
            raise UserError(problem, remedy="Remove the objective: a task names its own.")


@register("objective", "causal-lm")
class CausalLM(Objective):
    """The cross entropy between predictions and targets, in nats, as the mean over weighted positions."""


@register("objective", "squared-error")
class SquaredError(Objective):
    """The squared difference of the first output and a real target, as the mean over weighted positions."""

    real_targets = of_task = True

    def position_losses(self, logits: Logits, targets: Targets, weights: Weights) -> dict[str, Weights]:
        """See `Objective.position_losses`."""
        return {"nll": (logits[..., 0] - targets) ** 2 * weights, "weight": weights}


@register("objective", "reconstruction")
class Reconstruction(Objective):
    """The cross entropy of the targets of all positions, which the outputs of the last position predict.

    The outputs are divided equally among the positions, and those of a position are the logits of its classes.

    Source: the compression task of Poli et al. 2024 (MAD), arXiv 2403.17844, here without a decoder.
    """

    of_task = True

    def predict(
        self, model: LM, batch: Batch, *, key: Key | None, dtype: Any, whole: bool
    ) -> tuple[Logits | None, dict[str, Weights]]:
        """See `Objective.predict`."""
        logits = model(batch.tokens, key=key, dtype=dtype, **batch.context)
        by_position = logits[:, -1].reshape(*batch.targets.shape, -1)
        return logits, compute_losses(self, by_position, batch.targets, batch.weights)


@register("objective", "task")
class TaskObjective(Objective):
    """The objective that the task names, which is `causal-lm` for most tasks."""

    def for_task(self, task: Task) -> Objective:
        """Return the objective that the task names."""
        return default_objective(task)


def default_objective(task: Task) -> Objective:
    """Return the objective that a task names. Evaluation sets are evaluated with it.

    Raises:
        UserError: if no objective has this name.
    """
    try:
        return _objective(task.objective)
    except UserError as error:
        remedy = f"Correct the attribute `objective` of task {task.kind!r}. {error.remedy or ''}".strip()
        raise UserError(error.problem, path=("task",), remedy=remedy) from None


@cache
def _objective(kind: str) -> Any:
    return build_component("objective", {"kind": kind})


def compute_losses(objective: Objective, logits: Logits, targets: Targets, weights: Weights) -> dict[str, Weights]:
    """Return the values of `Objective.position_losses`.

    Raises:
        UserError: if a required value is missing, or if a value has a wrong shape or dtype.
    """
    values = objective.position_losses(logits, targets, weights)
    _check_values(objective, "position_losses", values, targets)
    return values


def compute_objective(
    objective: Objective, model: LM, batch: Batch, *, key: Key | None = None, dtype: Any = jnp.float32,
    whole: bool = False,
) -> tuple[Logits | None, dict[str, Weights]]:  # fmt: skip
    """Return the results of `Objective.predict`.

    Raises:
        UserError: if the result is not a pair, if the logits are required and missing, if a required value is missing,
            or if a value has a wrong shape or dtype.
    """
    result = objective.predict(model, batch, key=key, dtype=dtype, whole=whole)
    if not isinstance(result, tuple) or len(result) != 2:
        problem = f"objective {objective.kind!r} returns {describe_value(result)} from predict"
        raise UserError(problem, remedy="Return (logits, values).", **method_location(objective, "predict"))
    logits, values = result
    if whole and logits is None:
        problem = f"objective {objective.kind!r} returns no logits, which hooks or metrics read"
        raise UserError(problem, remedy="Pass `whole` on to super().predict.", **method_location(objective, "predict"))
    _check_values(objective, "predict", values, batch.targets)
    return logits, values


def _check_values(objective: Objective, method: str, values: Any, targets: Targets) -> None:
    who, where = f"objective {objective.kind!r}", method_location(objective, method)
    if not isinstance(values, dict):
        problem = f"{who} returns {describe_value(values)} from {method}, expected values by name"
        raise UserError(problem, remedy="Return a dict.", **where)
    required = [name for name in MEASURED if name != "correct" or not objective.real_targets]
    if missing := [name for name in required if name not in values]:
        remedy = f"Return {', '.join(required)}; super().{method} returns them for classes."
        raise UserError(f"{who} returns no value {missing[0]!r} from {method}", remedy=remedy, **where)
    if taken := sorted(set(values) & set(RESERVED)):
        problem = f"{who} returns a value named {taken[0]!r}, which every training step records"
        raise UserError(problem, remedy="Use another name.", **where)
    for name, value in values.items():
        seen, expected = f"{jnp.shape(value)} {jnp.result_type(value)}", f"{targets.shape} float32"
        if seen != expected:
            problem = f"{who} returns {name!r} as {seen} from {method}, expected {expected}"
            raise UserError(problem, remedy="Return one value for each position.", **where)
