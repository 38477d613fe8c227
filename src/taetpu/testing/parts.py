"""Checks of a component by itself: how it starts, what it is given and gives, that a call depends on its input."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.tree import leaves_by_path
from taetpu.nn.common import Context, partition_trainable
from taetpu.nn.position import RopeConfig
from taetpu.nn.slots import PARTS, Part, Setup, acts_at, build_part, describe_value, matches, suggest_cast, trace_result
from taetpu.testing.report import Checks, Unmet
from taetpu.testing.tiny import (
    BATCH,
    DIM,
    HEADS,
    SEQ,
    TOLERANCE,
    VOCAB,
    context,
    dims,
    distance,
    finite,
    like,
    same,
    told,
)  # fmt: skip

SIZES = ((BATCH, SEQ), (1, SEQ - 3), (3, 1))


def setup(batch: int = BATCH, seq: int = SEQ, dtype: Any = jnp.float32) -> Setup:
    """What components are tried with."""
    return Setup(dims(), batch, seq, HEADS, HEADS, DIM // HEADS, dtype, RopeConfig())


def check_parts(checks: Checks) -> bool:
    """Check a component wherever it is called. Is it fit to build a model of?"""
    component = checks.component
    found = [_check_part(checks, f"{name} ".lstrip(), part)
             for name, part in PARTS[component.slot].items() if acts_at(component, name)]  # fmt: skip
    return all(found)


def _check_part(checks: Checks, prefix: str, part: Part) -> bool:
    component = checks.component
    checks.make(f"{prefix}start", start, component, part)
    found: list[Any] = []
    if not checks.make(f"{prefix}shapes", shapes, component, part, found):
        checks.leave(f"{prefix}repeats", f"{prefix}jit")
        return False
    if found[0] is None:
        return True
    if not checks.make(f"{prefix}repeats", repeats, found[0], part):
        checks.leave(f"{prefix}jit")
        return False
    return checks.make(f"{prefix}jit", compiled, found[0], part)


def start(component: Any, part: Part) -> str:
    """Parameters are finite float32, a function of the key, and not the same for every key where they are random."""
    first, again, other = (partition_trainable(part.build(component, setup(), root_key(seed)))[0] for seed in (0, 0, 1))
    at, keyed = (component, "init"), "draw with the `key` that init gets: dims.weight(named(key, 'NAME'), ...)"
    if not same(first, again):
        raise Unmet("two models of one seed start from different parameters", at=at, remedy=keyed)
    found = leaves_by_path(first)
    for name, array in found.items():
        if array.dtype != jnp.float32:
            raise Unmet(f"parameter {name!r} starts as {array.dtype}, expected float32", at=at)
    if wrong := [name for name, array in found.items() if not finite(array)]:
        raise Unmet(f"parameter {wrong[0]!r} starts with numbers that are not finite", at=at)
    others = leaves_by_path(other)
    alike = [name for name, array in found.items() if np.ptp(np.asarray(array)) > 0 and same(array, others[name])]
    for name in alike:
        if _drawn(lambda key: partition_trainable(part.build(component, setup(), key))[0], list(found).index(name)):
            problem = f"parameter {name!r} is drawn, but starts the same from every seed and in every layer"
            raise Unmet(problem, at=at, remedy=keyed)
    return f"{len(found)} parameters, from the key alone" if found else "no parameters"


def _drawn(build: Callable[..., Any], index: int) -> bool:
    """Is the `index`-th array that `build(key)` gives made of random bits?"""
    traced = jax.make_jaxpr(build)(root_key(0))
    only = [i == index for i in range(len(traced.jaxpr.outvars))]
    return "random_bits" in str(dce_jaxpr(traced.jaxpr, only)[0])


def shapes(component: Any, part: Part, found: list[Any]) -> str:
    """What it gives has the shape and the type that its slot asks for, whatever it is given."""
    try:
        module = build_part(component, part, setup(), root_key(0))
    except UserError as error:
        raise Unmet(error.problem, at=(component, part.builder), remedy=error.remedy or "") from None
    found.append(module)
    if module is None:
        return f"it builds nothing: a block with it has no {component.slot}"
    for dtype in (jnp.float32, jnp.bfloat16):
        for batch, seq in SIZES:
            at = setup(batch, seq, dtype)
            given, expected = part.arguments(at), part.expected(at)
            for key in (None, root_key(2)) if part.context else (None,):
                seen = trace_result(part, module, at, context(batch, seq, key))
                if not matches(seen, expected):
                    arguments = ", ".join(f"{n} {describe_value(g)}" for n, g in zip(part.given, given, strict=True))
                    asked = "in evaluation" if key is None else "in training"
                    result = f"it gives {describe_value(seen)}, expected {describe_value(expected)}"
                    raise Unmet(
                        f"given {arguments} {asked} {result}",
                        at=(module, part.method),
                        remedy=suggest_cast(seen, expected),
                    )
    return "float32 and bfloat16, several batches and lengths"


def repeats(module: Any, part: Part) -> str:
    """Two calls with the same input give the same, with a key and without."""
    given = tuple(map(like, part.arguments(setup())))
    for key in (None, root_key(2)) if part.context else (None,):
        first, again = (part.call(module, given, context(key=key)) for _ in range(2))
        if not same(first, again):
            raise Unmet(
                f"two calls with the same input differ by up to {distance(first, again):.2g} of the largest value",
                at=(module, part.method),
                remedy="draw from named(ctx.key, 'NAME') (ctx.key is None in evaluation), not from numpy or random, "
                "and keep nothing between calls",
            )
        if not finite(first):
            raise Unmet("a plain input gives numbers that are not finite", at=(module, part.method))
    return "two calls give the same bits"


def compiled(module: Any, part: Part) -> str:
    """The compiled call gives what the plain one does."""
    given = tuple(map(like, part.arguments(setup())))
    plain = part.call(module, given, context())
    found = jit_once(lambda m, g, c: part.call(m, g, Context(c[0], c[1], c[2])))(
        module, given, (context().tokens, context().positions, context().layer)
    )
    apart = distance(found, plain)
    if not apart < TOLERANCE:
        raise Unmet(
            f"compiled and plain calls differ by up to {apart:.2g} of the largest value, expected below {TOLERANCE:g}",
            at=(module, part.method),
            remedy="something is read while tracing that changes later: a global, the time, numpy's random numbers",
        )
    return f"compiled and plain calls agree to {apart:.0e}"


def check_init(checks: Checks) -> bool:
    """Check a component of slot `init`: what it draws for each role."""
    return checks.make("draw", draws, checks.component)


ROLES = {"in": (DIM, 2 * DIM), "out": (2 * DIM, DIM), "embedding": (VOCAB, DIM), "position": (SEQ, DIM)}


def draws(component: Any) -> str:
    """Weights of every role have the shape that was asked for, are finite, and are drawn from the key."""
    at = (component, "draw")
    for role, shape in ROLES.items():
        first, again, other = (component.draw(dims(), role, shape, key=root_key(seed)) for seed in (0, 0, 1))
        if told(first) != told(jax.ShapeDtypeStruct(shape, jnp.float32)):
            raise Unmet(f"asked for a weight of shape {shape} (role {role}) it gives {told(first)}", at=at)
        if not finite(first):
            raise Unmet(f"a weight of role {role} has numbers that are not finite", at=at)
        keyed = "give `key` to jax.random, and draw with nothing else"
        if not same(first, again):
            raise Unmet(f"two draws of role {role} from one key differ", at=at, remedy=keyed)
        if np.ptp(np.asarray(first)) > 0 and same(first, other):
            raise Unmet(f"a weight of role {role} is the same from two keys", at=at, remedy=keyed)
    return f"roles {', '.join(ROLES)}: shapes, and from the key alone"
