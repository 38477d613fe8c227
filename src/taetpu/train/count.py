"""Counting before training: parameters and floating-point operations, from shapes and the traced program alone."""

from functools import cache
from math import prod
from typing import Any, cast

import jax
import jax.numpy as jnp

from taetpu.core.keys import root_key
from taetpu.core.tree import count_elements
from taetpu.nn.common import partition_trainable
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.nn.lm import LMConfig, build_model
from taetpu.train.matmul_count import endless, inner, products


def shapes(config: LMConfig, vocab_size: int, seq_len: int) -> Any:
    """The model as shapes; nothing is computed."""
    return jax.eval_shape(lambda: build_model(config, vocab_size, seq_len, key=root_key(0)))


def parameter_shapes(config: LMConfig, vocab_size: int, seq_len: int) -> Any:
    """What is trained of the model, as shapes."""
    return _parameter_shapes(cast(Any, config), vocab_size, seq_len)


@cache
def _parameter_shapes(config: LMConfig, vocab_size: int, seq_len: int) -> Any:
    return jax.eval_shape(lambda: partition_trainable(build_model(config, vocab_size, seq_len, key=root_key(0)))[0])


def num_params(config: LMConfig, vocab_size: int, seq_len: int) -> int:
    """Trained numbers of the model, the embedding included."""
    return count_elements(parameter_shapes(config, vocab_size, seq_len))


def flops_per_token(config: LMConfig, vocab_size: int, seq_len: int, attention: str = "plain") -> int:
    """Matrix-product operations of training per token: the forward pass, times three for the gradients.

    Every product in the program is counted as `train.matmul_count.sides` says; element-wise work is not counted. The
    backward pass of a product is two products of its size (Kaplan et al. 2020, section 2.1). `attention` is the path
    that it takes (`nn.kernels.PATHS`): what a kernel leaves out, since it is masked, is then not counted.
    """
    execution = ComputeOptions(attention=attention)
    return _forward(cast(Any, config), vocab_size, seq_len, execution, "float32", counted=False)[0]


def activation_bytes(
    config: LMConfig,
    vocab_size: int,
    seq_len: int,
    execution: ComputeOptions = DEFAULT_OPTIONS,
    precision: str = "float32",
) -> int:
    """Bytes of everything that a forward pass over one sequence computes, less what is computed a second time later.

    Of that, the layer of which there is most counts once: the backward pass has it in its hands. Logits that are
    computed in chunks do not count as a whole.
    """
    counted = execution.attention != "plain"
    return _forward(cast(Any, config), vocab_size, seq_len, execution, precision, counted=counted)[1]


def endless_loops(config: LMConfig, vocab_size: int, seq_len: int) -> int:
    """Count the loops that contain matrix products and whose length is unknown before they run."""
    return _forward(cast(Any, config), vocab_size, seq_len, DEFAULT_OPTIONS, "float32", counted=False)[2]


@cache
def _forward(
    config: LMConfig, vocab_size: int, seq_len: int, execution: ComputeOptions, precision: str, *, counted: bool
) -> tuple[int, int, int]:
    """Operations a token, bytes, loops of unknown length; `counted` as in `ComputeOptions.apply`."""
    tokens = jax.ShapeDtypeStruct((1, seq_len), jnp.int32)
    model = execution.apply(shapes(config, vocab_size, seq_len), counted=counted)
    traced = jax.make_jaxpr(lambda model, x: model(x, dtype=jnp.dtype(precision)))(model, tokens)
    kept, again = results(traced.jaxpr)
    if execution.loss_chunk is not None:
        kept -= 4 * vocab_size * max(0, seq_len - execution.loss_chunk)
    return 3 * products(traced) // seq_len, kept + again, endless(traced)


def results(jaxpr: Any) -> tuple[int, int]:
    """Bytes of all that the equations of a jaxpr compute, loops by their length: those that are kept for a backward
    pass, and the most of what is computed a second time at once.
    """
    kept = again = 0
    for eqn in jaxpr.eqns:
        own = sum(prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outvars)
        called = [] if eqn.primitive.name == "pallas_call" else inner(eqn.params)  # a kernel's own stays on the chip
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        parts = [results(part) for part in called]
        if eqn.primitive.name == "cond":
            parts = [max(parts)]
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
