"""Checks that call a component directly, without a model around it.

The checks cover the component's initial parameters, its inputs and results, and its calls under jit.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.tree import leaves_by_path
from taetpu.nn.common import Context, partition_trainable
from taetpu.nn.init import ROLES, role_shape
from taetpu.nn.position.rotary import RopeConfig
from taetpu.nn.residual.base import num_streams
from taetpu.nn.slot_calls import (
    PARTS,
    Part,
    Setup,
    acts_at,
    build_part,
    describe_value,
    in_first_layer,
    matches,
    suggest_cast,
    trace_result,
)
from taetpu.testing.report import CheckFailed, Checks, failing_at
from taetpu.testing.tiny import (
    BATCH,
    DIM,
    HEADS,
    SEQ,
    all_finite,
    context,
    describe_array,
    dims,
    distance,
    identical,
    random_like,
    refuse_distance,
)  # fmt: skip

SIZES = ((BATCH, SEQ), (1, SEQ - 3), (3, 1))


def setup(component: Any, batch: int = BATCH, seq: int = SEQ, dtype: Any = jnp.float32) -> Setup:
    """Return the sizes and the dtype with which a component is checked."""
    placed = in_first_layer(component, dims())
    return Setup(placed, batch, seq, HEADS, HEADS, DIM // HEADS, dtype, RopeConfig(), num_streams(component))


def check_parts(checks: Checks) -> bool:
    """Run the checks for every part of a model that calls the component.

    Returns:
        Whether a model can be built with the component.
    """
    component = checks.component
    passed = [_check_part(checks, f"{name} ".lstrip(), part)
              for name, part in PARTS[component.slot].items() if acts_at(component, name)]  # fmt: skip
    return all(passed)


def _check_part(checks: Checks, prefix: str, part: Part) -> bool:
    component = checks.component
    checks.run(f"{prefix}start", check_start, component, part)
    built_modules: list[Any] = []
    if not checks.run(f"{prefix}shapes", check_shapes, component, part, built_modules):
        checks.skip(f"{prefix}jit")
        return False
    (module,) = built_modules
    if module is None:
        return True
    return checks.run(f"{prefix}jit", check_jit, component, module, part)


def check_start(component: Any, part: Part) -> str:
    """Check that initial parameters are finite float32, depend only on the key, and differ between keys if random."""
    first, again, other = (
        partition_trainable(part.build(component, setup(component), root_key(seed)))[0] for seed in (0, 0, 1)
    )
    at, keyed = (component, "init"), "Draw with the `key` of init: dims.weight(named(key, 'NAME'), ...)."
    if not identical(first, again):
        raise CheckFailed("two models with the same seed start from different parameters", at=at, remedy=keyed)
    arrays = leaves_by_path(first)
    for name, array in arrays.items():
        if array.dtype != jnp.float32:
            raise CheckFailed(f"parameter {name!r} starts as {array.dtype}, expected float32", at=at)
    if wrong := [name for name, array in arrays.items() if not all_finite(array)]:
        raise CheckFailed(f"parameter {wrong[0]!r} has non-finite initial values", at=at)
    others = leaves_by_path(other)
    alike = [name for name, array in arrays.items() if np.ptp(np.asarray(array)) > 0 and identical(array, others[name])]
    for name in alike:
        if _drawn(
            lambda key: partition_trainable(part.build(component, setup(component), key))[0], list(arrays).index(name)
        ):
            problem = f"parameter {name!r} is random, but is identical for every seed and layer"
            raise CheckFailed(problem, at=at, remedy=keyed)
    return f"{len(arrays)} parameters, drawn only from the key" if arrays else "no parameters"


def _drawn(build: Callable[..., Any], index: int) -> bool:
    """Return whether the `index`-th array of `build(key)` depends on random numbers."""
    traced = jax.make_jaxpr(build)(root_key(0))
    only = [i == index for i in range(len(traced.jaxpr.outvars))]
    return "random_bits" in str(dce_jaxpr(traced.jaxpr, only)[0])


def check_shapes(component: Any, part: Part, built_modules: list[Any]) -> str:
    """Check the shape and dtype of the result for several inputs; append the module to `built_modules`."""
    with failing_at(component, part.builder):
        module = build_part(component, part, setup(component), root_key(0))
    built_modules.append(module)
    if module is None:
        return f"the component builds None, so a block with it has no {component.slot}"
    for dtype in (jnp.float32, jnp.bfloat16):
        for batch, seq in SIZES:
            at = setup(component, batch, seq, dtype)
            given, expected = part.arguments(at), part.expected(at)
            for key in (None, root_key(2)) if part.context else (None,):
                seen = trace_result(part, module, at, context(component, batch, seq, key, dtype))
                if not matches(seen, expected):
                    arguments = ", ".join(f"{n} {describe_value(g)}" for n, g in zip(part.given, given, strict=True))
                    mode = "in evaluation" if key is None else "in training"
                    result = f"the result {mode} is {describe_value(seen)}, expected {describe_value(expected)}"
                    raise CheckFailed(
                        f"for {arguments} {result}",
                        at=(module, part.method),
                        remedy=suggest_cast(seen, expected),
                    )
    return "correct in float32 and bfloat16, for several batch sizes and lengths"


def check_jit(component: Any, module: Any, part: Part) -> str:
    """Check that compiled and eager calls agree and are finite, with and without a key."""
    given = tuple(map(random_like, part.arguments(setup(component))))
    apart = 0.0
    for key in (None, root_key(2)) if part.context else (None,):
        ctx = context(component, key=key)
        eager = part.call(module, given, ctx)
        if not all_finite(eager):
            raise CheckFailed("a standard normal input gives non-finite numbers", at=(module, part.method))
        compiled = jit_once(lambda m, g, c: part.call(m, g, Context(**c)))(module, given, dict(vars(ctx)))
        apart = max(apart, distance(compiled, eager))
        remedy = "Draw from named(ctx.key, 'NAME'), not from numpy or random (ctx.key is None in evaluation), "
        remedy += "and keep no state between calls."
        refuse_distance(apart, "compiled and eager calls differ", (module, part.method), remedy)
    return f"compiled and eager calls agree to {apart:.0e}"


def check_draws(component: Any) -> str:
    """Check that weights for every role have the requested shape, are finite, and depend only on the key."""
    at = (component, "draw")
    for role in ROLES:
        shape = role_shape(role, dims())
        first, again, other = (component.draw(dims(), role, shape, key=root_key(seed)) for seed in (0, 0, 1))
        if describe_array(first) != describe_array(jax.ShapeDtypeStruct(shape, jnp.float32)):
            raise CheckFailed(f"draw returns {describe_array(first)} for shape {shape} and role {role}", at=at)
        if not all_finite(first):
            raise CheckFailed(f"a weight of role {role} has non-finite numbers", at=at)
        keyed = "Draw only with jax.random and `key`."
        if not identical(first, again):
            raise CheckFailed(f"two draws of role {role} from one key differ", at=at, remedy=keyed)
        if np.ptp(np.asarray(first)) > 0 and identical(first, other):
            raise CheckFailed(f"a weight of role {role} is identical for two keys", at=at, remedy=keyed)
    return "shapes are correct for all roles, and weights depend only on the key"
