"""Losses of a model without one set of components after the other, all in one compiled program.

The program maps over the sets. Layers and units are masks, so that their number causes no recompilation, and each pass
starts at the first layer that its set changes: the residual stream before that layer is that of the intact model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from taetpu.core.sites import Edit, capture
from taetpu.lens.ablation.components import Components
from taetpu.lens.ablation.documents import Batch
from taetpu.lens.activations import by_layer
from taetpu.lens.attribution import BRANCHES, stream_scales
from taetpu.lens.losses import CHUNK_LOGITS
from taetpu.lens.opened import OpenedModel
from taetpu.nn.block import DROPPABLE
from taetpu.nn.common import Fixed
from taetpu.nn.lm import LM
from taetpu.optim.loss import chunked_losses

CONDITIONS = ("effect", "frozen norms", "direct")
"""What is measured for each set. With `frozen norms`, all norms on the residual stream keep the scale that they have in
the intact model. `direct` is the effect that no other branch passes on: the others keep their intact outputs."""
OUTPUTS = tuple(f"{branch}.out" for branch in BRANCHES)


@dataclass(frozen=True)
class Replacement:
    """What takes the place of a removed activation.

    Attributes:
        values: For each group of layers, an array `(layer, ...)` that broadcasts to the activations of a batch; for a
            site outside the layers, one such array. None for layers that are skipped.
        adds: Whether the values are added to the activation.
    """

    values: Any
    adds: bool = False


@dataclass(frozen=True)
class Intact:
    """What the intact model computes for a batch, as far as a condition needs it.

    Attributes:
        streams: The residual stream before each layer, `(layer, ...)`.
        frozen: The sites whose activations are kept, with their activations as in `Replacement.values`.
        condition: One of `CONDITIONS`.
    """

    streams: Array
    frozen: Mapping[str, Any]
    condition: str


def read_intact(opened: OpenedModel, batch: Batch, condition: str) -> Intact:
    """Return what the intact model computes for a batch."""
    sites: list[str] = []
    if condition == "frozen norms":
        sites = stream_scales(opened)
    if condition == "direct":
        sites = [site for site in OUTPUTS if site in opened.site_layers]
    streams, reads = _read(opened, batch, ("residual", *sites), streams=True)
    return Intact(streams, {site: group_layers(opened, site, reads[site]) for site in sites}, condition)


def read_values(opened: OpenedModel, site: str, batch: Batch) -> Any:
    """Return the activations of a site for a batch, as in `Replacement.values`."""
    return group_layers(opened, site, _read(opened, batch, (site,))[1][site])


def _read(opened: OpenedModel, batch: Batch, sites: tuple[str, ...], streams: bool = False) -> tuple[Any, Any]:
    """Return the residual stream before each layer if `streams` is set, and the activations of sites."""

    def forward(model: LM, ids: Array, padding: Array, segments: Any) -> Any:
        options = {"padding": padding, "segments": segments}
        _, reads = capture(model, sites)(ids, **options)
        if not streams:
            return None, reads
        _, before = model.start(ids, **options)
        return jnp.concatenate([before[None], jnp.asarray(reads["residual"])[:-1]]), reads

    program = opened.program(("read", sites, streams), lambda: forward)
    return program(opened.model, batch.ids, batch.padding, batch.segments)


def group_layers(opened: OpenedModel, site: str, read: Any) -> Any:
    """Return the activations that were read at a site by group of layers: the first layer, and `(layer, ...)`."""
    values = by_layer(opened, site, read)
    if None in values:
        return values[None]
    return stack_groups({layer: value for layer, value in values.items() if layer is not None})


def stack_groups(arrays: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Return arrays of layers as arrays `(layer, ...)` by the first layer of each group with equal shapes."""
    groups: dict[int, list[np.ndarray]] = {}
    for layer, value in arrays.items():
        first = max(groups, default=None)
        if first is None or groups[first][0].shape != value.shape:
            groups[layer] = [value]
        else:
            missing = layer - first - len(groups[first])  # layers without the site
            groups[first] += [np.zeros_like(value)] * missing + [value]
    return {first: np.stack(arrays) for first, arrays in groups.items()}


# --- program ----------------------------------------------------------------------------------------------------------


def sweep(
    opened: OpenedModel,
    batch: Batch,
    components: Components,
    sets: Sequence[Sequence[int]],
    replacement: Replacement,
    intact: Intact,
) -> Float[np.ndarray, "set batch"]:
    """Return the sum of the weighted losses of each document of a batch without each set of components.

    Args:
        opened: The model.
        batch: The documents.
        components: The components.
        sets: Sets of numbers of components.
        replacement: What takes the place of the components' activations.
        intact: What the intact model computes for the batch; see `read_intact`.
    """
    masks = components.masks(sets)
    kept = other_branches(opened, components, masks, len(sets)) if intact.condition == "direct" else {}
    last = bool((batch.weights[:, :-1] == 0).all())
    adds, frozen = replacement.adds, tuple(intact.frozen)
    key = ("sweep", components.site, components.axis, components.by_position, adds, frozen, tuple(kept), last)
    program = opened.program(key, lambda: _build(opened, components, adds, frozen, last))
    first = np.array(components.first_layers(sets), np.int32)
    losses = program(
        opened.model, batch_arrays(batch), intact.streams, first, masks, kept, replacement.values, dict(intact.frozen)
    )
    return np.asarray(losses)


def other_branches(opened: OpenedModel, components: Components, masks: Any, sets: int) -> dict[str, Any]:
    """Return for each branch whether it keeps its intact output, by group of layers `(set, layer)`."""
    slot = "" if components.site is None else components.site.partition(".")[0]
    kept = {}
    for site in OUTPUTS:
        if site not in opened.site_layers:
            continue
        layers = opened.site_layers[site]
        keep = {first: np.ones((sets, count), bool) for first, count in _group_sizes(opened, site).items()}
        for group, mask in masks.items() if isinstance(masks, dict) else ():
            removed = mask.any(-1)
            if slot and site != f"{slot}.out":
                continue
            for layer in layers:
                if 0 <= layer - group < removed.shape[1]:
                    first = max(start for start in keep if start <= layer)
                    keep[first][:, layer - first] &= ~removed[:, layer - group]
        kept[site] = keep
    return kept


def _group_sizes(opened: OpenedModel, site: str) -> dict[int, int]:
    layers = opened.site_layers[site]  # outputs of branches have one shape in all layers
    return {layers[0]: layers[-1] - layers[0] + 1}


def _build(
    opened: OpenedModel, components: Components, adds: bool, frozen: tuple[str, ...], last: bool
) -> Callable[..., Any]:
    """Return the function from masks of sets to the losses of documents."""
    losses = losses_without(opened, components, adds, frozen, last)

    def mapped(
        model: LM,
        batch: Mapping[str, Any],
        streams: Array,
        first: Array,
        masks: Any,
        kept: Any,
        values: Any,
        fixed: Any,
    ) -> Array:
        def of_one_set(of_set: Any) -> Array:
            start, mask, keep = of_set
            return losses(model, batch, streams, start, mask, keep, values, fixed)

        return jax.lax.map(of_one_set, (first, masks, kept))

    return mapped


def losses_without(
    opened: OpenedModel, components: Components, adds: bool = False, frozen: tuple[str, ...] = (), last: bool = False
) -> Callable[..., Float[Array, " batch"]]:
    """Return the function from the mask of a set of components to the sums of the weighted losses of documents.

    Documents with wrong answers have the sums of weighted differences of logits (see `Documents.others`).

    Args:
        opened: The model.
        components: The components.
        adds: See `Replacement`.
        frozen: The sites whose activations are kept.
        last: Whether the last target is the only one with a weight.
    """
    layers = len(opened.config.layers)
    in_layers = bool(components.groups)
    resumes = in_layers and not opened.model.carries
    chunk = max(16, CHUNK_LOGITS // opened.interface.output_size)
    edits = [Edit(site, keep_intact, value=site, by_layer=bool(opened.site_layers[site])) for site in frozen]
    if components.site is not None:
        remove = remover(components.axis, adds)
        edits = [Edit(components.site, remove, value="removed", by_layer=in_layers), *edits]

    def losses(
        model: LM, batch: Any, streams: Array, start: Array, mask: Any, keep: Any, values: Any, fixed: Any
    ) -> Array:
        edited = model if components.site is not None else skip_layers(model, mask[0][:, 0])
        given = {site: join_masks(keep[site], fixed[site]) if site in keep else fixed[site] for site in frozen}
        if components.by_position:
            mask = jax.tree.map(lambda positions: _at_positions(positions, batch), mask)
        if components.site is not None:
            given["removed"] = join_masks(mask, values)

        def forward() -> Array:
            ctx, x = edited.start(batch["ids"], padding=batch["padding"], segments=batch["segments"])
            x = streams[start] if resumes else x
            return edited.read_out(edited.run(x, ctx, only=(start, layers) if resumes else None)[0])

        x, _ = capture(forward, (), edits)(values=given)
        ends = slice(-1, None) if last else slice(None)
        x, targets, weights = x[:, ends], batch["targets"][:, ends], batch["weights"][:, ends]
        if batch["others"] is None:
            return (chunked_losses(edited.decode, x, targets, weights, chunk)["nll"] * weights).sum(-1)
        logits = edited.decode(x)
        right, wrong = (jnp.take_along_axis(logits, ids[:, ends, None], -1)[..., 0]
                      for ids in (batch["targets"], batch["others"]))  # fmt: skip
        return ((right - wrong) * weights).sum(-1)

    return losses


def mask_slopes(opened: OpenedModel, components: Components, batch: Batch, values: Any, mask: Any) -> Any:
    """Return the gradient of the sum of the documents' weighted losses with respect to a mask of numbers.

    Args:
        opened: The model.
        components: The components, of a site.
        batch: The documents.
        values: What takes the place of the activations; see `Replacement.values`.
        mask: The share of each unit that is replaced, as in `Components.masks` without the axis of sets; documents may
            have different shares, `(layer, batch, unit)`.
    """

    def total(mask: Any, model: LM, batch: Any, streams: Array, values: Any) -> Array:
        losses = losses_without(opened, components)
        return losses(model, batch, streams, jnp.int32(0), mask, {}, values, {}).sum()

    key = ("mask-slopes", components.site, components.axis, components.by_position)
    program = opened.program(key, lambda: jax.grad(total))
    streams = read_intact(opened, batch, CONDITIONS[0]).streams
    return jax.tree.map(np.asarray, program(mask, opened.model, batch_arrays(batch), streams, values))


def batch_arrays(batch: Batch) -> dict[str, Any]:
    """Return the arrays of a batch that `losses_without` reads."""
    names = ("ids", "padding", "positions", "targets", "weights", "segments", "others")
    return {name: getattr(batch, name) for name in names}


def join_masks(mask: Any, values: Any) -> Any:
    """Return pairs of a mask and values, by group of layers if there are groups."""
    if isinstance(values, dict):
        return {first: (mask[first], values[first]) for first in values}
    return mask, values


def _at_positions(mask: Array, batch: Mapping[str, Any]) -> Array:
    """Return whether each token of a batch is at a removed position of its document, `(..., batch, seq)`."""
    known = jnp.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, 1)])  # nothing after the last position
    return jnp.where(batch["padding"], 0, known[..., jnp.minimum(batch["positions"], mask.shape[-1])]).astype(
        mask.dtype
    )


@cache  # edits with equal functions are equal, so that they share compiled programs
def remover(axis: int | None, adds: bool = False) -> Callable[[Array, Any], Array]:
    """Return the function of an edit that replaces the removed units of an activation.

    Its value is a mask `(unit,)` or `(batch, unit)`, and what takes the place of the activation. A mask of numbers
    replaces a share of each unit, so that the gradient with respect to it is the effect of replacing a small share.
    """

    def remove(x: Array, value: Any) -> Array:
        mask, new = value
        shape = [1] * x.ndim
        if mask.ndim == 2:
            shape[0] = len(mask)
        if axis is not None:
            shape[axis] = mask.shape[-1]
        mask, new = mask.reshape(shape), x + new if adds else new
        return jnp.where(mask, new, x) if mask.dtype == bool else x + mask * (new - x)

    return remove


def keep_intact(x: Array, value: Any) -> Array:
    """Return the intact activation; with a mask, only where the mask is set."""
    if isinstance(value, tuple):
        keep, intact = value
        return jnp.where(keep, intact, x)
    return value


def skip_layers(model: LM, skipped: Array) -> LM:
    """Return a model in which layers leave the residual stream unchanged.

    Args:
        model: The model, whose layers do not share parameters.
        skipped: Whether each layer is skipped.
    """
    stacks = []
    for stack in model.stacks:
        skipped_here = skipped[stack.start : stack.start + stack.size]
        assert stack.block is not None
        keep = jnp.ones((stack.size, len(DROPPABLE))) if stack.block.keep is None else stack.block.keep.value
        keep = keep.at[:, DROPPABLE.index("layer")].multiply(1.0 - skipped_here)
        stacks.append(replace(stack, block=replace(stack.block, keep=Fixed(keep))))
    return eqx.tree_at(lambda model: model.stacks, model, tuple(stacks))
