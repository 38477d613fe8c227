"""Stacks: neighbouring layers with equal structure, stored as one block and computed by a scan."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Sharding
from jaxtyping import Array, Float

from taetpu.core.config import iter_components
from taetpu.core.keys import Key, named
from taetpu.core.sites import Reads, record_layers, with_layer_tapes
from taetpu.core.static_dynamic import bind, split
from taetpu.nn.attention_kernels import CHECKPOINT_NAME
from taetpu.nn.block import Block, LayerConfig
from taetpu.nn.common import Context, Dims

# Stacks with at most this number of layers are unrolled, because a rolled scan makes small steps on a CPU at least 15 %
# slower. Deeper stacks compute `Stack.unroll` layers per iteration, so that compile time does not grow with depth.
UNROLL_UP_TO = 8

_keep = jax.checkpoint_policies


def keep_activations(layer: Callable[..., Any], prevent_cse: bool) -> Callable[..., Any]:
    """Return the layer unchanged, so that every activation is kept for the backward pass."""
    return layer


# The activations of a layer that are kept for the backward pass. The other activations are recomputed. `dots` keeps the
# results of projections and attention kernels. `full` keeps only the layer's input.
REMAT: dict[str, Callable[..., Any]] = {
    "none": keep_activations,
    "dots": partial(
        jax.checkpoint,
        policy=_keep.save_from_both_policies(
            _keep.dots_with_no_batch_dims_saveable, _keep.save_only_these_names(CHECKPOINT_NAME)
        ),
    ),
    "full": jax.checkpoint,
}


class Stack(eqx.Module):
    """`size` layers with equal structure, starting at layer `start`. Every array of `block` has a leading layer axis.

    A layer's keys depend on its number in the whole model, so splitting a stack does not change results.
    """

    block: Block
    start: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    unroll: int = eqx.field(static=True, default=1)
    remat: str = eqx.field(static=True, default="none")  # see `REMAT`
    sharding: Sharding | None = eqx.field(static=True, default=None)  # for the residual stream, `(batch, seq, dim)`

    def __call__(self, x: Float[Array, "batch seq dim"], ctx: Context) -> Float[Array, "batch seq dim"]:
        """Return the residual stream after the stack's layers."""
        layers = range(self.start, self.start + self.size)
        # Equinox modules hold arrays and static values; a scan accepts only arrays.
        arrays, static = eqx.partition(self.block, eqx.is_array)

        def layer(x: Array, number: Array, arrays: Any) -> Array:
            block = eqx.combine(arrays, static)
            key = None if ctx.key is None else named(ctx.key, "layers", number)
            return self.constrain(block(x, replace(ctx, layer=number, key=key)))

        def body(x: Array, inputs: tuple[Array, Any]) -> tuple[Array, Reads]:
            number, arrays = inputs
            # Inside a scan XLA cannot CSE the forward pass with its recomputation; unrolled, `prevent_cse` is needed.
            kept = REMAT[self.remat](with_layer_tapes(layer, layers), prevent_cse=self.layers_per_pass >= self.size)
            return kept(number, x, number, arrays)

        x, reads = jax.lax.scan(
            body, self.constrain(x), (jnp.arange(layers.start, layers.stop), arrays), unroll=self.layers_per_pass
        )
        record_layers(reads, layers)
        return x

    def constrain(self, x: Float[Array, "batch seq dim"]) -> Float[Array, "batch seq dim"]:
        """Return the residual stream, constrained to the sharding of this stack if the stack has one."""
        return x if self.sharding is None else jax.lax.with_sharding_constraint(x, self.sharding)

    @property
    def layers_per_pass(self) -> int:
        """The number of layers per iteration of the loop.

        Layers with remat are computed in a loop. If they were unrolled, XLA's CPU backend would need as much memory as
        without remat.
        """
        return self.size if self.size <= UNROLL_UP_TO and self.remat == "none" else self.unroll

    def layer(self, index: int) -> Block:
        """Return the block of the `index`-th layer of this stack."""
        return jax.tree.map(lambda a: a[index] if eqx.is_array(a) else a, self.block)


def build_stacks(layers: Sequence[LayerConfig], dims: Dims, *, key: Key, apart: bool = False) -> tuple[Stack, ...]:
    """Build the layers as stacks. Neighbouring layers with equal structure share a stack.

    Args:
        layers: The configs of all layers.
        dims: The sizes of the model.
        key: The key of the layers.
        apart: Whether to build one stack per layer. The parameters are the same, but the program that computes a
            layer's parameters does not depend on the neighbouring layers.
    """
    known = {id(layer): split(layer) for layer in layers}  # most layers of a deep model are the same object
    parts = [known[id(layer)] for layer in layers]
    groups = [[part] for part in parts] if apart else [list(g) for _, g in groupby(parts, key=lambda part: part[0])]
    stacks, start = [], 0
    # Equal layers in separate stacks are traced once. If plug-ins are used, every layer is traced, because plug-ins may
    # not be deterministic.
    once = apart and not any(one.plugin for part in (dims.init, *layers) for one in iter_components(part))
    builders: list[tuple[LayerConfig, Any]] = []
    for group in groups:
        structure, numbers = group[0][0], [n for _, n in group]
        stacked = {path: jnp.stack([jnp.asarray(n[path]) for n in numbers]) for path in numbers[0]}

        def build(number: Array, values: dict[str, Array], structure: LayerConfig = structure) -> Block:
            return bind(structure, values).init(replace(dims, layer=number), key=named(key, number))

        mapped = eqx.filter_vmap(build)
        if once:
            alike = next((one for known_structure, one in builders if known_structure == structure), None)
            mapped = alike or eqx.filter_jit(mapped)
            builders += [] if alike else [(structure, mapped)]
        block = mapped(jnp.arange(start, start + len(numbers)), stacked)
        stacks.append(Stack(block, start, len(numbers)))
        start += len(numbers)
    return tuple(stacks)


def merge_stacks(stacks: Sequence[Stack]) -> tuple[Stack, ...]:
    """Merge neighbouring stacks whose blocks have the same structure, even if their configs differ."""

    def form(stack: Stack) -> Any:
        return jax.tree.structure(stack.block), [(a.shape[1:], a.dtype) for a in jax.tree.leaves(stack.block)]

    found = []
    for _, group in groupby(stacks, key=form):
        alike = list(group)
        block = jax.tree.map(lambda *a: jnp.concatenate(a), *(stack.block for stack in alike))
        found.append(Stack(block, alike[0].start, sum(stack.size for stack in alike)))
    return tuple(found)
