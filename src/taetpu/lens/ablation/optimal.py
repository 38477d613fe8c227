"""Optimal ablation: the constants that replace components with the smallest loss.

For each component, Adam starts at the mean of the activation. The constant with the smallest loss on the documents is
returned, of all steps, the mean and zero. Its loss on these documents is therefore at most that of mean and zero
ablation.

Source: Li and Janson 2024, "Optimal ablation for interpretability", arXiv 2409.09951. Their code leaves the first
    position of each text unchanged; here, all positions are replaced.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from taetpu.lens.ablation.components import Components
from taetpu.lens.ablation.documents import Documents
from taetpu.lens.ablation.sweep import batch_arrays, losses_without, read_intact
from taetpu.lens.opened import OpenedModel

RATE = 0.1
"""The learning rate, in standard deviations of the means over units."""


def fit_constants(
    opened: OpenedModel, components: Components, documents: Documents, means: Any, zero: Any, steps: int
) -> Any:
    """Return the optimal constants of all components, as in `Replacement.values`.

    Args:
        opened: The model.
        components: The components.
        documents: The documents on which losses are minimised.
        means: The mean activations.
        zero: Zeros.
        steps: The number of steps for each component.
    """
    assert components.site is not None

    def total(values: Any, model: Any, batch: Any, streams: Any, start: Any, mask: Any) -> Any:
        losses = losses_without(opened, components)
        return losses(model, batch, streams, start, mask, {}, values, {}).sum()

    program = opened.program(("optimal", components.site, components.axis), lambda: jax.value_and_grad(total))
    batches = [(batch_arrays(batch), read_intact(opened, batch, "effect").streams) for batch in documents.batches()]
    best = jax.tree.map(np.array, means)
    numbers = range(len(components))
    masks, firsts = components.masks([[i] for i in numbers]), components.first_layers([[i] for i in numbers])
    for number in numbers:
        mask, start = jax.tree.map(lambda a, number=number: a[number], masks), np.int32(firsts[number])

        def loss(values: Any, mask: Any = mask, start: Any = start) -> tuple[float, Any]:
            results = [program(values, opened.model, batch, streams, start, mask) for batch, streams in batches]
            return sum(float(value) for value, _ in results), jax.tree.map(lambda *g: sum(g), *(g for _, g in results))

        start_at = jax.tree.map(jnp.asarray, means)
        filled = jax.tree.map(lambda a, b: jnp.broadcast_to(jnp.asarray(a, jnp.float32), b.shape), zero, start_at)
        best_values = min((_descend(loss, start_at, steps), (loss(filled)[0], filled)), key=lambda pair: pair[0])[1]
        best = _put(best, best_values, mask, components.axis)
    return best


def _descend(loss: Callable[[Any], tuple[float, Any]], values: Any, steps: int) -> tuple[float, Any]:
    """Return the smallest loss of Adam's steps and its values."""
    spread = float(np.std(np.concatenate([np.ravel(a) for a in jax.tree.leaves(values)])))
    adam = optax.adam(RATE * max(1e-3, spread))
    state, best, best_values = adam.init(values), np.inf, values
    for step in range(steps + 1):
        current, gradient = loss(values)
        if current < best:
            best, best_values = current, values
        if step < steps:
            change, state = adam.update(gradient, state)
            values = optax.apply_updates(values, change)
    return best, best_values


def _put(values: Any, constants: Any, mask: Any, axis: int | None) -> Any:
    """Return values in which the units of a mask are those found."""

    def put(value: np.ndarray, new: Any, mask: np.ndarray) -> np.ndarray:
        shape = [1] * value.ndim
        if mask.ndim == 2:  # layers and units
            shape[0] = len(mask)
        if axis is not None:
            shape[axis if axis < 0 or mask.ndim == 1 else axis + 1] = mask.shape[-1]
        return np.where(mask.reshape(shape), np.asarray(new), value)

    return jax.tree.map(put, values, constants, mask)
