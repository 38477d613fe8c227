"""The arrays of a model by logical name (`layers.3.mixer.wq`): reading, replacing and scaling them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.core.model_interface import Interface
from taetpu.core.tree import leaves_by_path
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.lm import LM, LMConfig, build_model
from taetpu.nn.stack import Stack

Shape = tuple[int, ...]


def named_parameters(model: LM) -> dict[str, Any]:
    """Return every trained array by its logical name (`layers.3.mixer.wq`), with stacks split into layers.

    Arrays on the host stay there.
    """
    return _named(model, partition_trainable(model)[0])


def named_constants(model: LM) -> dict[str, Any]:
    """Return every untrained array, such as `Fixed` values, by its logical name, except random keys."""
    return _named(model, partition_trainable(model)[1])


def vocabulary_parameters(config: LMConfig, sizes: Interface | int, seq_len: int) -> frozenset[str]:
    """Return the logical names of the trained arrays whose shape depends on the number of tokens.

    Args:
        config: The config of a model.
        sizes: The sizes of inputs and outputs, or the number of different tokens.
        seq_len: The sequence length.
    """
    at = Interface.of(sizes)
    return frozenset(_reshaped(config, (at, seq_len), (replace(at, vocab_size=2 * at.vocab_size), seq_len)))


@lru_cache(maxsize=256)
def position_parameters(config: Any, sizes: Interface | int, seq_len: int) -> Mapping[str, tuple[Shape, Shape]]:
    """Return the trained arrays whose shape depends on the sequence length, such as learned positions.

    The arguments are those of `vocabulary_parameters`.

    Returns:
        The shape at `seq_len` and that at twice the length, by logical name.
    """
    return _reshaped(config, (sizes, seq_len), (sizes, 2 * seq_len))


@lru_cache(maxsize=256)
def output_parameters(config: Any, sizes: Interface, seq_len: int) -> Mapping[str, tuple[Shape, Shape]]:
    """Return the trained arrays whose shape depends on the number of outputs, as `position_parameters`.

    They are empty if the table of tokens is also the output matrix.
    """
    return _reshaped(config, (sizes, seq_len), (replace(sizes, outputs=2 * sizes.output_size), seq_len))


def _reshaped(config: LMConfig, *sizes: tuple[Interface | int, int]) -> dict[str, tuple[Shape, Shape]]:
    """Return the shapes of the trained arrays that have different shapes in models of two sizes."""
    shapes, others = (
        jax.eval_shape(lambda n=n, length=length: named_parameters(build_model(config, n, length, key=root_key(0))))
        for n, length in sizes
    )
    return {
        name: (array.shape, others[name].shape) for name, array in shapes.items() if array.shape != others[name].shape
    }


def logical_names(model: LM, path: str) -> tuple[str, ...]:
    """Return the logical name of an array of a model, or of an array of a stack in each layer of the stack."""
    head, _, rest = path.partition(".")
    if head != "stacks":
        return (path,)
    number, _, rest = rest.partition(".block.")
    return tuple(f"layers.{layer}.{rest}" for layer in model.stacks[int(number)].owners)


def _named(model: LM, part: LM) -> dict[str, Any]:
    """Return the arrays of a part of a model by their logical names."""
    arrays = {}
    for path, array in leaves_by_path(part).items():
        if _is_plain_array(array):
            layers = array if path.startswith("stacks.") else [array]
            arrays |= {name: layers[i] for i, name in enumerate(logical_names(model, path))}
    return arrays


def _is_plain_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def with_parameters(model: LM, values: Mapping[str, Any]) -> LM:
    """Return the model with every trained array replaced by the value for its logical name.

    Raises:
        UserError: if a name is missing or unknown, or if a value has the wrong shape.
    """
    have = jax.eval_shape(named_parameters, model)  # otherwise jax would compile a slice for every shape
    for name in sorted(set(have) ^ set(values)):
        raise UserError(f"parameter {name!r} is {'missing' if name in have else 'not in this model'}")
    for name, array in have.items():
        if tuple(array.shape) != tuple(values[name].shape):
            raise UserError(f"parameter {name!r} has shape {tuple(values[name].shape)}, not {tuple(array.shape)}")
    params, rest = partition_trainable(model)
    return combine_trainable(_replaced(model, params, values), rest)


def replace_parameters(model: LM, values: Mapping[str, Array]) -> LM:
    """Return the model with the trained arrays that `values` names replaced."""
    return with_parameters(model, {**named_parameters(model), **values})


def with_constants(model: LM, values: Mapping[str, Any]) -> LM:
    """Return the model with untrained arrays replaced by the given values for their logical names.

    A value is ignored if the model has no array with its name and shape. For example, the values may come from a model
    that was trained together with other arms, and that therefore has masks of ones.
    """
    have = jax.eval_shape(named_constants, model)
    fitting = {n: v for n, v in values.items() if n in have and tuple(v.shape) == tuple(have[n].shape)}
    kept = {} if set(fitting) == set(have) else named_constants(model)
    params, rest = partition_trainable(model)
    return combine_trainable(params, _replaced(model, rest, {**kept, **fitting}))


def _replaced(model: LM, part: LM, values: Mapping[str, Any]) -> LM:
    """Return a part of a model with its arrays replaced by the values for their logical names."""

    def replaced(path: Any, leaf: Any) -> Any:
        if not _is_plain_array(leaf):
            return leaf
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        layers = [values[name] for name in logical_names(model, name)]
        on_host = all(isinstance(layer, np.ndarray) for layer in layers)
        if on_host:  # jax would compile a copy and a stack for every shape, and share the memory of what is not copied
            return jax.device_put(np.stack(layers) if name.startswith("stacks.") else np.array(layers[0]))
        return jnp.stack(layers) if name.startswith("stacks.") else jnp.asarray(layers[0])

    return jax.tree_util.tree_map_with_path(replaced, part)


def scale_layers(tree: LM, factors: Shaped[Array, " layers"]) -> LM:
    """Return a model, or a tree like its parameters, with the parameters of layer i multiplied by `factors[i]`.

    A factor of 0 or False gives zeros, even for NaN and infinite values.
    """

    def scaled(stack: Stack) -> Stack:
        layer_factors = jnp.asarray(factors)[np.array(stack.owners, int)]

        def scale(leaf: Array) -> Array:
            factor = layer_factors.reshape(-1, *[1] * (leaf.ndim - 1))
            return jnp.where(factor == 0, 0, leaf * factor).astype(leaf.dtype)

        return jax.tree.map(scale, stack)

    return eqx.tree_at(lambda t: t.stacks, tree, tuple(scaled(stack) for stack in tree.stacks))


def num_layers(tree: LM) -> int:
    """Return the number of layers in a model, or in a tree like its parameters."""
    return sum(stack.size for stack in tree.stacks)


def mask_matrices(params: LM) -> LM:
    """Return a tree with True for trained arrays with at least two axes, not counting the layer axis of a stack."""

    def is_matrix(path: Any, leaf: Any) -> bool:
        stacked = jax.tree_util.keystr(path, simple=True, separator=".").startswith("stacks.")
        return leaf.ndim - stacked >= 2

    return jax.tree_util.tree_map_with_path(is_matrix, params)
