"""Sizes, random inputs and random weights for the comparisons."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.config_parsing import build_component
from taetpu.core.keys import root_key
from taetpu.nn.common import AttentionDims, Context, Dims, combine_trainable, partition_trainable

BATCH, SEQ, DIM, HEADS, VOCAB = 2, 12, 16, 4, 13
DIMS = Dims(DIM, 2, SEQ, VOCAB, bias=False, init=build_component("init", "fan-in"))  # pyright: ignore
ATTENTION = AttentionDims(HEADS, HEADS, DIM // HEADS)
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (BATCH, SEQ)).astype(np.int32)
CONTEXT = Context(jnp.asarray(TOKENS), jnp.arange(SEQ))


def build(slot: str, kind: str, *arguments: Any, dims: Dims = DIMS, **settings: Any) -> Any:
    """Return the module of a kind with the given settings; `arguments` are those of `init` after `dims`."""
    return build_component(slot, {"kind": kind, **settings}).init(dims, *arguments, key=root_key(0))


def randomised(module: Any, seed: int = 1) -> Any:
    """Return the module with random values near 1 or 0 in place of its parameters."""
    rng = np.random.default_rng(seed)
    trained, fixed = partition_trainable(module)
    changed = jax.tree.map(lambda a: jnp.asarray(a + 0.3 * rng.standard_normal(a.shape), jnp.float32), trained)
    return combine_trainable(changed, fixed)


def stream(*shape: int, seed: int = 2) -> np.ndarray:
    """Return normal random numbers, by default of shape `(batch, seq, dim)`."""
    return np.random.default_rng(seed).standard_normal(shape or (BATCH, SEQ, DIM)).astype(np.float32)
