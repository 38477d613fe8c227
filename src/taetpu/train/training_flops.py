"""Training FLOPs: the FLOPs of the model, and the FLOPs that hooks and the optimizer add to a train step."""

import json
from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from taetpu.core.config import iter_components, to_data
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.data.base import Source, array_shapes
from taetpu.nn.lm import LM
from taetpu.optim.optimizers.adam import AdamW
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.matmul_count import matmul_flops
from taetpu.train.model_cost import flops_per_token
from taetpu.train.step import Arrays, StepContext, TrainState, init_state, update


def training_flops_per_token(
    config: ResolvedConfig, source: Source, attention: str = "plain", *, executed: bool = False
) -> int:
    """Return the matrix-product FLOPs of training per token, including the FLOPs of heads, hooks and the optimizer.

    By default, of a mixture of experts only the chosen experts count; `executed` counts all that are computed.

    The FLOPs of hooks and the optimizer are the difference between the traced train step and one with AdamW and no
    hooks, divided by the tokens in the batch. A hook that runs the model again adds a forward pass, and a backward pass
    if it computes gradients. Muon adds its Newton-Schulz steps.
    """
    model = flops_per_token(config.model, source.interface, source.seq_len, attention, executed=executed)
    if not config.train.hooks and type(config.train.optimizer) is AdamW:
        return model
    return model + added_flops(config, source) // (config.train.batch_size * source.seq_len)


def added_flops(config: ResolvedConfig, source: Source) -> int:
    """Return the matrix-product FLOPs that hooks and the optimizer add to a step; negative if hooks remove FLOPs."""
    kinds = tuple(type(component) for component in iter_components(config))
    known = (json.dumps(to_data(config), sort_keys=True), kinds, source.fingerprint, source.interface, source.seq_len)
    if known not in _KNOWN:
        bare = config.model_copy(update={"train": config.train.model_copy(update={"hooks": {}, "optimizer": AdamW()})})
        _KNOWN[known] = step_flops(config, source) - step_flops(bare, source)
    return _KNOWN[known]


_KNOWN: dict[tuple[Hashable, ...], int] = {}


def step_flops(config: ResolvedConfig, source: Source) -> int:
    """Return the matrix-product FLOPs of one traced train step, including the optimizer and the hooks."""
    structure, numbers = split(config, promoted_fields(config))
    bound = bind(structure, {path: jnp.asarray(value, jnp.float32) for path, value in numbers.items()})
    state = jax.eval_shape(lambda: init_state(bound, source, jnp.int32(0)))
    rows = jax.ShapeDtypeStruct((config.train.batch_size,), jnp.int32)
    steps = config.train.total_steps(source.num_windows)

    def step(state: TrainState, arrays: Arrays, rows: Int[Array, " batch"]) -> LM:
        return update(state, rows, StepContext(bound, source, arrays, jnp.int32(0), steps, jnp.float32)).updates

    return matmul_flops(jax.make_jaxpr(step)(state, array_shapes(source), rows))
