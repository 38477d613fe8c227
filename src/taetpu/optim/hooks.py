"""Slot `hook`: changes to a training step. A study lists its hooks under `train.hooks`.

A hook overrides the methods it needs. Hooks act in alphabetical order of their names, in training only.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from pydantic import Field, NonNegativeFloat, model_validator

from taetpu.core.config import Component, Traced
from taetpu.core.errors import UserError, locate_errors, suggest
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import Read
from taetpu.data.base import Batch
from taetpu.nn.lm import LM
from taetpu.nn.named_arrays import logical_names, named_parameters
from taetpu.optim.loss import LEAST_WEIGHT
from taetpu.optim.structure_checks import check_form

Scalar = Float[Array, ""]
Logits = Float[Array, "batch seq vocab"]


@dataclass(frozen=True)
class Moment:
    """The step in which a hook acts.

    Attributes:
        step: The number of the update, from 0.
        steps: The number of updates in the run.
        key: The random key for this hook in this step, independent of the keys for other hooks and runs.
        sites: In the method `loss`, the activations of the microbatch at the sites that the hook names. In a stack,
            they are an array `(layers, ...)`, or `Ragged` if their shape differs between layers.
    """

    step: Int[Array, ""]
    steps: int
    key: Key
    sites: Mapping[str, Read] = field(default_factory=dict)


class Hook(Component):
    """Base of hooks. By default, methods change nothing. Every method must be pure, because JAX compiles it."""

    def sites(self) -> tuple[str, ...]:
        """Return the sites that `loss` reads, without a second forward pass."""
        return ()

    def batch(self, batch: Batch, now: Moment) -> Batch:
        """Return the batch to train on, with the same shapes. Targets and weights may be returned unchanged."""
        return batch

    def loss(self, loss: Scalar, logits: Logits, batch: Batch, model: LM, now: Moment) -> Scalar:
        """Return the loss to differentiate. `loss` is the mean of the objective over a microbatch."""
        return loss

    def gradients(self, gradients: LM, params: LM, now: Moment) -> LM:
        """Return the gradients to clip and pass to the optimizer, as a tree like the parameters."""
        return gradients

    def updates(self, updates: LM, params: LM, now: Moment) -> LM:
        """Return the updates, which include weight decay. An update of zero leaves a parameter exactly unchanged."""
        return updates

    @model_validator(mode="after")
    def _acts(self) -> "Hook":
        if not any(overrides_method(self, method) for method in METHODS):
            problem = f"hook {self.kind!r} overrides no method"
            raise UserError(problem, remedy=f"Define at least one of {', '.join(METHODS)}.")
        return self


METHODS = ("batch", "loss", "gradients", "updates")


@register("hook", "freeze")
class Freeze(Hook):
    """Trains only the parameters whose names match a pattern; all others keep their values exactly.

    The weights of frozen parameters are not decayed either.
    """

    example: ClassVar = {"trained": ["*.mixer.wq"]}

    trained: Annotated[tuple[str, ...], Field(min_length=1)]
    """Shell patterns of the names of trained parameters, e.g. `*.adapter.*` or `layers.3.*`."""

    def updates(self, updates: LM, params: LM, now: Moment) -> LM:
        """Return the updates, with zeros for frozen parameters."""
        names = [*jax.eval_shape(named_parameters, params)]
        for i, pattern in enumerate(self.trained):
            if not fnmatch.filter(names, pattern):
                parts = {part for name in names for part in (name, f"*.{name.split('.', 2)[-1]}")}
                problem = f"no parameter has a name that matches {pattern!r}"
                raise UserError(problem, path=("trained", i), remedy=suggest(pattern, sorted(parts)))

        def chosen(path: Any, update: Array) -> Array:
            names = logical_names(params, jax.tree_util.keystr(path, simple=True, separator="."))
            keep = np.array([any(fnmatch.fnmatchcase(name, pattern) for pattern in self.trained) for name in names])
            if keep.all():
                return update
            lead = keep.reshape(-1, *[1] * (update.ndim - 1)) if len(names) > 1 else keep[0]
            return jnp.where(lead, update, jnp.zeros_like(update))

        return jax.tree_util.tree_map_with_path(chosen, updates)


def weighted_mean(values: Float[Array, "batch seq"], batch: Batch) -> Scalar:
    """Return the mean of values over the positions of a batch, with the weights of their targets."""
    return (values * batch.weights).sum() / jnp.maximum(batch.weights.sum(), LEAST_WEIGHT)


@register("hook", "z-loss")
class ZLoss(Hook):
    """Adds `weight` times the mean of log(Z)^2 to the loss, with Z = sum of exp(logits). Chowdhery et al. 2022 (PaLM).

    It keeps log(Z) near 0, which the authors found to stabilise training. `train/loss` and evaluation losses do not
    contain it. ST-MoE (Zoph et al. 2022) applies the same loss to the router of a mixture of experts.

    Source: Chowdhery et al. 2022, "PaLM: Scaling Language Modeling with Pathways", arXiv 2204.02311, section 5.
    Reference: transformers.models.switch_transformers.modeling_switch_transformers.router_z_loss_func.
    """

    weight: Annotated[NonNegativeFloat, Traced()] = 1e-4
    """Factor of the mean of log(Z)^2."""

    def loss(self, loss: Scalar, logits: Logits, batch: Batch, model: LM, now: Moment) -> Scalar:
        """Return the loss with the penalty."""
        return loss + self.weight * weighted_mean(jax.nn.logsumexp(logits, axis=-1) ** 2, batch)


@register("hook", "label-smoothing")
class LabelSmoothing(Hook):
    """Cross entropy with (1 - rate) on the target and rate / vocab on every token. Szegedy et al. 2016.

    It is the cross entropy plus rate times (logit of the target - mean logit), a sum that other hooks can add to.
    `train/loss` and evaluation losses are the plain cross entropy.

    Source: Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", arXiv 1512.00567,
    section 7.
    Reference: torch.nn.CrossEntropyLoss.
    """

    rate: Annotated[float, Field(ge=0, lt=1), Traced()] = 0.1
    """Share of the probability that is spread over the vocabulary."""

    def loss(self, loss: Scalar, logits: Logits, batch: Batch, model: LM, now: Moment) -> Scalar:
        """Return the loss with smoothed targets."""
        target = jnp.take_along_axis(logits, batch.targets[..., None], axis=-1)[..., 0]
        return loss + self.rate * weighted_mean(target - logits.mean(-1), batch)


def overrides_method(hook: Hook, method: str) -> bool:
    """Return whether a hook overrides a method."""
    return getattr(type(hook), method) is not getattr(Hook, method)


def hooks_reading_logits(hooks: Mapping[str, Hook]) -> list[str]:
    """Return the names of the hooks that read the logits."""
    return [name for name, hook in sorted(hooks.items()) if overrides_method(hook, "loss")]


def run_hooks(hooks: Mapping[str, Hook], method: str, value: Any, *context: Any, now: Moment) -> Any:
    """Apply one method of every hook to `value`, in alphabetical order of the hooks' names, and return the result.

    Args:
        hooks: The hooks by name.
        method: The name of the method.
        value: The first argument of the method.
        context: The further arguments of the method.
        now: The step. Each hook receives a different key.

    Raises:
        UserError: if a hook's result differs from its input in structure, shape or dtype. The error contains the hook's
            file and line.
    """
    for name, hook in sorted(hooks.items()):
        if overrides_method(hook, method):
            sites = {site: now.sites[site] for site in hook.sites()} if method == "loss" else {}
            moment = replace(now, key=named(now.key, name, method), sites=sites)
            with locate_errors("train", "hooks", name):
                new = getattr(hook, method)(value, *context, moment)
            code = getattr(type(hook), method).__code__
            what = "a number" if method == "loss" else f"the given {method}, with the same structure and shapes"
            check_form(
                f"hook {name!r} returns {method}", value, new, f"Return {what}.",
                path=("train", "hooks", name), file=code.co_filename, line=code.co_firstlineno,
            )  # fmt: skip
            value = new
    return value
