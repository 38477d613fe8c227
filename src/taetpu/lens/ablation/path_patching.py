"""Path patching: what senders pass to one receiver directly.

A sender takes its activation from the clean run, and all other branches keep their outputs of the corrupted run. What
then reaches the receiver's site is patched into a corrupted run, in which everything after the receiver is computed.
The score of a sender is the restored share of the difference between clean and corrupted runs (see `patching`).

Source: Wang et al. 2022, "Interpretability in the Wild", arXiv 2211.00593, section 3.1.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from taetpu.core.errors import UserError
from taetpu.core.sites import Edit, capture, parts_of
from taetpu.lens.ablation.components import Components, find_components
from taetpu.lens.ablation.patching import Pairs, Patches, check_activations, clean_measure, make_patches, signed
from taetpu.lens.ablation.sweep import (
    OUTPUTS,
    batch_arrays,
    join_masks,
    keep_intact,
    losses_without,
    other_branches,
    read_intact,
    read_values,
    remover,
)
from taetpu.lens.activations import check_head, check_site_layer, site_shapes
from taetpu.lens.opened import OpenedModel

HEADS = 1
"""The axis of heads in an activation `(batch, head, seq, head_dim)`."""


@dataclass(frozen=True)
class Receiver:
    """Where what senders pass on is patched in.

    Attributes:
        site: The site, such as `mixer.q`, `mixer.k`, `mixer.v` or `ffn.hidden`.
        layer: The layer.
        head: The head; None for the whole activation.
    """

    site: str
    layer: int
    head: int | None = None


def path_patching(opened: OpenedModel, pairs: Pairs, senders: str | Components, receiver: Receiver) -> Patches:
    """Return how much of the clean answer each sender restores through the receiver.

    Args:
        opened: The model.
        pairs: The texts.
        senders: The kind of the senders (see `components.find_components`), or the senders. Those in the receiver's
            layer or later are left out.
        receiver: The receiver.

    Raises:
        UserError: if the model has no such sender or receiver, or no sender comes before the receiver.
    """
    layer = check_site_layer(opened, receiver.site, receiver.layer)
    shape = site_shapes(opened, receiver.site)[layer].shape
    if receiver.head is not None:
        heads = shape[HEADS] if len(shape) == 4 else None
        if heads is None:
            remedy = "Choose mixer.q, mixer.k, mixer.v or mixer.z, or remove the head."
            raise UserError(f"site {receiver.site!r} has no heads", path=("receiver",), remedy=remedy)
        check_head(opened, layer, receiver.head, heads)
    chosen = senders if isinstance(senders, Components) else find_components(opened, senders)
    check_activations(chosen)
    early = tuple(sender for sender in chosen.each if sender.layer is not None and sender.layer < layer)
    sent = chosen.site
    if not early or sent is None:
        problem = f"none of the {chosen.what} comes before layer {layer}"
        raise UserError(problem, path=("receiver",), remedy="Choose a receiver in a later layer, or other senders.")
    chosen = replace(chosen, each=early)
    sets = [(), *((number,) for number in range(len(chosen)))]
    masks = chosen.masks(sets)
    kept = other_branches(opened, chosen, masks, len(sets))
    place = replace(receiver, layer=layer)
    program = opened.program(("path", chosen.site, chosen.axis, place), lambda: _build(opened, chosen, place))
    measured = np.zeros((len(sets), len(pairs.corrupted)))
    for batch, clean in zip(pairs.corrupted.batches(), pairs.clean.batches(), strict=True):
        intact = read_intact(opened, batch, "direct")
        arrays = (batch_arrays(batch), intact.streams, masks, kept, read_values(opened, sent, clean))
        measured[:, batch.numbers] = program(opened.model, *arrays, dict(intact.frozen))[:, : len(batch.numbers)]
    return make_patches(opened, pairs, chosen, clean_measure(opened, pairs, chosen), signed(pairs, measured))


def _build(opened: OpenedModel, senders: Components, receiver: Receiver) -> Callable[..., Any]:
    """Return the function from masks of senders to the measures of documents."""
    assert senders.site is not None
    whole = find_components(opened, receiver.site, receiver.layer)
    target = whole if receiver.head is None else replace(whole, axis=HEADS)
    measure = losses_without(opened, target)
    first = whole.group_of(receiver.layer)
    layers = whole.groups[first][0]
    frozen = [site for site in OUTPUTS if site in opened.site_layers]
    edits = [Edit(senders.site, remover(senders.axis), value="removed", by_layer=True),
             *(Edit(site, keep_intact, value=site, by_layer=True) for site in frozen)]  # fmt: skip
    place = opened.site_layers[receiver.site].index(receiver.layer)

    def measured(model: Any, batch: Any, streams: Array, masks: Any, kept: Any, values: Any, fixed: Any) -> Array:
        options = {"padding": batch["padding"], "segments": batch["segments"]}

        def of_one_set(of_set: Any) -> Array:
            mask, keep = of_set
            given = {site: join_masks(keep[site], fixed[site]) for site in frozen}
            given["removed"] = join_masks(mask, values)
            _, reads = capture(model, [receiver.site], edits)(batch["ids"], values=given, **options)
            read = reads[receiver.site]
            sent = _layer_of(read, place)
            heads = 1 if receiver.head is None else sent.shape[HEADS]
            patched = jnp.zeros((layers, *sent.shape), sent.dtype).at[receiver.layer - first].set(sent)
            where = jnp.zeros((layers, heads), bool).at[receiver.layer - first, receiver.head or 0].set(True)
            start = jnp.int32(receiver.layer)
            return measure(model, batch, streams, start, {first: where}, {}, {first: patched}, {})

        return jax.lax.map(of_one_set, (masks, kept))

    return measured


def _layer_of(read: Any, place: int) -> Array:
    """Return what was read in one of the layers of a site."""
    for part in parts_of(read):
        if place < len(part):
            return part[place]
        place -= len(part)
    raise AssertionError("the site has no such layer")
