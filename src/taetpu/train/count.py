"""Counting before training: parameters and floating-point operations, from shapes and the traced program alone."""

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any, cast

import jax
import jax.numpy as jnp

from taetpu.core.keys import root_key
from taetpu.core.tree import count
from taetpu.nn.execution import AS_BUILT, Execution
from taetpu.nn.lm import LMConfig, build
from taetpu.nn.parts import trainable


def shapes(config: LMConfig, vocab_size: int, seq_len: int) -> Any:
    """The model as shapes; nothing is computed."""
    return jax.eval_shape(lambda: build(config, vocab_size, seq_len, key=root_key(0)))


def parameter_shapes(config: LMConfig, vocab_size: int, seq_len: int) -> Any:
    """What is trained of the model, as shapes."""
    return _parameter_shapes(cast(Any, config), vocab_size, seq_len)


@cache
def _parameter_shapes(config: LMConfig, vocab_size: int, seq_len: int) -> Any:
    return jax.eval_shape(lambda: trainable(build(config, vocab_size, seq_len, key=root_key(0)))[0])


def num_params(config: LMConfig, vocab_size: int, seq_len: int) -> int:
    """Trained numbers of the model, the embedding included."""
    return count(parameter_shapes(config, vocab_size, seq_len))


def flops_per_token(config: LMConfig, vocab_size: int, seq_len: int) -> int:
    """Matrix-product operations of training per token: the forward pass, times three for the gradients.

    Every product in the program is counted as it stands, loops by their length; element-wise work is not counted. The
    backward pass of a product is two products of its size (Kaplan et al. 2020, section 2.1).
    """
    return _forward(cast(Any, config), vocab_size, seq_len, AS_BUILT, "float32")[0]


def activation_bytes(
    config: LMConfig, vocab_size: int, seq_len: int, execution: Execution = AS_BUILT, precision: str = "float32"
) -> int:
    """Bytes of everything that a forward pass over one sequence computes, less what is computed a second time later.

    Of that, the layer of which there is most counts once: the backward pass has it in its hands. Logits that are
    computed in chunks do not count as a whole.
    """
    return _forward(cast(Any, config), vocab_size, seq_len, execution, precision)[1]


@cache
def _forward(config: LMConfig, vocab_size: int, seq_len: int, execution: Execution, precision: str) -> tuple[int, int]:
    tokens = jax.ShapeDtypeStruct((1, seq_len), jnp.int32)
    model = execution.applied(shapes(config, vocab_size, seq_len), counted=True)
    traced = jax.make_jaxpr(lambda model, x: model(x, dtype=jnp.dtype(precision)))(model, tokens)
    kept, again = results(traced.jaxpr)
    if execution.loss_chunk is not None:
        kept -= 4 * vocab_size * max(0, seq_len - execution.loss_chunk)
    return 3 * products(traced.jaxpr) // seq_len, kept + again


def products(jaxpr: Any) -> int:
    """Operations (a multiplication and an addition count as two) of all matrix products in a jaxpr."""
    return sum(2 * times * many * rows * columns * depth for times, many, rows, columns, depth in sides(jaxpr))


def sides(jaxpr: Any, times: int = 1) -> Iterator[tuple[int, int, int, int, int]]:
    """Of every matrix product in a jaxpr: how often it is computed, how many at once, rows, columns, summed length.

    A loop counts by its length where that is known, once elsewhere.
    """
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contract, _), (batch, _) = eqn.params["dimension_numbers"]
            left, right = (v.aval.shape for v in eqn.invars)
            many, depth = prod(left[i] for i in batch), prod(left[i] for i in contract)
            yield times, many, prod(left) // (many * depth), prod(right) // (many * depth), depth
        inside = times * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)
        for part in inner(eqn.params):
            yield from sides(part, inside)


def results(jaxpr: Any) -> tuple[int, int]:
    """Bytes of all that the equations of a jaxpr compute, loops by their length: those that are kept for a backward
    pass, and the most of what is computed a second time at once.
    """
    kept = again = 0
    for eqn in jaxpr.eqns:
        own = sum(prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outvars)
        called = inner(eqn.params)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        parts = [results(part) for part in called]
        most = max((part[1] for part in parts), default=0)
        if eqn.primitive.name == "remat2":
            chosen = eqn.params["policy"]
            own += sum(saved(part, chosen) for part in called) if chosen else 0
            parts, most = [], most + sum(part[0] for part in parts)
        kept += times * sum(part[0] for part in parts) if parts else times * own
        again = max(again, most)
    return kept, again


def saved(jaxpr: Any, policy: Any) -> int:
    """Bytes that `jax.checkpoint` with this policy keeps of a jaxpr."""
    total = 0
    for eqn in jaxpr.eqns:
        if called := inner(eqn.params):
            total += sum(saved(part, policy) for part in called)
        elif policy(eqn.primitive, *(v.aval for v in eqn.invars), **eqn.params):
            total += sum(prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outvars)
    return total


def inner(params: dict[str, Any]) -> list[Any]:
    """The jaxprs that an equation calls; a closed one holds a plain one."""
    found = [getattr(p, "jaxpr", p) for p in params.values()]
    return [p for p in found if hasattr(p, "eqns")]
