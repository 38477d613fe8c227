"""Checks for optimizers and schedules."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from taetpu.core.jit import jit_once
from taetpu.core.static_dynamic import bind
from taetpu.nn.common import partition_trainable
from taetpu.nn.parameters import Parameters
from taetpu.optim.structure_checks import build_update_rule, compute_evaluated, extra_arguments
from taetpu.testing.in_model import check_agreement
from taetpu.testing.report import CheckFailed, Checks
from taetpu.testing.tiny import (
    SEQ,
    VOCAB,
    array_specs,
    describe_array,
    host_config,
    plain_model,
    split_numbers,
    stack_trees,
)

STEPS = 20
Numbers = dict[str, Any]


# --- optimizers ------------------------------------------------------------------------------------------------------


class UpdateRule:
    """An optimizer that moves the parameters of one tiny model towards the parameters of another."""

    def __init__(self, component: Any):
        self.structure, self.numbers = split_numbers(component)
        self.params = partition_trainable(plain_model(0))[0]
        self.goal = partition_trainable(plain_model(1))[0]
        self.parameters = Parameters(self.params, host_config(), VOCAB, SEQ)

    def init(self, numbers: Numbers, params: Any) -> Any:
        """Return the initial state of the optimizer."""
        return build_update_rule(bind(self.structure, numbers), 0, self.parameters).init(params)

    def update(self, numbers: Numbers, lr: Any, gradients: Any, state: Any, params: Any) -> Any:
        """Return the updates and the new state of the optimizer."""
        optimizer = bind(self.structure, numbers)
        extra = extra_arguments(optimizer, self.loss(params), lambda: jax.tree.map(jnp.ones_like, params))
        return build_update_rule(optimizer, lr, self.parameters).update(gradients, state, params, **extra)

    def evaluated(self, numbers: Numbers, state: Any, params: Any) -> Any:
        """Return the parameters that the optimizer evaluates."""
        return compute_evaluated(bind(self.structure, numbers), state, params)

    def loss(self, params: Any) -> jax.Array:
        """Return half the squared distance between the parameters and the goal."""
        return optax.tree.norm(jax.tree.map(jnp.subtract, params, self.goal), squared=True) / 2

    def descend(self, numbers: Numbers, scale: Any) -> tuple[Any, jax.Array]:
        """Return the evaluated parameters and their loss after `STEPS` steps.

        The first step starts at `scale` times the initial parameters.
        """

        def step(_: Any, carry: Any) -> Any:
            params, state = carry
            updates, state = self.update(numbers, numbers.get("lr", 1e-3), jax.grad(self.loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        params = jax.tree.map(lambda a: a * scale, self.params)
        params, state = jax.lax.fori_loop(0, STEPS, step, (params, self.init(numbers, params)))
        params = self.evaluated(numbers, state, params)
        return params, self.loss(params)


def check_optimizer(checks: Checks) -> None:
    """Run all checks for an optimizer."""
    component = checks.component
    rule = UpdateRule(component)
    results: list[Any] = []
    checks.run("updates", check_updates, component, rule)
    checks.run("descends", check_descent, component, rule, results, after="updates")
    checks.run("packs", check_packs, component, rule, results) if results else checks.skip("packs")


def check_updates(component: Any, rule: UpdateRule) -> str:
    """Check that updates have the shapes of the parameters, and that the shapes of the state do not change."""
    at = (component, "transform")
    before = jax.eval_shape(rule.init, rule.numbers, rule.params)
    updates, after = jax.eval_shape(rule.update, rule.numbers, 0.1, rule.params, before, rule.params)
    if array_specs(updates) != array_specs(rule.params):
        raise CheckFailed(describe_change("updates", array_specs(rule.params), array_specs(updates)), at=at)
    if jax.tree.structure(after) != jax.tree.structure(before) or array_specs(after) != array_specs(before):
        raise CheckFailed(describe_change("the state after a step", array_specs(before), array_specs(after)), at=at)
    jax.eval_shape(rule.evaluated, rule.numbers, after, rule.params)
    return "updates and evaluated parameters have the shapes of the parameters, and those of the state do not change"


def describe_change(what: str, expected: dict[str, str], seen: dict[str, str]) -> str:
    """Return a text that describes the first array with an unexpected shape or dtype."""
    name = next((n for n in [*expected, *seen] if expected.get(n) != seen.get(n)), "")
    place = f" at {name}" if name else ""
    return f"{what}{place}: {seen.get(name, 'nothing')}, expected {expected.get(name, 'nothing')}"


def check_descent(component: Any, rule: UpdateRule, results: list[Any]) -> str:
    """Check that steps at the optimizer's learning rate reduce a quadratic loss; append two results to `results`."""
    run = jit_once(rule.descend)
    results += [run(rule.numbers, scale) for scale in (1.0, 0.5)]
    before, after = float(rule.loss(rule.params)), float(results[0][1])
    if not after < before:
        raise CheckFailed(
            f"{STEPS} steps change a quadratic loss from {before:.4g} to {after:.4g}, expected a decrease",
            at=(component, "transform"),
            remedy="Return updates to add to the parameters, such as -lr times the gradient.",
        )
    return f"{STEPS} steps reduce a quadratic loss from {before:.4g} to {after:.4g}"


def check_packs(component: Any, rule: UpdateRule, results: list[Any]) -> str:
    """Check that two packed runs give the same parameters and losses as the same runs alone."""
    numbers = {path: jnp.stack([jnp.asarray(value)] * 2) for path, value in rule.numbers.items()}
    return check_agreement(
        component, jit_once(jax.vmap(rule.descend))(numbers, jnp.array([1.0, 0.5])), stack_trees(*results), "transform"
    )


# --- schedules -------------------------------------------------------------------------------------------------------


def check_schedule(checks: Checks) -> None:
    """Run all checks for a schedule."""
    checks.run("rates", check_rates, checks.component)


def check_rates(component: Any) -> str:
    """Check that the learning rate of every step is finite and at least 0, also in a run with only one step."""
    at = (component, "lr")
    structure, numbers = split_numbers(component)

    def rate(numbers: Numbers, peak: Any, step: Any, steps: int) -> Any:
        return bind(structure, numbers).lr(step, steps, peak)

    for steps in (STEPS, 1):
        seen = jax.eval_shape(lambda: rate(numbers, jnp.float32(0.1), jnp.int32(0), steps))  # noqa: B023
        if describe_array(seen) != "() float32":
            raise CheckFailed(f"the rate of a step is {describe_array(seen)}, expected () float32", at=at)
        every = jit_once(jax.vmap(lambda n, p, s: rate(n, p, s, steps), (None, None, 0)))  # noqa: B023
        rates = np.asarray(every(numbers, jnp.float32(0.1), jnp.arange(steps)))
        wrong = np.flatnonzero(~(np.isfinite(rates) & (rates >= 0)))
        if len(wrong):
            problem = f"the rate of step {wrong[0]} of {steps} is {rates[wrong[0]]:.3g} at a peak of 0.1"
            raise CheckFailed(f"{problem}, expected at least 0", at=at)
    return f"rates are at least 0 in runs of {STEPS} steps and of one step"
