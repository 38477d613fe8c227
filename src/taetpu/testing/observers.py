"""Checks for components that observe a run: kinds of the slots `stop` and `evaluate`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.jit import jit_once
from taetpu.core.static_dynamic import bind
from taetpu.optim.selection import Observer
from taetpu.optim.structure_checks import check_form
from taetpu.testing.report import CheckFailed, Checks, failing_at
from taetpu.testing.tiny import describe_array, plain_model, split_numbers

LOSSES = (2.0, 1.0, 1.5, np.nan, 0.5)


def check_observer(checks: Checks) -> None:
    """Run all checks for a component that observes a run."""
    if isinstance(checks.component, Observer):
        checks.run("observations", check_observations, checks.component)
    else:
        checks.note("observations", "observes no run")


def check_observations(component: Any) -> str:
    """Check that observations keep the form of the state, and that the run ends or evaluates a model accordingly."""
    (structure, numbers), model = split_numbers(component), plain_model(0)
    stops = component.slot == "stop"

    def observe(numbers: Any, loss: Any, step: Any, before: Any) -> tuple[Any, Any]:
        bound = bind(structure, numbers)
        state = bound.observe(bound.begin(model) if before is None else before, loss, model, step)
        return state, bound.stops(state) if stops else bound.evaluated(state, model)

    state = component.begin(model)
    with failing_at(component, "observe"):
        after, outcome = jax.eval_shape(observe, numbers, jnp.float32(1), jnp.int32(component.every), state)
        check_form(f"{component.kind!r} returns a state", state, after, "Return a state of the same form.")
    method, expected = ("stops", "() bool") if stops else ("evaluated", "a tree like the model")
    with failing_at(component, method):
        if stops and describe_array(outcome) != expected:
            raise CheckFailed(f"stops returns {describe_array(outcome)}, expected {expected}", at=(component, method))
        if not stops:
            check_form(f"{component.kind!r} evaluates a model", model, outcome, f"Return {expected}.")
    step = jit_once(observe)
    for i, loss in enumerate(LOSSES, start=1):
        state, outcome = step(numbers, jnp.float32(loss), jnp.int32(i * component.every), state)
    finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((state, outcome)))
    if not finite:
        raise CheckFailed("a loss that is NaN makes the state of a later observation NaN", at=(component, "observe"))
    return f"{len(LOSSES)} observations keep the form of the state, also with a loss that is NaN"
