"""Incremental decoding: a sequence is extended token by token, with what mixers cached of earlier tokens.

A mixer offers a cache by a method `cache_shapes(length)` of its module, which returns the shapes of one sequence's
arrays by name. In `__call__`, `ctx.cache` is then a `nn.common.LayerCache`: attention appends keys and values with
`extend`, and a recurrent mixer reads and assigns its state in `ctx.cache.values`. Short convolutions of the inputs of
branches have the same method.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from taetpu.core.errors import UserError
from taetpu.core.sites import site
from taetpu.nn.common import Context, LayerCache
from taetpu.nn.lm import LM


class Cache(eqx.Module):
    """The cached tokens of a batch of sequences.

    Attributes:
        stacks: For each stack of the model, the arrays of its layers by name, `(layer, batch, ...)`; `(batch, ...)` for
            a stack of one layer.
        tokens: The tokens so far; zeros in unused places.
        positions: The position of each token.
        real: False for padding and unused places.
        index: The number of tokens so far, padding included.
        sizes: The number of layers of each stack.
    """

    stacks: tuple[dict[str, Array], ...]
    tokens: Int[Array, "batch length"]
    positions: Int[Array, "batch length"]
    real: Bool[Array, "batch length"]
    index: Int[Array, ""]
    sizes: tuple[int, ...] = eqx.field(static=True)

    def choose(self, rows: Int[Array, " chosen"]) -> "Cache":
        """Return the cache of chosen sequences."""
        stacks = tuple(
            {name: array[rows] if size == 1 else array[:, rows] for name, array in stack.items()}
            for size, stack in zip(self.sizes, self.stacks, strict=True)
        )
        return Cache(stacks, self.tokens[rows], self.positions[rows], self.real[rows], self.index, self.sizes)


def cached_shapes(module: Any, length: int) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes that a mixer or short convolution caches for one sequence; None if it offers no cache."""
    return module.cache_shapes(length) if hasattr(module, "cache_shapes") else None


def empty_cache(model: LM, batch: int, length: int, dtype: Any = jnp.float32) -> Cache:
    """Return the cache of a model before the first token.

    Args:
        model: The model.
        batch: The number of sequences.
        length: The maximum number of tokens of a sequence, padding included.
        dtype: The dtype of activations.

    Raises:
        UserError: if a mixer offers no cache, or if its attention is not causal.
    """
    stacks = []
    for stack in model.stacks:
        block = stack.block if stack.source is None else model.stacks[stack.source].block
        assert block is not None
        block = eqx.filter_eval_shape(stack.layer, 0, block)  # one layer, as shapes
        shapes = {} if block.mixer is None else cached_shapes(block.mixer, length)
        if shapes is None:
            kind = type(block.mixer).__name__
            problem = f"the mixer {kind} of layer {stack.start} offers no cache, so its tokens cannot be extended"
            raise UserError(problem, remedy="Compute the whole sequence at once, or define `cache_shapes`.")
        for convolution in block.short_conv.values():
            shapes = shapes | (cached_shapes(convolution, length) or {})
        layers = () if stack.size == 1 else (stack.size,)
        stacks.append({name: jnp.zeros((*layers, batch, *shape), dtype) for name, shape in shapes.items()})
    places, sizes = jnp.zeros((batch, length), jnp.int32), tuple(stack.size for stack in model.stacks)
    real, index = jnp.zeros((batch, length), bool), jnp.zeros((), jnp.int32)
    return Cache(tuple(stacks), places, places, real, index, sizes)


def extend(
    model: LM,
    tokens: Int[Array, "batch seq"],
    cache: Cache,
    *,
    padding: Bool[Array, "batch seq"] | None = None,
    last: bool = False,
) -> tuple[Float[Array, "batch out vocab"], Cache]:
    """Return the logits of the next tokens, and the cache that contains them.

    Args:
        model: The model.
        tokens: The tokens that follow those in the cache. Together they must not exceed the cache's length.
        cache: The cache.
        padding: True for padding; see `LM.__call__`.
        last: Whether to return the logits after the last token only, `(batch, 1, vocab)`.
    """
    real = jnp.ones(tokens.shape, bool) if padding is None else ~padding
    positions = jnp.maximum(cache.real.sum(-1, keepdims=True) + jnp.cumsum(real, -1) - 1, 0)

    def write(old: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice(old, new.astype(old.dtype), (0, cache.index))

    keys = Context(write(cache.tokens, tokens), write(cache.positions, positions), real=write(cache.real, real))
    dtype = next((a.dtype for stack in cache.stacks for a in stack.values()), jnp.float32)
    ctx, x = model.start(tokens, dtype=dtype, padding=padding, cache=LayerCache(keys, cache.index, {}))
    x, stacks = model.run(x, ctx, cached=cache.stacks)
    x = x[:, -1:] if last else x
    after = Cache(stacks, keys.tokens, keys.positions, keys.real, cache.index + tokens.shape[1], cache.sizes)
    return site("logits", model.decode(site("final", model.read_out(x)))), after
