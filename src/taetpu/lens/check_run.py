"""The check that a stored model still gives the losses that were stored when it was trained."""

from dataclasses import dataclass, field

import numpy as np

from taetpu.core.errors import UserError
from taetpu.data.base import Split
from taetpu.lens.losses import find_split, split_losses
from taetpu.lens.opened import OpenedModel
from taetpu.train.reload_check import FULL, REDUCED


@dataclass(frozen=True)
class CheckedLoss:
    """The loss of a model on an evaluation set, in nats per weighted token.

    Attributes:
        split: The name of the evaluation set.
        stored: The loss that was stored after training.
        first: The loss of the stored model.
        second: The loss of the stored model, evaluated once more.
        allowed: The allowed difference from the stored loss, relative for losses above 1.
        agrees: Whether both evaluations are equal, and agree with the stored loss.
    """

    split: str
    stored: float
    first: float
    second: float
    allowed: float
    agrees: bool = field(init=False)

    def __post_init__(self):
        apart = abs(self.first - self.stored) / max(1.0, abs(self.stored))
        object.__setattr__(self, "agrees", self.first == self.second and apart <= self.allowed)


def check_losses(opened: OpenedModel) -> list[CheckedLoss]:
    """Return the losses on each evaluation set whose loss is stored.

    Losses of models that were trained in reduced precision are compared with a larger bound, because they are evaluated
    in float32 here.

    Raises:
        UserError: if the run has no stored loss, or its data has changed.
    """
    if opened.removals:
        raise UserError(f"no loss is stored for {opened.name}", remedy="Check the model with all components.")
    if opened.run is not None and opened.step != opened.result.get("steps"):
        raise UserError("a loss is stored for the trained model only", remedy="Remove the step.")
    stored = opened.result.get("metrics", {})
    splits = [split for split in opened.run_config.task.evaluation_sets if stored.get(f"{split}/loss") is not None]
    if not splits:
        outcome = opened.result.get("outcome", "finished")
        reason = "" if outcome == "finished" else f": it {outcome}"
        problem = f"no finite loss is stored for this run{reason}"
        raise UserError(problem, file=opened.name, remedy="Use a run that has finished.")
    allowed = FULL if _trained_in_float32(opened) else REDUCED
    checked = []
    for name in splits:
        split = find_split(opened, name)
        first, second = (mean_loss(opened, split) for _ in range(2))
        checked.append(CheckedLoss(name, stored[f"{name}/loss"], first, second, allowed))
    return checked


def _trained_in_float32(opened: OpenedModel) -> bool:
    precision, platform = opened.run_config.train.precision, opened.result.get("environment", {}).get("platform")
    return precision == "float32" or (precision == "auto" and platform == "cpu")


def mean_loss(opened: OpenedModel, split: Split) -> float:
    """Return the loss of a model on an evaluation set, in nats per weighted token."""
    total = 0.0
    for rows, (losses, _) in split_losses(opened, split):
        total += float((losses * split.weights[rows]).sum(dtype=np.float64))
    return total / float(split.weights.sum(dtype=np.float64))
