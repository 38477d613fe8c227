"""Tiny sizes, inputs and models for checking components, and comparisons of results."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.config import Component, Config
from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.jit import jit_once
from taetpu.core.keys import Key, root_key
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.core.tree import leaves_by_path
from taetpu.nn.attention import ATTENTION_SLOTS
from taetpu.nn.common import AttentionDims, Carried, Context, Dims
from taetpu.nn.lm import LM, LMConfig, ModelConfig
from taetpu.nn.slot_calls import carried_shapes
from taetpu.testing.report import CheckFailed

DIM, HEADS, LAYERS, SEQ, VOCAB, BATCH = 16, 2, 2, 8, 11, 2
HEAD_DIMS = AttentionDims(HEADS, HEADS, DIM // HEADS)
TOLERANCE = 1e-4  # relative to the largest value; rounding differences between programs are about 1e-6

# With these kinds, every parameter of the tiny model has a nonzero gradient.
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
    """Return the sizes with which components are built."""
    return Dims(DIM, LAYERS, SEQ, VOCAB, bias=True, init=build_component("init", "fan-in"))  # pyright: ignore


def tokens(batch: int = BATCH, seq: int = SEQ) -> np.ndarray:
    """Return token ids `(batch, seq)` that count upwards through the vocabulary."""
    return np.arange(batch * seq, dtype=np.int32).reshape(batch, seq) % VOCAB


def context(
    component: Component, batch: int = BATCH, seq: int = SEQ, key: Key | None = None, dtype: Any = jnp.float32
) -> Context:
    """Return the context for a call of a component in the first layer."""
    return Context(
        jnp.asarray(tokens(batch, seq)),
        jnp.arange(seq),
        layer=jnp.zeros((), jnp.int32),
        key=key,
        carried=Carried.zeros(carried_shapes(component, dims(), HEAD_DIMS), batch, seq, dtype),
        embedded=jnp.ones((batch, seq, DIM), dtype),
        x=jnp.ones((batch, seq, DIM), dtype),
    )


def random_like(shape: jax.ShapeDtypeStruct, seed: int = 0) -> jax.Array:
    """Return a random array with the given shape and dtype; for an integer dtype, return token ids."""
    if jnp.issubdtype(shape.dtype, jnp.integer):
        return jnp.asarray(tokens(*shape.shape), shape.dtype)
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape.shape), shape.dtype)


def build_host(component: Component | None = None) -> Callable[[int], LM]:
    """Return a function that takes a seed and builds a tiny model, with the given component (if any) in its slot.

    Raises:
        UserError: If the component cannot be built at these sizes.
    """
    return build_tiny(host_config(component))


def build_tiny(config: LMConfig) -> Callable[[int], LM]:
    """Return a function that takes a seed and builds a model for tiny vocabulary and sequences.

    Raises:
        UserError: If the model cannot be built at these sizes.
    """
    config.check(VOCAB, SEQ)
    structure, numbers = split_numbers(config)
    build = jit_once(lambda numbers, seed: bind(structure, numbers).build(VOCAB, SEQ, key=root_key(seed)))
    return lambda seed: build(numbers, seed)


def host_config(component: Component | None = None) -> LMConfig:
    """Return the config of a tiny model, with the given component (if any) in its slot."""
    settings: dict[str, Any] = dict(HOST)
    if component is not None and component.slot in ATTENTION_SLOTS:
        settings["mixer"] = {**HOST["mixer"], component.slot: component}
    elif component is not None and component.slot == "rope_scaling":
        settings["position"] = {"kind": "rope", "scaling": component}
    elif component is not None and component.slot == "head":
        settings["heads"] = {component.kind: component}
    elif component is not None:
        settings[component.slot] = component
        if placement := component.example.get("model.norm.placement"):
            settings["norm"] = {"kind": HOST["norm"], "placement": placement}
    return load_config(ModelConfig, settings).resolve()


def split_numbers(config: Config) -> tuple[Any, dict[str, Any]]:
    """Return the structure and the traced numbers of a config (see `core.static_dynamic.split`)."""
    structure, numbers = split(config, promoted_fields(config))
    return structure, {path: np.asarray(value, np.float32) for path, value in numbers.items()}


@cache
def plain_model(seed: int = 0) -> LM:
    """Return the tiny model without any component to check."""
    return build_host()(seed)


def distance(a: Any, b: Any) -> float:
    """Return the largest difference between two trees of arrays, relative to the largest value of each array in `b`."""
    differences = [0.0]
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        scale = max(np.abs(y).max(initial=0.0), 1e-6)
        differences.append(float(np.abs(x - y).max(initial=0.0) / scale))
    return float(np.max(differences))  # NaN if any difference is NaN


def refuse_distance(apart: float, problem: str, at: tuple[Any, str], remedy: str, when: str = "") -> None:
    """Raise `CheckFailed` if two results differ by more than the tolerance.

    Args:
        apart: Their distance; see `distance`.
        problem: What differs, such as "the logits change".
        at: The object and the name of the method that is responsible.
        remedy: How the author can repair it.
        when: The end of the sentence.
    """
    if not apart < TOLERANCE:
        bound = f"by up to {apart:.2g} of the largest value, expected below {TOLERANCE:g}"
        raise CheckFailed(f"{problem} {bound}{when}", at=at, remedy=remedy)


def identical(a: Any, b: Any) -> bool:
    """Return whether two trees of arrays are bitwise identical."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def array_specs(tree: Any) -> dict[str, str]:
    """Return the shape and dtype of each array in a tree, by path."""
    return {name: describe_array(leaf) for name, leaf in leaves_by_path(tree).items()}


def describe_array(array: Any) -> str:
    """Return the shape and dtype of an array as text, e.g. `(2, 8, 16) float32`."""
    if array is None:
        return "nothing"
    # jnp.result_type would report numpy's int64 as int32.
    return f"{tuple(np.shape(array))} {array.dtype if hasattr(array, 'dtype') else jnp.result_type(array)}"


def all_finite(tree: Any) -> bool:
    """Return whether all numbers in a tree are finite."""
    return all(bool(np.isfinite(np.asarray(leaf, np.float32)).all()) for leaf in jax.tree.leaves(tree))


stack_trees = partial(jax.tree.map, lambda *a: jnp.stack(a))
"""Stack trees of equal structure along a new first axis, as the runs in a pack are stacked."""
