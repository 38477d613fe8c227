"""The cost of a model: parameters, FLOPs and activation bytes, computed from shapes and the traced forward pass."""

from collections.abc import Callable
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from taetpu.core.keys import root_key
from taetpu.core.model_interface import Interface
from taetpu.core.sites import capture
from taetpu.core.tree import count_elements
from taetpu.data.base import Batch, BatchSpec
from taetpu.nn.common import partition_trainable
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.nn.lm import LM, LMConfig, build_model
from taetpu.nn.named_arrays import named_parameters
from taetpu.nn.parameters import Parameters
from taetpu.optim.loss import head_losses
from taetpu.optim.selection import observers
from taetpu.optim.structure_checks import build_update_rule
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.matmul_count import Jaxpr, count_unbounded_loops, inner_jaxprs, matmul_flops


def model_shapes(config: LMConfig, sizes: Interface | int, seq_len: int, live: frozenset[str] = frozenset()) -> LM:
    """Return a model with shapes instead of arrays; nothing is computed. See `build_model` for `live`."""
    return _model_shapes(cast(Any, config), sizes, seq_len, live)


@lru_cache(maxsize=64)
def _model_shapes(config: LMConfig, sizes: Interface | int, seq_len: int, live: frozenset[str]) -> LM:
    return jax.eval_shape(lambda: build_model(config, sizes, seq_len, key=root_key(0), live=live))


def parameter_shapes(config: LMConfig, sizes: Interface | int, seq_len: int) -> LM:
    """Return the trainable part of a model with shapes instead of arrays."""
    return jax.eval_shape(lambda model: partition_trainable(model)[0], model_shapes(config, sizes, seq_len))


def named_shapes(config: LMConfig, sizes: Interface | int, seq_len: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the trained parameters by logical name."""
    named = jax.eval_shape(named_parameters, parameter_shapes(config, sizes, seq_len))
    return {name: array.shape for name, array in named.items()}


def num_params(config: LMConfig, sizes: Interface | int, seq_len: int) -> int:
    """Return the number of trainable parameters, including the embedding."""
    return count_elements(parameter_shapes(config, sizes, seq_len))


def kept_shapes(config: ResolvedConfig, sizes: Interface | int, seq_len: int) -> PyTree:
    """Return the shapes of the arrays that a run keeps between steps, without scalars.

    These are the parameters, the gradients, the state of the optimizer, the exponential mean of the weights, and the
    parameters that `train.evaluate` keeps.
    """
    params, optimizer = parameter_shapes(config.model, sizes, seq_len), config.train.optimizer
    described = Parameters(params, config.model, sizes, seq_len)
    state = jax.eval_shape(build_update_rule(optimizer, jnp.zeros((), jnp.int32), described).init, params)
    means = [] if getattr(optimizer, "ema", None) is None else [params]
    kept = jax.eval_shape(lambda p: [o.begin(p) for o in observers(config.train).values()], params)
    state, kept = jax.tree.map(lambda leaf: leaf if leaf.ndim else None, (state, kept))
    return [params, params, state, means, kept]


def flops_per_token(
    config: LMConfig, sizes: Interface | int, seq_len: int, attention: str = "plain", *, executed: bool = False
) -> int:
    """Return the matrix-product FLOPs of training per token: three times the FLOPs of the forward pass.

    The backward pass of a matrix product consists of two products of the same size (Kaplan et al. 2020, section 2.1).
    Element-wise operations are not counted. See `train.matmul_count.list_matmuls`.

    Args:
        config: the config of the model.
        sizes: the sizes of inputs and outputs, or the number of different tokens.
        seq_len: the sequence length.
        attention: the attention path (see `nn.attention_kernels.PATHS`). Masked blocks that a kernel skips are not
            counted.
        executed: whether to count the experts of a mixture that are computed, but not chosen.
    """
    execution = ComputeOptions(attention=attention)
    cost = _forward(cast(Any, config), sizes, seq_len, execution, "float32", counted=False)
    return cost.executed if executed else cost.active


def activation_bytes(
    config: LMConfig,
    sizes: Interface | int,
    seq_len: int,
    execution: ComputeOptions = DEFAULT_OPTIONS,
    precision: str = "float32",
) -> int:
    """Return the activation bytes of a forward pass over one sequence, without rematerialised activations.

    The activations of the largest rematerialised layer are counted, because the backward pass holds them. If the logits
    are chunked, only one chunk is counted.
    """
    counted = execution.attention != "plain"
    return _forward(cast(Any, config), sizes, seq_len, execution, precision, counted=counted).activations


def unbounded_loops(config: LMConfig, sizes: Interface | int, seq_len: int) -> int:
    """Return the number of loops of unknown length that contain matrix products."""
    return _forward(cast(Any, config), sizes, seq_len, DEFAULT_OPTIONS, "float32", counted=False).unbounded_loops


class _Cost(NamedTuple):
    """The cost of a forward pass over one sequence, heads included.

    Attributes:
        active: the FLOPs of training per token that contribute to the result.
        executed: the FLOPs of training per token.
        activations: the activation bytes.
        unbounded_loops: the number of loops of unknown length that contain matrix products.
    """

    active: int
    executed: int
    activations: int
    unbounded_loops: int


@cache
def _forward(
    config: LMConfig, sizes: Interface | int, seq_len: int, execution: ComputeOptions, precision: str, *, counted: bool
) -> _Cost:
    """Return the cost of a model. See `ComputeOptions.apply` for `counted`."""
    at = Interface.of(sizes)
    batch = BatchSpec().shapes(at, 1, seq_len)
    model = execution.apply(model_shapes(config, sizes, seq_len), counted=counted)

    def forward(model: LM, batch: Batch) -> Any:
        read = sorted({site for head in config.heads.values() for site in head.sites()})
        run = partial(model, dtype=jnp.dtype(precision))
        if not config.heads:
            return run(batch.tokens, types=batch.types)
        logits, sites = capture(run, read)(batch.tokens)
        return logits, head_losses(model, config.heads, sites, batch)

    traced = jax.make_jaxpr(forward)(model, batch)
    kept, again = result_bytes(traced.jaxpr)
    if execution.loss_chunk is not None:
        kept -= 4 * at.output_size * max(0, seq_len - execution.loss_chunk)
    active, executed = (3 * matmul_flops(traced, active=only) // seq_len for only in (True, False))
    return _Cost(active, executed, kept + again, count_unbounded_loops(traced))


def result_bytes(jaxpr: Jaxpr) -> tuple[int, int]:
    """Return the bytes kept for the backward pass, and the maximum bytes that this pass rematerialises at once."""
    kept = again = 0
    for eqn in jaxpr.eqns:
        outputs = sum(prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outvars)
        called = (
            [] if eqn.primitive.name == "pallas_call" else inner_jaxprs(eqn.params)
        )  # the kernel's intermediate results stay on the chip
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        parts = [result_bytes(part) for part in called]
        if eqn.primitive.name == "cond":
            parts = [max(parts)] if any(map(any, parts)) else []  # without operations, it chooses between its inputs
        most = max((part[1] for part in parts), default=0)
        if eqn.primitive.name == "remat2":
            chosen = eqn.params["policy"]
            outputs += sum(saved_bytes(part, chosen) for part in called) if chosen else 0
            parts, most = [], most + sum(part[0] for part in parts)
        kept += times * sum(part[0] for part in parts) if parts else times * outputs
        again = max(again, most)
    return kept, again


def saved_bytes(jaxpr: Jaxpr, policy: Callable[..., Any]) -> int:
    """Return the bytes of the results in a jaxpr that `jax.checkpoint` saves under a policy."""
    total = 0
    for eqn in jaxpr.eqns:
        if called := inner_jaxprs(eqn.params):
            total += sum(saved_bytes(part, policy) for part in called)
        elif policy(eqn.primitive, *(v.aval for v in eqn.invars), **eqn.params):
            total += sum(prod(v.aval.shape) * v.aval.dtype.itemsize for v in eqn.outvars)
    return total
