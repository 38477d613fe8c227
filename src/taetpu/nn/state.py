"""State that changes in training without gradients, such as the bias of a router.

A module holds it in a field of type `State`, records means in its forward pass (`record_mean`), and returns its new
self from `after_step`. State is part of checkpoints and of the stored model.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from taetpu.nn.common import Fixed

if TYPE_CHECKING:
    from taetpu.nn.lm import LM

Means = Mapping[str, Mapping[int, Array]]
"""Means over the tokens of a batch, by name and by layer."""


class State(Fixed):
    """An array in the model that `after_step` changes, instead of the optimizer."""


@runtime_checkable
class Updated(Protocol):
    """A module with state."""

    def after_step(self, means: Mapping[str, Array]) -> Any:
        """Return the module after a training step.

        Args:
            means: The means that the module has recorded in the step, by name. If layers share the module, these are
                the means over the layers.
        """
        ...


def update_state(model: "LM", means: Means) -> "LM":
    """Return the model with the state of every module in its layers updated; see `Updated`."""
    if not means:
        return model
    users: dict[int, dict[int, list[int]]] = {}  # stack -> index of the parameters -> the layers that use them
    for number, stack in enumerate(model.stacks):
        home = users.setdefault(number if stack.source is None else stack.source, {})
        for i in range(stack.size):
            home.setdefault(i if stack.places is None else stack.places[i], []).append(stack.start + i)

    def updated(number: int) -> Any:
        stack, layers = model.stacks[number], users[number]
        if stack.block is None:
            return stack
        known = {name: by_layer for name, by_layer in means.items() if layers[0][0] in by_layer}
        if not known:
            return stack
        updates = {
            name: jnp.stack([sum(by_layer[i] for i in layers[place]) / len(layers[place]) for place in sorted(layers)])
            for name, by_layer in known.items()
        }
        return replace(stack, block=eqx.filter_vmap(_update_block)(stack.block, updates))

    return eqx.tree_at(lambda m: m.stacks, model, tuple(updated(number) for number in range(len(model.stacks))))


def _update_block(block: Any, means: Mapping[str, Array]) -> Any:
    def update(node: Any) -> Any:
        return node.after_step(means) if isinstance(node, Updated) else node

    return jax.tree.map(update, block, is_leaf=lambda node: isinstance(node, Updated))
