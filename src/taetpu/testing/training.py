"""Checks of optimizers and schedules."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.interpreters.partial_eval import dce_jaxpr

from taetpu.core.jit import jit_once
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.nn.common import partition_trainable
from taetpu.optim.form import build_update_rule
from taetpu.testing.models import agreed, numbers_read
from taetpu.testing.report import Checks, Unmet
from taetpu.testing.tiny import form, plain, stacked, told

STEPS = 20
Numbers = dict[str, Any]


def taken(component: Any) -> tuple[Any, Numbers]:
    """A component as structure and numbers."""
    structure, numbers = split(component, promoted_fields(component))
    return structure, {path: np.asarray(value, np.float32) for path, value in numbers.items()}


def reads(fn: Any, numbers: Numbers, *args: Any) -> set[str]:
    """The numbers that any result of `fn(numbers, *args)` depends on."""
    traced = jax.make_jaxpr(fn)(numbers, *args)
    used = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[1]
    return {path for path, is_used in zip(sorted(numbers), used, strict=False) if is_used}


# --- optimizers ------------------------------------------------------------------------------------------------------


class Rule:
    """An optimizer on the parameters of a tiny model."""

    def __init__(self, component: Any):
        self.structure, self.numbers = taken(component)
        self.params = partition_trainable(plain(0))[0]
        self.goal = partition_trainable(plain(1))[0]

    def init(self, numbers: Numbers, lr: Any) -> Any:
        return build_update_rule(bind(self.structure, numbers), lr, self.params).init(self.params)

    def update(self, numbers: Numbers, lr: Any, gradients: Any, state: Any, params: Any) -> Any:
        return build_update_rule(bind(self.structure, numbers), lr, self.params).update(gradients, state, params)

    def loss(self, params: Any) -> jax.Array:
        """Half the squared distance from the goal."""
        return optax.tree.norm(jax.tree.map(jnp.subtract, params, self.goal), squared=True) / 2

    def descend(self, numbers: Numbers, scale: Any) -> tuple[Any, jax.Array]:
        """Parameters and loss after some steps from `scale` times the start."""

        def step(_: Any, carry: Any) -> Any:
            params, state = carry
            updates, state = self.update(numbers, numbers.get("lr", 1e-3), jax.grad(self.loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        params = jax.tree.map(lambda a: a * scale, self.params)
        params, _ = jax.lax.fori_loop(0, STEPS, step, (params, self.init(numbers, 0)))
        return params, self.loss(params)


def check_optimizer(checks: Checks) -> None:
    """State and updates have the form of the parameters, and a step goes downhill."""
    component = checks.component
    rule = Rule(component)
    if not checks.make("state", state, component, rule) or not checks.make("updates", updates, component, rule, checks):
        checks.leave("descends", "packs")
        return
    found: list[Any] = []
    checks.make("descends", descends, component, rule, found)
    checks.make("packs", packed_descent, component, rule, found) if found else checks.leave("packs")


def state(component: Any, rule: Rule) -> str:
    """The state that is begun with does not depend on the learning rate: it is built before there is one."""
    traced, shapes = jax.make_jaxpr(lambda lr: rule.init(rule.numbers, lr), return_shape=True)(0.0)
    if any(dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[1]):
        problem = "the state to begin with depends on the learning rate, which is 0 when it is built"
        raise Unmet(problem, at=(component, "transform"), remedy="use the rate in updates alone")
    return f"{len(jax.tree.leaves(shapes))} arrays"


def updates(component: Any, rule: Rule, checks: Checks) -> str:
    """An update has the form of the parameters and leaves the state's as it was."""
    at = (component, "transform")
    begun = jax.eval_shape(rule.init, rule.numbers, 0)
    found, after = jax.eval_shape(rule.update, rule.numbers, 0.1, rule.params, begun, rule.params)
    if form(found) != form(rule.params):
        raise Unmet(changed("updates", form(rule.params), form(found)), at=at)
    if jax.tree.structure(after) != jax.tree.structure(begun) or form(after) != form(begun):
        raise Unmet(changed("the state after a step", form(begun), form(after)), at=at)
    given = (0.1, rule.params, begun, rule.params)
    first, again = (jit_once(partial(rule.update)).lower(rule.numbers, *given).as_text() for _ in range(2))
    if first != again:
        remedy = "draw nothing with numpy or random, and keep nothing between calls"
        raise Unmet("two calls of the same update compute different things", at=at, remedy=remedy)
    read = reads(rule.update, rule.numbers, *given) | reads(rule.init, rule.numbers, 0)
    read |= {"lr"} & set(rule.numbers)  # read by the schedule
    return f"like the parameters; {numbers_read(rule.numbers, read, checks)}"


def changed(what: str, expected: dict[str, str], seen: dict[str, str]) -> str:
    name = next((n for n in [*expected, *seen] if expected.get(n) != seen.get(n)), "")
    place = f" at {name}" if name else ""
    return f"{what}{place}: {seen.get(name, 'nothing')}, expected {expected.get(name, 'nothing')}"


def descends(component: Any, rule: Rule, found: list[Any]) -> str:
    """Some steps at its own learning rate bring a quadratic down."""
    run = jit_once(rule.descend)
    found += [run(rule.numbers, scale) for scale in (1.0, 0.5)]
    before, after = float(rule.loss(rule.params)), float(found[0][1])
    if not after < before:
        raise Unmet(
            f"{STEPS} steps on half a squared distance took it from {before:.4g} to {after:.4g}, expected less",
            at=(component, "transform"),
            remedy="updates are added to the parameters: a step down is -lr times the gradient",
        )
    return f"{STEPS} steps take half a squared distance from {before:.4g} to {after:.4g}"


def packed_descent(component: Any, rule: Rule, found: list[Any]) -> str:
    """Two runs in one program descend as each does by itself."""
    numbers = {path: jnp.stack([jnp.asarray(value)] * 2) for path, value in rule.numbers.items()}
    return agreed(
        component, jit_once(jax.vmap(rule.descend))(numbers, jnp.array([1.0, 0.5])), stacked(*found), "transform"
    )


# --- schedules -------------------------------------------------------------------------------------------------------


def check_schedule(checks: Checks) -> None:
    """A rate for every step: one number, finite, not negative."""
    checks.make("rates", rates, checks.component, checks)


def rates(component: Any, checks: Checks) -> str:
    """The rates of short and of longer runs."""
    at = (component, "lr")
    structure, numbers = taken(component)

    def rate(numbers: Numbers, peak: Any, step: Any, steps: int) -> Any:
        return bind(structure, numbers).lr(step, steps, peak)

    for steps in (STEPS, 1):
        seen = jax.eval_shape(lambda: rate(numbers, jnp.float32(0.1), jnp.int32(0), steps))  # noqa: B023
        if told(seen) != "() float32":
            raise Unmet(f"the rate of a step is {told(seen)}, expected () float32", at=at)
        every = jit_once(jax.vmap(lambda n, p, s: rate(n, p, s, steps), (None, None, 0)))  # noqa: B023
        found = np.asarray(every(numbers, jnp.float32(0.1), jnp.arange(steps)))
        wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
        if len(wrong):
            problem = f"the rate of step {wrong[0]} of {steps} is {found[wrong[0]]:.3g} at a peak of 0.1"
            raise Unmet(f"{problem}, expected a number of at least 0", at=at)
    args = (jnp.float32(0.1), jnp.int32(3))
    if "peak" not in reads(lambda p, n, s: rate(n, p["peak"], s, STEPS), {"peak": args[0]}, numbers, args[1]):
        raise Unmet("the rate does not depend on the peak, which is the optimizer's lr", at=at)
    read = reads(lambda n, p, s: rate(n, p, s, STEPS), numbers, *args)
    return f"{STEPS} steps, and a run of one; {numbers_read(numbers, read, checks)}"
