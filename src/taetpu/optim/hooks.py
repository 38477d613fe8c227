"""Slot `hook`: what a plug-in may change of a training step. A study names its hooks under `train.hooks`.

A hook replaces the methods it needs. Hooks act in the order of their names, in training alone: evaluation knows none.
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
    """When a hook acts.

    Attributes:
        step: the update's number, from 0.
        steps: how many there will be.
        key: this hook's own randomness in this step; another hook's, or another run's, is independent of it.
    """

    step: Int[Array, ""]
    steps: int
    key: Key


class Hook(Component):
    """Changes nothing; kinds replace what they need. Every method must be pure: it is traced once, then compiled."""

    def batch(self, batch: Batch, now: Moment) -> Batch:
        """The batch to train on, of the same shapes. Targets and weights may be left as they are."""
        return batch

    def loss(
        self, loss: Scalar, logits: Float[Array, "batch seq vocab"], batch: Batch, model: LM, now: Moment
    ) -> Scalar:
        """What is differentiated, given the mean cross entropy of a microbatch. `train/loss` keeps the latter."""
        return loss

    def gradients(self, gradients: LM, params: LM, now: Moment) -> LM:
        """The gradients that are clipped and handed to the optimizer, a tree like the parameters."""
        return gradients

    def updates(self, updates: LM, params: LM, now: Moment) -> LM:
        """What is added to the parameters, weight decay included. A zero leaves a parameter exactly as it is."""
        return updates

    @model_validator(mode="after")
    def _acts(self) -> "Hook":
        if not any(overrides_method(self, method) for method in METHODS):
            raise UserError(f"hook {self.kind!r} acts nowhere", remedy=f"define one of {', '.join(METHODS)} in it")
        return self


METHODS = ("batch", "loss", "gradients", "updates")


def overrides_method(hook: Hook, method: str) -> bool:
    """Does a hook replace this method?"""
    return getattr(type(hook), method) is not getattr(Hook, method)


def hooks_reading_logits(hooks: Mapping[str, Hook]) -> list[str]:
    """The names of the hooks that are given the logits."""
    return [name for name, hook in sorted(hooks.items()) if overrides_method(hook, "loss")]


def run_hooks(hooks: Mapping[str, Hook], method: str, value: Any, *context: Any, now: Moment) -> Any:
    """`value` through the method of every hook that has it, in the order of names; each gets a key of its own.

    Raises:
        UserError: a hook gives something of another form than it was given; with the hook's file and line.
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
