"""Checks for objectives."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.config_parsing import build_component
from taetpu.core.jit import jit_once
from taetpu.core.keys import Key, root_key
from taetpu.core.static_dynamic import bind
from taetpu.data.base import Batch
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.compute_options import ComputeOptions
from taetpu.nn.lm import LM
from taetpu.optim.loss import trained_sum
from taetpu.optim.objectives import compute_objective
from taetpu.testing.in_model import check_agreement
from taetpu.testing.report import CheckFailed, Checks, failing_at
from taetpu.testing.tiny import (
    BATCH,
    SEQ,
    VOCAB,
    all_finite,
    distance,
    identical,
    plain_model,
    refuse_distance,
    split_numbers,
    stack_trees,
    tokens,
)
from taetpu.testing.tiny_model import perturb

TASK = {"kind": "copy", "seq_len": SEQ, "symbols": 5, "min_length": 2, "max_length": 3, "eval_size": 2}
CHUNKED = ComputeOptions(loss_chunk=2 * BATCH)
"""Options with which the logits of two positions of each sequence are computed at once."""


def check_objective(checks: Checks) -> None:
    """Run the checks for an objective in a tiny model."""
    component: Any = checks.component
    structure, numbers = split_numbers(component.for_task(build_component("task", TASK)))

    def compute(model: LM, batch: Batch, key: Key) -> tuple[LM, dict[str, jax.Array]]:
        """Return the gradients of the trained sum, and the values at each position."""
        params, rest = partition_trainable(model)

        def loss(params: LM) -> tuple[jax.Array, dict[str, jax.Array]]:
            objective: Any = bind(structure, numbers)
            _, values = compute_objective(objective, combine_trainable(params, rest), batch, key=key)
            return trained_sum({name: value.sum() for name, value in values.items()}), values

        return jax.grad(loss, has_aux=True)(params)

    computed: list[Any] = []
    checks.run("values", check_values, component, compute, computed)
    checks.run("repeats", check_repeats, component, compute, *computed, after="values")
    checks.run("chunks", check_chunks, component, *computed, after="values")
    checks.run("packs", check_packs, component, compute, *computed, after="values")


def check_values(component: Any, compute: Any, computed: list[Any]) -> str:
    """Check that values and gradients are finite, that values respect the weights, and that `weight` is the weight.

    Append the compiled function, two models, a batch and a key to `computed`.
    """
    ids = jnp.asarray(tokens(4 if component.reads_batch else BATCH))  # a sequence of weight 0 is no candidate
    models = [perturb(plain_model(seed), seed) for seed in range(2)]
    weights = jnp.ones(ids.shape).at[0].set(0.0).at[1, 0].set(0.5)
    targets = jnp.roll(ids, 3, 1) / VOCAB if component.real_targets else jnp.roll(ids, 3, 1) % VOCAB
    batch, run, key = Batch(ids, targets, weights), jit_once(compute), root_key(5)
    if component.reads_batch:
        whole = jnp.full(len(ids), SEQ)
        batch = batch._replace(second=jnp.roll(ids, 1, 1), lengths=whole, second_lengths=whole)
    with failing_at(*_place(component)):
        gradients, values = run(models[0], batch, key)
    if wrong := sorted(name for name, value in values.items() if not all_finite(value)):
        raise CheckFailed(f"{wrong[0]} is not finite", at=_place(component))
    if not all_finite(gradients):
        raise CheckFailed("a gradient is not finite", at=_place(component))
    if not identical(values["weight"], weights):
        remedy = "Return the given weights. Multiply other values by zero at positions that are not trained."
        raise CheckFailed("weight is not the weight of the position", at=_place(component), remedy=remedy)
    if wrong := sorted(name for name, value in values.items() if np.asarray(value[0]).any()):
        problem = f"{wrong[0]} is not 0 at positions of weight 0"
        raise CheckFailed(problem, at=_place(component), remedy="Multiply the values by `weights`.")
    if not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients)):
        raise CheckFailed("the gradient of every parameter is zero", at=_place(component))
    computed += [run, models, batch, key]
    return f"{', '.join(sorted(values))} are finite, and so are the gradients"


def check_repeats(component: Any, compute: Any, run: Any, models: list[LM], batch: Batch, key: Key) -> str:
    """Check that two compiled calls with one key give identical values."""
    again = jit_once(partial(compute))(models[0], batch, key)  # `partial` bypasses jit's cache
    if not identical(run(models[0], batch, key), again):
        remedy = "Draw from named(key, 'NAME'), and nothing if key is None."
        raise CheckFailed("two calls with the same key differ", at=_place(component), remedy=remedy)
    return "calls with the same key give the same bits"


def check_chunks(component: Any, run: Any, models: list[LM], batch: Batch, key: Key) -> str:
    """Check that chunks of positions give the results of the whole batch."""
    apart = distance(run(CHUNKED.apply(models[0]), batch, key), run(models[0], batch, key))
    remedy = "Use only the logits and targets of the same position."
    refuse_distance(apart, "chunks of positions differ from the whole batch", _place(component), remedy)
    return f"chunks of positions and the whole batch agree to {apart:.0e}"


def check_packs(component: Any, compute: Any, run: Any, models: list[LM], batch: Batch, key: Key) -> str:
    """Check that two packed runs agree with the same runs alone."""
    packed = jit_once(jax.vmap(compute, (0, None, None)))(stack_trees(*models), batch, key)
    return check_agreement(
        component, packed, stack_trees(*(run(model, batch, key) for model in models)), _place(component)[1]
    )


def _place(component: Any) -> tuple[Any, str]:
    """Return the method of an objective that computes its values."""
    return component, "predict" if "predict" in vars(type(component)) else "position_losses"
