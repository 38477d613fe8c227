"""The choices of a run, computed between dispatches: see `optim.selection`."""

from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from taetpu.core.distributed import to_host
from taetpu.data.base import Batch
from taetpu.optim.objectives import default_objective
from taetpu.optim.selection import SELECTION, observers, selectors
from taetpu.optim.structure_checks import check_form, method_location
from taetpu.spec.train_config import TrainConfig
from taetpu.train.step import StepContext, TrainState, current_model, evaluate

Losses: TypeAlias = dict[str, Float[Array, ""]]


def selection_steps(train: TrainConfig, steps: int) -> dict[int, list[str]]:
    """Return the slots whose components observe a run with `steps` steps, by the number of steps taken."""
    due: dict[int, list[str]] = {}
    for slot, component in observers(train).items():
        for step in {*range(component.every, steps + 1, component.every), steps}:
            if component.is_due(step, steps):
                due.setdefault(step, []).append(slot)
    return due


def select(state: TrainState, windows: Batch | None, context: StepContext) -> tuple[TrainState, Losses]:
    """Return the state after the components that are due have observed a run, and the losses that they read.

    The state of a run that stopped earlier is returned unchanged. Losses are those of `train.step.current_model`.

    Args:
        state: the state after a step at which a component is due.
        windows: the validation windows, `(batches, batch, seq)`; None if no component reads a loss.
        context: the context of the run's steps.

    Returns:
        The state, and the losses as `{"selection/stop": loss}` for all components that read one.
    """
    train, model, losses = context.config.train, current_model(state, context.config), Losses()
    if windows is not None:
        sums = evaluate(
            model, windows, dtype=context.dtype, division=context.division,
            objective=default_objective(context.config.task),
        )  # fmt: skip
        nll, weight = (sums[name].reshape(-1) for name in ("nll", "weight"))
        for slot, component in selectors(train).items():
            count = component.windows
            losses[slot] = nll[:count].sum() / jnp.maximum(weight[:count].sum(), 1.0)
    running = state.stopped_at is None or state.stopped_at < 0
    selection = {}
    for slot, component in observers(train).items():
        old = state.selection[slot]
        new = component.observe(old, losses.get(slot, jnp.nan), model, state.step)
        what, remedy = f"{slot} {component.kind!r} returns a state", "Return a state of unchanged structure and shapes."
        check_form(what, old, new, remedy, **method_location(component, "observe"))
        due = component.is_due(state.step, context.steps) & running
        selection[slot] = jax.tree.map(lambda a, b, due=due: jnp.where(due, a, b), new, old)
    stopped_at = state.stopped_at
    if stopped_at is not None:
        ends = train.stop.stops(selection["stop"]) & train.stop.is_due(state.step, context.steps) & running
        stopped_at = jnp.where(ends, state.step, stopped_at)
    after = replace(state, selection=selection, stopped_at=stopped_at)
    return after, {f"{SELECTION}/{slot}": loss for slot, loss in losses.items()}


def first_windows(windows: Batch, count: int) -> Batch:
    """Return the batches of an evaluation set that contain its first `count` windows."""
    size = windows.weights.shape[1]
    return jax.tree.map(lambda a: a[: -(-count // size)], windows)


def selection_facts(train: TrainConfig, state: TrainState) -> list[dict[str, Any]]:
    """Return what the result of each run says about its choices, by index in the pack; empty without observers.

    Args:
        train: the training config of any run of the pack.
        state: the state of the pack after its last step.
    """
    width, facts = len(to_host(state.step)), dict[str, dict[str, np.ndarray]]()
    for slot, component in observers(train).items():
        facts[slot] = {name: to_host(values) for name, values in component.facts(state.selection[slot]).items()}
    stopped_at = None if state.stopped_at is None else to_host(state.stopped_at)
    return [
        ({} if stopped_at is None else {"stopped_at": int(stopped_at[i]) if stopped_at[i] >= 0 else None})
        | ({"selection": {s: {n: v[i].item() for n, v in of.items()} for s, of in facts.items()}} if facts else {})
        for i in range(width)
    ]
