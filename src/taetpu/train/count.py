"""Counting before training: parameters and floating-point operations, from shapes and the traced program alone."""

from functools import cache
from math import prod
from typing import Any, cast

import jax
import jax.numpy as jnp

from taetpu.core.keys import root_key
from taetpu.core.tree import count
from taetpu.nn.lm import LMConfig, build
from taetpu.nn.parts import trainable


def shapes(config: LMConfig, vocab_size: int, seq_len: int) -> Any:
    """The model as shapes; nothing is computed."""
    return jax.eval_shape(lambda: build(config, vocab_size, seq_len, key=root_key(0)))


def parameter_shapes(config: LMConfig, vocab_size: int, seq_len: int) -> Any:
    """What is trained of the model, as shapes."""
    return jax.eval_shape(lambda: trainable(build(config, vocab_size, seq_len, key=root_key(0)))[0])


def num_params(config: LMConfig, vocab_size: int, seq_len: int) -> int:
    """Trained numbers of the model, the embedding included."""
    return _params(cast(Any, config), vocab_size, seq_len)


@cache
def _params(config: LMConfig, vocab_size: int, seq_len: int) -> int:
    return count(parameter_shapes(config, vocab_size, seq_len))


def flops_per_token(config: LMConfig, vocab_size: int, seq_len: int) -> int:
    """Matrix-product operations of training per token: the forward pass, times three for the gradients.

    Every product in the program is counted as it stands, loops by their length; element-wise work is not counted. The
    backward pass of a product is two products of its size (Kaplan et al. 2020, section 2.1).
    """
    return _forward(cast(Any, config), vocab_size, seq_len)[0]


def activation_bytes(config: LMConfig, vocab_size: int, seq_len: int) -> int:
    """Bytes of everything that a forward pass over one sequence computes."""
    return _forward(cast(Any, config), vocab_size, seq_len)[1]


@cache
def _forward(config: LMConfig, vocab_size: int, seq_len: int) -> tuple[int, int]:
    tokens = jax.ShapeDtypeStruct((1, seq_len), jnp.int32)
    traced = jax.make_jaxpr(lambda model, x: model(x))(shapes(config, vocab_size, seq_len), tokens)
    return 3 * products(traced.jaxpr) // seq_len, results(traced.jaxpr)


def products(jaxpr: Any) -> int:
    """Operations (a multiplication and an addition count as two) of all matrix products in a jaxpr."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contract, _), _ = eqn.params["dimension_numbers"]
            left = eqn.invars[0].aval.shape
            total += 2 * prod(eqn.outvars[0].aval.shape) * prod(left[i] for i in contract)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += times * sum(products(inner) for inner in _inner(eqn.params))
    return total


def results(jaxpr: Any) -> int:
    """Bytes of all that the equations of a jaxpr compute, loops by their length."""
    total = 0
    for eqn in jaxpr.eqns:
        inner = _inner(eqn.params)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        own = sum(prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outvars)
        total += times * sum(map(results, inner)) if inner else own
    return total


def _inner(params: dict[str, Any]) -> list[Any]:
    """The jaxprs that an equation calls; a closed one holds a plain one."""
    found = [getattr(p, "jaxpr", p) for p in params.values()]
    return [p for p in found if hasattr(p, "eqns")]
