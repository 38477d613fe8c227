"""Slot `hook`: changes of a training step by plug-ins. A study lists its hooks under `train.hooks`.

A hook overrides the methods it needs. Hooks act in the order of their names, and only in training, not in evaluation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Array, Float, Int
from pydantic import model_validator

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.data.batches import Batch
from taetpu.nn.lm import LM
from taetpu.optim.form import check_form

Scalar = Float[Array, ""]


@dataclass(frozen=True)
class Moment:
    """The step in which a hook acts.

    Attributes:
        step: The number of the update, from 0.
        steps: The number of updates of the run.
        key: The random key of this hook in this step; keys of other hooks and runs are independent of it.
    """

    step: Int[Array, ""]
    steps: int
    key: Key


class Hook(Component):
    """Base of hooks, which changes nothing. Every method must be pure: it is traced once, then compiled."""

    def batch(self, batch: Batch, now: Moment) -> Batch:
        """Return the batch to train on, of the same shapes. Targets and weights may stay unchanged."""
        return batch

    def loss(
        self, loss: Scalar, logits: Float[Array, "batch seq vocab"], batch: Batch, model: LM, now: Moment
    ) -> Scalar:
        """Return the loss to differentiate, given a microbatch's mean cross entropy, which `train/loss` records."""
        return loss

    def gradients(self, gradients: LM, params: LM, now: Moment) -> LM:
        """Return the gradients to clip and pass to the optimizer, a tree like the parameters."""
        return gradients

    def updates(self, updates: LM, params: LM, now: Moment) -> LM:
        """Return the updates, weight decay included. A zero leaves a parameter exactly unchanged."""
        return updates

    @model_validator(mode="after")
    def _acts(self) -> "Hook":
        if not any(overrides_method(self, method) for method in METHODS):
            raise UserError(f"hook {self.kind!r} acts nowhere", remedy=f"define one of {', '.join(METHODS)} in it")
        return self


METHODS = ("batch", "loss", "gradients", "updates")


def overrides_method(hook: Hook, method: str) -> bool:
    """Return whether a hook overrides a method."""
    return getattr(type(hook), method) is not getattr(Hook, method)


def hooks_reading_logits(hooks: Mapping[str, Hook]) -> list[str]:
    """Return the names of the hooks that read the logits."""
    return [name for name, hook in sorted(hooks.items()) if overrides_method(hook, "loss")]


def run_hooks(hooks: Mapping[str, Hook], method: str, value: Any, *context: Any, now: Moment) -> Any:
    """Return `value` after one method of every hook, in the order of names, each with its own key.

    Args:
        hooks: The hooks by name.
        method: The name of the method.
        value: The first argument of the method.
        context: The further arguments of the method.
        now: The step; each hook gets its own key.

    Raises:
        UserError: A hook returns a value of another form than its input; the error has the hook's file and line.
    """
    for name, hook in sorted(hooks.items()):
        if overrides_method(hook, method):
            new = getattr(hook, method)(value, *context, replace(now, key=named(now.key, name, method)))
            code = getattr(type(hook), method).__code__
            what = "a number" if method == "loss" else f"the {method} that it was given, changed"
            check_form(
                f"hook {name!r} gives {method}", value, new, f"return {what}",
                path=("train", "hooks", name), file=code.co_filename, line=code.co_firstlineno,
            )  # fmt: skip
            value = new
    return value
