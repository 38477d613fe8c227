"""The check that a stored model still gives the losses that were stored when it was trained."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from taetpu.core.errors import UserError
from taetpu.data.base import Split
from taetpu.lens.opened import OpenedModel
from taetpu.train.reload_check import FULL, REDUCED

BATCH = 64
"""Number of sequences that are evaluated at once."""


@dataclass(frozen=True)
class CheckedLoss:
    """The loss of a model on an evaluation set, in nats per weighted token.

    Attributes:
        split: The name of the evaluation set.
        stored: The loss that was stored after training.
        first: The loss of the stored model.
        second: The loss of the stored model, evaluated once more.
        allowed: The allowed difference from the stored loss, relative for losses above 1.
    """

    split: str
    stored: float
    first: float
    second: float
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether both evaluations are equal, and agree with the stored loss."""
        apart = abs(self.first - self.stored) / max(1.0, abs(self.stored))
        return self.first == self.second and apart <= self.allowed


def check_losses(opened: OpenedModel) -> list[CheckedLoss]:
    """Return the losses on each evaluation set whose loss is stored.

    Losses of models that were trained in reduced precision are compared with a larger bound, because they are evaluated
    in float32 here.

    Raises:
        UserError: if the run has no stored loss, or its data has changed.
    """
    if opened.run is not None and opened.step != opened.result.get("steps"):
        raise UserError("a loss is stored for the trained model only", remedy="Remove the step.")
    stored = opened.result.get("metrics", {})
    splits = [split for split in opened.run_config.task.evaluation_sets if stored.get(f"{split}/loss") is not None]
    if not splits:
        raise UserError("no loss is stored for this run", file=opened.name, remedy="Use a run that has finished.")
    allowed = FULL if _trained_in_float32(opened) else REDUCED
    found = []
    for split in splits:
        first, second = (mean_loss(opened, _split(opened, split)) for _ in range(2))
        found.append(CheckedLoss(split, stored[f"{split}/loss"], first, second, allowed))
    return found


def _trained_in_float32(opened: OpenedModel) -> bool:
    precision, platform = opened.run_config.train.precision, opened.result.get("environment", {}).get("platform")
    return precision == "float32" or (precision == "auto" and platform == "cpu")


def _split(opened: OpenedModel, name: str) -> Split:
    split = opened.data.evaluation(name)
    if split is None:
        raise UserError(f"the task has no evaluation set {name!r}", remedy="Restore the data of training.")
    return split


def mean_loss(opened: OpenedModel, split: Split) -> float:
    """Return the loss of a model on an evaluation set, in nats per weighted token."""

    def build() -> Any:
        def sums(model: Any, tokens: Array, targets: Array, weights: Array, segments: Any) -> Array:
            scores = jax.nn.log_softmax(model(tokens, segments=segments), -1)
            losses = -jnp.take_along_axis(scores, targets[..., None], -1)[..., 0]
            return jnp.stack([(losses * weights).sum(), weights.sum()])

        return jax.jit(sums)

    program, total = opened.program("mean-loss", build), np.zeros(2)
    for start in range(0, len(split.tokens), BATCH):
        part = [
            None if array is None else _filled(array[start : start + BATCH])
            for array in (split.tokens, split.targets, split.weights, split.segments)
        ]
        total += np.asarray(program(opened.model, *part), np.float64)
    return float(total[0] / total[1])


def _filled(rows: np.ndarray) -> np.ndarray:
    """Return rows with zeros after the last one, so that all batches share a program."""
    return np.pad(rows, ((0, BATCH - len(rows)), (0, 0)))
