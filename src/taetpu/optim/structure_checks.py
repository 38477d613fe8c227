"""Checks that the results of hooks, optimizers and schedules have the expected structure, shapes and dtypes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from taetpu.core.errors import UserError
from taetpu.nn.lm import LM
from taetpu.nn.parameters import Parameters
from taetpu.nn.slot_calls import describe_value
from taetpu.optim.loss import trained_sum


def check_form(what: str, given: Any, actual: Any, remedy: str, **where: Any) -> None:
    """Check that a tree has the same structure, shapes and dtypes as the given tree.

    Args:
        what: The start of the message, e.g. "optimizer 'mine' returns updates".
        given: The tree with the expected structure, shapes and dtypes.
        actual: The tree to check.
        remedy: The remedy of the error.
        where: The `file`, `line` and `path` of the error.

    Raises:
        UserError: if the trees differ in structure, shape or dtype.
    """
    if jax.tree.structure(given) != jax.tree.structure(actual):
        same = type(actual) is type(given)
        note = " with a different tree structure" if same else ""
        raise UserError(f"{what} as {describe_value(actual)}{note}", remedy=remedy, **where)
    leaves = zip(jax.tree.leaves_with_path(given), jax.tree.leaves(actual), strict=True)
    for (path, old), new in leaves:
        expected, seen = _form(old), _form(new)
        if seen != expected:
            part = jax.tree_util.keystr(path, simple=True, separator=".")
            at = f" at {part}" if part else ""
            raise UserError(f"{what}{at} as {seen}, expected {expected}", remedy=remedy, **where)


def _form(array: Any) -> str:
    if array is None:
        return "None"
    try:
        return f"{jnp.shape(array)} {jnp.result_type(array)}"
    except (TypeError, ValueError):
        return f"an object of type {type(array).__name__}"


def build_update_rule(optimizer: Any, lr: Any, parameters: Parameters) -> optax.GradientTransformation:
    """Return the optimizer's update rule for the parameters at learning rate `lr`.

    Raises:
        UserError: if the optimizer does not return an optax transformation.
    """
    if hasattr(optimizer, "update_rule"):
        rule = optimizer.update_rule(lr, parameters)
    else:
        rule = optimizer.transform(lr, parameters.decayed)
    if not (callable(getattr(rule, "init", None)) and callable(getattr(rule, "update", None))):
        made, expected = describe_value(rule), "an optax.GradientTransformation"
        method = "update_rule" if "update_rule" in vars(type(optimizer)) else "transform"
        problem = f"optimizer {optimizer.kind!r}: {method} returns {made}, expected {expected}"
        raise UserError(problem, remedy="Return e.g. optax.sgd(lr).", **method_location(optimizer, method))
    return rule


def compute_update(
    optimizer: Any,
    lr: Any,
    gradients: LM,
    state: Any,
    parameters: Parameters,
    sums: Mapping[str, Any],
    curvature: Callable[[], LM],
) -> tuple[Any, Any]:
    """Return the updates that an optimizer adds to the parameters, and its new state.

    Args:
        optimizer: The config of the optimizer.
        lr: The learning rate.
        gradients: The gradients.
        state: The state of the optimizer.
        parameters: The parameters.
        sums: The sums of the objective over the batch.
        curvature: A function that estimates the curvature of the loss for each parameter.

    Raises:
        UserError: if `update` does not return a pair, if the updates differ from the parameters in structure, shape or
            dtype, or if the new state differs from the old state in one of these.
    """
    rule: Any = build_update_rule(optimizer, lr, parameters)
    params = parameters.params
    extra = extra_arguments(optimizer, trained_sum(sums) / sums["weight"], curvature)
    result = rule.update(gradients, state, params, **extra)
    where, who = method_location(optimizer, "transform"), f"optimizer {optimizer.kind!r} returns"
    if not isinstance(result, tuple) or len(result) != 2:
        raise UserError(f"{who} {describe_value(result)} from update", remedy="Return (updates, state).", **where)
    updates, after = result
    check_form(f"{who} updates", params, updates, "Return updates as a tree like the parameters.", **where)
    check_form(f"{who} a state", state, after, "Return a state of unchanged structure, shapes and types.", **where)
    return updates, after


def extra_arguments(optimizer: Any, loss: Any, curvature: Callable[[], Any]) -> dict[str, Any]:
    """Return the keyword arguments that the `update` of an optimizer takes (see `OptimizerConfig`)."""
    extra = {"value": loss} if getattr(optimizer, "uses_loss", False) else {}
    return {**extra, "curvature": curvature} if getattr(optimizer, "uses_curvature", False) else extra


def evaluates_trained(optimizer: Any) -> bool:
    """Return whether the evaluated parameters are the trained parameters."""
    return not hasattr(optimizer, "evaluated") and getattr(optimizer, "ema", None) is None


def compute_evaluated(optimizer: Any, state: Any, params: LM) -> LM:
    """Return the parameters that an optimizer evaluates, before any exponential mean.

    Raises:
        UserError: if they differ from the trained parameters in structure, shape or dtype.
    """
    if not hasattr(optimizer, "evaluated"):
        return params
    evaluated = optimizer.evaluated(state, params)
    what, remedy = f"optimizer {optimizer.kind!r} evaluates parameters", "Return a tree like the parameters."
    check_form(what, params, evaluated, remedy, **method_location(optimizer, "evaluated"))
    return evaluated


def compute_learning_rate(schedule: Any, step: Any, steps: int, peak: Any) -> Any:
    """Return the schedule's learning rate at a step.

    Raises:
        UserError: if the rate is not a float32 scalar.
    """
    rate = schedule.lr(step, steps, peak)
    if _form(rate) != "() float32":
        problem = f"schedule {schedule.kind!r} returns {_form(rate)}, expected () float32"
        raise UserError(problem, remedy="Return one number for the step.", **method_location(schedule, "lr"))
    return rate


def method_location(component: Any, method: str) -> dict[str, Any]:
    """Return the file and line of a component's method, and the slot's path in a study, for use in a `UserError`."""
    path = {"path": ("train", component.slot)}
    code = getattr(getattr(type(component), method), "__code__", None)
    return path if code is None else {**path, "file": code.co_filename, "line": code.co_firstlineno}
