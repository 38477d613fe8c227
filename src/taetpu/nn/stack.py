"""Stacks: neighbouring layers with equal structure, stored as one block and computed by a scan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from taetpu.nn.common import Carried, Context, Dims

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


State = tuple[Array, Carried]
"""The residual stream, and what layers have handed on."""


class Stack(eqx.Module):
    """`size` layers with equal structure, starting at layer `start`. Every array of `block` has a leading layer axis.

    A layer's keys depend on its number in the whole model, so splitting a stack does not change results.

    Attributes:
        block: The parameters; None if the layers share those of another stack.
        start: The number of the first layer.
        size: The number of layers.
        unroll: See `layers_per_pass`.
        remat: See `REMAT`.
        sharding: The sharding of the residual stream, `(batch, seq, dim)`.
        places: The index of each layer's parameters along the layer axis; None if layer i has index i.
        source: The number of the stack whose parameters the layers share; None for their own.
    """

    block: Block | None
    start: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    unroll: int = eqx.field(static=True, default=1)
    remat: str = eqx.field(static=True, default="none")
    sharding: Sharding | None = eqx.field(static=True, default=None)
    places: tuple[int, ...] | None = eqx.field(static=True, default=None)
    source: int | None = eqx.field(static=True, default=None)

    def __call__(
        self,
        x: Float[Array, "batch seq *streams dim"],
        carried: Carried,
        ctx: Context,
        block: Block | None = None,
        *,
        only: tuple[Any, Any] | None = None,
        cached: dict[str, Array] | None = None,
    ) -> tuple[Float[Array, "batch seq *streams dim"], Carried, dict[str, Array] | None]:
        """Return the residual stream after the stack's layers, what they hand to later layers, and their caches.

        Args:
            x: The residual stream.
            carried: What earlier layers have handed on.
            ctx: The context of the model. With a cache, the `LayerCache` without values.
            block: The parameters, if this stack shares those of another stack.
            only: The first layer to compute, and the layer after the last, as integers or tracers; all by default. The
                other layers leave the stream unchanged.
            cached: The arrays of the cache, with a leading layer axis if the stack has several layers, or None.
        """
        layers = range(self.start, self.start + self.size)
        # Equinox modules hold arrays and static values; a scan accepts only arrays.
        arrays, static = eqx.partition(self.block if block is None else block, eqx.is_array)
        numbers, shared = jnp.arange(layers.start, layers.stop), None
        if self.places is not None:
            # The scan reads the parameters by index. As its inputs, shared parameters would be copied for each layer.
            arrays, shared = jnp.array(self.places), arrays

        def layer(state: State, number: Array, arrays: Any, cached: Any) -> tuple[State, Any]:
            x, carried = state
            cache = None if cached is None else replace(ctx.cache, values=dict(cached))
            if shared is not None:
                arrays = jax.tree.map(lambda a: a[arrays], shared)
            block, carried = eqx.combine(arrays, static), carried.copy()
            key = None if ctx.key is None else named(ctx.key, "layers", number)
            x = self.constrain(block(x, replace(ctx, layer=number, key=key, carried=carried, cache=cache)))
            return (x, carried), None if cache is None else cache.values

        def body(state: State, inputs: tuple[Array, Any, Any]) -> tuple[State, tuple[Any, Reads]]:
            number, arrays, cached = inputs
            # Inside a scan XLA cannot CSE the forward pass with its recomputation; unrolled, `prevent_cse` is needed.
            kept = REMAT[self.remat](with_layer_tapes(layer, layers), prevent_cse=self.layers_per_pass >= self.size)
            if only is None:
                (state, cached), reads = kept(number, state, number, arrays, cached)
                return state, (cached, reads)

            def compute() -> tuple[tuple[State, Any], Reads]:
                return kept(number, state, number, arrays, cached)

            # A skipped layer reads zeros at its sites.
            skipped = (state, cached), jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(compute)[1])
            (state, cached), reads = jax.lax.cond((number >= only[0]) & (number < only[1]), compute, lambda: skipped)
            return state, (cached, reads)

        state, inputs = (self.constrain(x), carried), (numbers, arrays, cached)
        if cached is not None and self.size == 1:
            # With a scan, or an axis of layers, XLA copies the cache of each layer up to three times for each token.
            first = jax.tree.map(lambda a: a[0], (numbers, arrays))
            (x, carried), (cached, reads) = body(state, (*first, cached))
            reads = jax.tree.map(lambda a: a[None], reads)
        else:
            (x, carried), (cached, reads) = jax.lax.scan(body, state, inputs, unroll=self.layers_per_pass)
        record_layers(reads, layers)
        return x, carried, cached

    @property
    def owners(self) -> tuple[int, ...]:
        """The numbers of the layers after which the parameters are named, in the order of the layer axis."""
        places = self.places or tuple(range(self.size))
        if self.source is not None:
            return ()
        return tuple(self.start + places.index(place) for place in range(max(places) + 1))

    def constrain(self, x: Float[Array, "batch seq *streams dim"]) -> Float[Array, "batch seq *streams dim"]:
        """Return the residual stream, constrained to the sharding of this stack if the stack has one."""
        return x if self.sharding is None else jax.lax.with_sharding_constraint(x, self.sharding)

    @property
    def layers_per_pass(self) -> int:
        """The number of layers per iteration of the loop.

        Layers with remat are computed in a loop. If they were unrolled, XLA's CPU backend would need as much memory as
        without remat.
        """
        return self.size if self.size <= UNROLL_UP_TO and self.remat == "none" else min(self.unroll, self.size)

    def layer(self, index: int, block: Block | None = None) -> Block:
        """Return the block of the `index`-th layer of this stack; `block` as in the call of the stack."""
        place = index if self.places is None else self.places[index]
        return jax.tree.map(lambda a: a[place] if eqx.is_array(a) else a, self.block if block is None else block)


@dataclass
class _Group:
    """Neighbouring layers that form a stack.

    Attributes:
        structure: The structure of the layers.
        start: The number of the first layer.
        numbers: The traced numbers of each layer that does not share parameters.
        places: The index of each layer's parameters along the layer axis of the stack that holds them.
        source: The number of that stack, if it is another one.
    """

    structure: LayerConfig
    start: int
    numbers: list[dict[str, Any]]
    places: list[int]
    source: int | None = None

    @property
    def shared_places(self) -> tuple[int, ...] | None:
        in_order = self.source is None and self.places == list(range(len(self.places)))
        return None if in_order else tuple(self.places)


def _group_layers(layers: Sequence[LayerConfig], apart: bool) -> list[_Group]:
    """Group layers into stacks. Layers that share parameters are in the stack of their owner or in a stack apart."""
    known = {id(layer): split(layer) for layer in layers}  # most layers of a deep model are the same object
    groups: list[_Group] = []
    home: dict[int, tuple[int, int]] = {}  # the stack and the place of the parameters of each layer
    for number, layer in enumerate(layers):
        structure, numbers = known[id(layer)]
        alone = apart or any(component.static_layer for component in iter_components(layer))
        last = groups[-1] if groups else None
        if layer.same_as is None:
            if last is None or alone or last.source is not None or last.structure != structure:
                groups.append(last := _Group(structure, number, [], []))
            last.numbers.append(numbers)
            home[number] = len(groups) - 1, len(last.numbers) - 1
            last.places.append(home[number][1])
            continue
        assert isinstance(layer.same_as, int)  # `ModelConfig.resolve` has chosen one of several layers
        source, place = home[number] = home[layer.same_as]
        joins = last is not None and not apart and source in (len(groups) - 1, last.source)
        if not joins:
            groups.append(last := _Group(groups[source].structure, number, [], [], source))
        assert last is not None
        last.places.append(place)
    return groups


def build_stacks(layers: Sequence[LayerConfig], dims: Dims, *, key: Key, apart: bool = False) -> tuple[Stack, ...]:
    """Build the layers as stacks. Neighbouring layers with equal structure share a stack.

    Args:
        layers: The configs of all layers.
        dims: The sizes of the model.
        key: The key of the layers.
        apart: Whether to build one stack per layer. The parameters are the same, but the program that computes a
            layer's parameters does not depend on the neighbouring layers.
    """
    # Equal layers in separate stacks are traced once. If plug-ins are used, every layer is traced, because plug-ins may
    # not be deterministic.
    components = [component for part in (dims.init, *layers) for component in iter_components(part)]
    once = apart and not any(component.plugin or component.static_layer for component in components)
    builders: list[tuple[LayerConfig, Any]] = []
    stacks = []
    for group in _group_layers(layers, apart):
        size, block = len(group.places), None
        if group.source is None:
            structure, start = group.structure, group.start
            fixed = start if any(component.static_layer for component in iter_components(structure)) else None
            stacked = {
                path: jnp.stack([jnp.asarray(numbers[path]) for numbers in group.numbers]) for path in group.numbers[0]
            }

            def build(
                number: Array,
                values: dict[str, Array],
                structure: LayerConfig = structure,
                fixed: int | None = fixed,
            ) -> Block:
                sizes = replace(dims, layer=number if fixed is None else fixed)
                return bind(structure, values).init(sizes, key=named(key, number))

            mapped = eqx.filter_vmap(build)
            if once:
                alike = next((builder for known_structure, builder in builders if known_structure == structure), None)
                mapped = alike or eqx.filter_jit(mapped)
                builders += [] if alike else [(structure, mapped)]
            block = mapped(jnp.arange(start, start + len(group.numbers)), stacked)
        stacks.append(Stack(block, group.start, size, places=group.shared_places, source=group.source))
    return tuple(stacks)


def merge_stacks(stacks: Sequence[Stack]) -> tuple[Stack, ...]:
    """Merge neighbouring stacks whose blocks have the same structure, even if their configs differ.

    Stacks whose parameters are shared are not merged.
    """
    sources = {stack.source for stack in stacks}

    def form(item: tuple[int, Stack]) -> Any:
        number, stack = item
        if number in sources or stack.source is not None or stack.places is not None:
            return number
        return jax.tree.structure(stack.block), [(a.shape[1:], a.dtype) for a in jax.tree.leaves(stack.block)]

    combined, moved = [], dict[int | None, int | None]({None: None})
    for _, group in groupby(enumerate(stacks), key=form):
        numbers, alike = zip(*group, strict=True)
        moved |= dict.fromkeys(numbers, len(combined))
        if len(alike) == 1:
            combined.append(replace(alike[0], source=moved[alike[0].source]))
            continue
        block = jax.tree.map(lambda *a: jnp.concatenate(a), *(stack.block for stack in alike))
        combined.append(Stack(block, alike[0].start, sum(stack.size for stack in alike)))
    return tuple(combined)


def separate_stacks(stacks: Sequence[Stack]) -> tuple[Stack, ...]:
    """Split stacks into one stack per layer, which are computed without a scan.

    A scan copies the parameters of each layer before they are used. In decoding, where each parameter is used once for
    each token, the copy takes longer than the use. Stacks whose parameters are shared are not split.
    """
    sources = {stack.source for stack in stacks}
    single, moved = [], dict[int | None, int | None]({None: None})
    for number, stack in enumerate(stacks):
        moved[number] = len(single)
        if number in sources or stack.source is not None or stack.places is not None:
            single.append(replace(stack, source=moved[stack.source]))
            continue
        parts = (jax.tree.map(lambda a, i=i: a[i : i + 1] if eqx.is_array(a) else a, stack) for i in range(stack.size))
        single += [replace(part, start=stack.start + i, size=1) for i, part in enumerate(parts)]
    return tuple(single)
