"""What components are tried in: tiny sizes, inputs that cover them, models, and when two results are the same."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.config import Component
from taetpu.core.jit import jit_once
from taetpu.core.keys import Key, root_key
from taetpu.core.loading import build_component, load_config
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.core.tree import leaves_by_path
from taetpu.nn.common import Context, Dims
from taetpu.nn.lm import LM, ModelConfig

DIM, HEADS, LAYERS, SEQ, VOCAB, BATCH = 16, 2, 2, 8, 11, 2
TOLERANCE = 1e-4  # of the largest value: rounding, which optimisation moves about, stays a hundred times below

# Every slot filled by something that passes gradients everywhere.
HOST = {
    "dim": DIM,
    "num_layers": LAYERS,
    "mixer": {"kind": "attention", "num_heads": HEADS},
    "norm": "layer",
    "ffn": {"kind": "gelu-tanh", "mult": 2.0},
    "embedding": "untied",
    "init": "fan-in",
    "bias": True,
}


def dims() -> Dims:
    """The sizes as components see them."""
    return Dims(DIM, LAYERS, SEQ, VOCAB, bias=True, init=build_component("init", "fan-in"))  # pyright: ignore


def tokens(batch: int = BATCH, seq: int = SEQ) -> np.ndarray:
    """Token numbers that cover the vocabulary as far as they go."""
    return np.arange(batch * seq, dtype=np.int32).reshape(batch, seq) % VOCAB


def context(batch: int = BATCH, seq: int = SEQ, key: Key | None = None) -> Context:
    """A call's context in the first layer."""
    return Context(jnp.asarray(tokens(batch, seq)), jnp.arange(seq), layer=jnp.zeros((), jnp.int32), key=key)


def like(shape: jax.ShapeDtypeStruct, seed: int = 0) -> jax.Array:
    """Random numbers of a shape; token numbers where it is of integers."""
    if jnp.issubdtype(shape.dtype, jnp.integer):
        return jnp.asarray(tokens(*shape.shape), shape.dtype)
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape.shape), shape.dtype)


class Host:
    """A tiny model with a component in its slot.

    Attributes:
        structure, numbers: its config, split (see `core.static_dynamic.split`).
        build: `(numbers, seed) -> LM`, compiled.

    Raises:
        UserError: the component cannot be built at these sizes.
    """

    def __init__(self, filling: Component | None = None):
        settings: dict[str, Any] = dict(HOST)
        if filling is not None and filling.slot == "scores":
            settings["mixer"] = {**HOST["mixer"], "scores": filling}
        elif filling is not None:
            settings[filling.slot] = filling
        config = load_config(ModelConfig, settings).resolve()
        config.check(VOCAB, SEQ)
        self.structure, numbers = split(config, promoted_fields(config))
        self.numbers = {path: np.asarray(value, np.float32) for path, value in numbers.items()}
        self.build = jit_once(self.drawn)

    def drawn(self, numbers: dict[str, Any], seed: Any) -> LM:
        """The model of a seed."""
        return bind(self.structure, numbers).build(VOCAB, SEQ, key=root_key(seed))

    def model(self, seed: int) -> LM:
        """The model of a seed, as arrays."""
        return self.build(self.numbers, seed)


@cache
def plain(seed: int = 0) -> LM:
    """The model with nothing of anybody's in it."""
    return _plain_host().model(seed)


@cache
def _plain_host() -> Host:
    return Host()


def distance(a: Any, b: Any) -> float:
    """The largest difference of two trees of arrays, as a share of the largest value of each array."""
    found = [0.0]
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        scale = max(np.abs(y).max(initial=0.0), 1e-6)
        found.append(float(np.abs(x - y).max(initial=0.0) / scale))
    return float(np.max(found))  # nan where any is


def same(a: Any, b: Any) -> bool:
    """Are two trees of arrays the same, bit for bit?"""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def form(tree: Any) -> dict[str, str]:
    """Shapes and types of a tree's arrays, by path."""
    return {name: told(leaf) for name, leaf in leaves_by_path(tree).items()}


def told(array: Any) -> str:
    """`(2, 8, 16) float32`"""
    if array is None:
        return "nothing"
    # Not jnp.result_type of an array: it takes numpy's int64 for int32.
    return f"{tuple(np.shape(array))} {array.dtype if hasattr(array, 'dtype') else jnp.result_type(array)}"


def finite(tree: Any) -> bool:
    """Is every number of a tree finite?"""
    return all(bool(np.isfinite(np.asarray(leaf, np.float32)).all()) for leaf in jax.tree.leaves(tree))


stacked = partial(jax.tree.map, lambda *a: jnp.stack(a))
"""Trees of equal form as one, as a pack holds the models of its runs."""
