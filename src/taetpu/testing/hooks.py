"""Checks for hooks."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import Read, capture
from taetpu.core.static_dynamic import bind
from taetpu.data.base import Batch
from taetpu.nn.common import partition_trainable
from taetpu.nn.lm import LM
from taetpu.optim.hooks import METHODS, Moment, overrides_method
from taetpu.testing.in_model import check_agreement
from taetpu.testing.optimizer_schedule import STEPS, Numbers, describe_change
from taetpu.testing.report import CheckFailed, Checks, failing_at
from taetpu.testing.tiny import (
    BATCH,
    SEQ,
    VOCAB,
    all_finite,
    array_specs,
    identical,
    plain_model,
    split_numbers,
    stack_trees,
    tokens,
)


def check_hook(checks: Checks) -> None:
    """Run the checks for every method that a hook overrides."""
    component: Any = checks.component
    structure, numbers = split_numbers(component)
    for method in METHODS:
        if not overrides_method(component, method):
            continue

        def call(numbers: Numbers, value: Any, context: Any, step: Any, key: Any, method: str = method) -> Any:
            sites = _read_sites(component, *context[1:]) if method == "loss" else {}
            return getattr(bind(structure, numbers), method)(value, *context, Moment(step, STEPS, key, sites))

        first, second = (_make_arguments(method, seed) for seed in (0, 1))
        results: list[Any] = []
        form, repeats, packs = (f"{method} {check}" for check in ("form", "repeats", "packs"))
        checks.run(form, check_form, component, method, call, numbers, first)
        checks.run(repeats, check_repeats, component, method, call, numbers, first, results, after=form)
        checks.run(packs, check_packs, component, method, call, numbers, (first, second), *results, after=repeats)


def _read_sites(component: Any, batch: Batch, model: LM) -> Mapping[str, Read]:
    """Return the activations of a model at the sites that a hook reads."""
    with failing_at(component, "sites"):
        return capture(model, component.sites())(batch.tokens)[1]


def _make_arguments(method: str, seed: int) -> tuple[Any, ...]:
    """Return the arguments of a hook's method: `(value, context, step, key)`."""
    ids = jnp.asarray((tokens() + 3 * seed) % VOCAB)
    batch = Batch(ids, jnp.roll(ids, -1, 1), jnp.ones(ids.shape).at[0, 0].set(0.0))
    when = (jnp.int32(3 + seed), root_key(seed))
    if method == "batch":
        return batch, (), *when
    model = plain_model(seed)
    params = partition_trainable(model)[0]
    if method in ("gradients", "updates"):
        return params, (params,), *when
    logits = jnp.asarray(np.random.default_rng(seed).standard_normal((BATCH, SEQ, VOCAB)), jnp.float32)
    return jnp.float32(2.5 + seed), (logits, batch, model), *when


def check_form(component: Any, method: str, call: Any, numbers: Numbers, given: tuple[Any, ...]) -> str:
    """Check that the result of a method has the shapes and dtypes of its first argument."""
    expected, seen = array_specs(given[0]), array_specs(jax.eval_shape(call, numbers, *given))
    if seen != expected or jax.tree.structure(jax.eval_shape(call, numbers, *given)) != jax.tree.structure(given[0]):
        raise CheckFailed(f"{describe_change(f'the result of {method}', expected, seen)}", at=(component, method))
    return "the result has the shapes and dtypes of the argument"


def check_repeats(
    component: Any, method: str, call: Any, numbers: Numbers, given: tuple[Any, ...], results: list
) -> str:
    """Check that two compiled calls with one key give identical and finite results, with tokens in the vocabulary."""
    first, again = (jit_once(partial(call))(numbers, *given) for _ in range(2))  # `partial` bypasses jit's cache
    if not identical(first, again):
        remedy = "Draw from now.key, or from named(now.key, 'NAME') for several draws."
        raise CheckFailed(f"two calls of {method} with the same key differ", at=(component, method), remedy=remedy)
    if not all_finite(first):
        raise CheckFailed(f"{method} returns non-finite numbers", at=(component, method))
    if method == "batch":
        for name, ids in (("tokens", first.tokens), ("targets", first.targets)):
            if ids.min() < 0 or ids.max() >= VOCAB:
                problem = f"{name} range from {ids.min()} to {ids.max()}, expected 0 to {VOCAB - 1}"
                raise CheckFailed(problem, at=(component, method))
        if first.weights.min() < 0:
            raise CheckFailed("weights are negative", at=(component, method))
    results.append(first)
    return "calls with the same key give the same bits"


def check_packs(component: Any, method: str, call: Any, numbers: Numbers, given: Any, first: Any) -> str:
    """Check that two packed runs agree with the same runs alone."""
    second = jit_once(call)(numbers, *given[1])
    packed = jit_once(jax.vmap(call, (None, 0, 0, 0, 0)))(numbers, *stack_trees(*given))
    return check_agreement(component, packed, stack_trees(first, second), method)
