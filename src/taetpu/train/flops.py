"""FLOPs of training: those of the model, and what hooks add to a step."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.config import iter_components, to_data
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.data.batches import Source
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.count import flops_per_token
from taetpu.train.matmul_count import products
from taetpu.train.step import init_state, update


def training_flops_per_token(config: ResolvedConfig, source: Source, attention: str = "plain") -> int:
    """Matrix-product operations of training per token: `train.count.flops_per_token`, and what hooks add.

    What they add is counted in the traced train step: its products with hooks less those without, per token of a batch.
    A hook that runs the model again costs a forward pass, and a backward pass where that is differentiated.
    """
    model = flops_per_token(config.model, source.vocab_size, source.seq_len, attention)
    if not config.train.hooks:
        return model
    return model + hook_flops(config, source) // (config.train.batch_size * source.seq_len)


def hook_flops(config: ResolvedConfig, source: Source) -> int:
    """Matrix-product operations that hooks add to a train step; below 0 where they take more out."""
    kinds = tuple(type(component) for component in iter_components(config))
    known = (json.dumps(to_data(config), sort_keys=True), kinds, source.fingerprint, source.vocab_size, source.seq_len)
    if known not in _KNOWN:
        bare = config.model_copy(update={"train": config.train.model_copy(update={"hooks": {}})})
        _KNOWN[known] = step_flops(config, source) - step_flops(bare, source)
    return _KNOWN[known]


_KNOWN: dict[Any, int] = {}


def step_flops(config: ResolvedConfig, source: Source) -> int:
    """Matrix-product operations of one traced train step, the optimizer's and the hooks' among them."""
    structure, numbers = split(config, promoted_fields(config))
    bound = bind(structure, {path: jnp.asarray(value, jnp.float32) for path, value in numbers.items()})
    seed = np.int32(0)
    state = jax.eval_shape(lambda: init_state(bound, source, jnp.asarray(seed)))
    arrays = {name: jax.ShapeDtypeStruct(np.shape(a), a.dtype) for name, a in source.arrays.items()}
    rows = jax.ShapeDtypeStruct((config.train.batch_size,), jnp.int32)
    steps = config.train.total_steps(source.num_windows)

    def step(state: Any, arrays: Any, rows: Any) -> Any:
        return update(state, bound, source, arrays, rows, jnp.asarray(seed), steps=steps, dtype=jnp.float32).updates

    return products(jax.make_jaxpr(step)(state, arrays, rows))
