"""Activations at a site by layer, and checks of the sites, layers and heads that a user names."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.errors import UserError, suggest
from taetpu.core.sites import Read, capture, parts_of
from taetpu.lens.inputs import LENGTHS, Tokens, pad_left
from taetpu.lens.opened import OpenedModel

PATTERN = "mixer.pattern"
BATCH_TOKENS = 8192
"""Maximum number of tokens in a batch, padding included, unless a single sequence is longer."""
MAX_LOGITS = 2**26
"""Maximum number of logits of one layer in a batch, unless a single sequence has more."""


# --- batches ----------------------------------------------------------------------------------------------------------


def sequences(opened: OpenedModel, inputs: Any, heads: int | None = None, *, logits: bool = True) -> list[np.ndarray]:
    """Return the token numbers of each input.

    Args:
        opened: The model.
        inputs: See `OpenedModel.encode`.
        heads: See `OpenedModel.check_length`.
        logits: See `OpenedModel.check_length`.

    Raises:
        UserError: if an input is empty or unknown, or as in `OpenedModel.check_length`.
    """
    if isinstance(inputs, Tokens):
        return [inputs.of(i) for i in range(len(inputs))]
    rows = opened.as_sequences(inputs)
    opened.check_length(max(map(len, rows)), logits=logits, heads=heads)
    return rows


def in_batches(rows: Sequence[np.ndarray], most: int = BATCH_TOKENS) -> Iterator[tuple[list[int], list[int], Tokens]]:
    """Yield the numbers of the sequences of each batch, those that the batch consists of, and the batch.

    Sequences of similar length share a batch. The last batch is filled with copies of its first sequence, so that
    batches of equal length share a compiled program.

    Args:
        rows: The token numbers of each sequence.
        most: The maximum number of tokens in a batch.
    """
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    size = min(len(rows), max(1, most // (max(map(len, rows)) + LENGTHS)))
    for start in range(0, len(order), size):
        numbers = order[start : start + size]
        filled = [*numbers, *[numbers[0]] * (size - len(numbers))]
        yield numbers, filled, pad_left([rows[i] for i in filled])


def logit_tokens(opened: OpenedModel) -> int:
    """Return the maximum number of tokens in a batch whose logits of one layer are in memory."""
    return max(1, min(BATCH_TOKENS, MAX_LOGITS // opened.interface.output_size))


# --- sites ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SiteShape:
    """The shape of the activations at a site in one layer, for a batch of sequences.

    Attributes:
        shape: The shape; None for the axes of sequences and positions.
        position: The axis of positions; None without such an axis. Attention weights have two, and this is the first.
        positions: The number of axes of positions.
    """

    shape: tuple[int | None, ...]
    position: int | None
    positions: int


def site_shapes(opened: OpenedModel, site: str) -> dict[int | None, SiteShape]:
    """Return the shape of a site in each of its layers; a site outside the layers has the layer None.

    The axes of sequences and positions are those whose length changes with the batch.
    """
    check_site(opened, site)

    def build() -> Callable[[], dict[int | None, SiteShape]]:
        shapes = _find_shapes(opened, site)
        return lambda: shapes

    return opened.build_once(("site-shapes", site), build)()


def _find_shapes(opened: OpenedModel, site: str) -> dict[int | None, SiteShape]:
    length = max(1, min(opened.seq_len, 8))
    sizes = (_shapes(opened, site, *size) for size in ((1, length), (2, length), (1, 2 * length)))
    result = {}
    for layer, single, more, longer in zip((opened.site_layers[site] or (None,)), *sizes, strict=True):
        batch = [i for i, (a, b) in enumerate(zip(single, more, strict=True)) if a != b]
        places = [i for i, (a, b) in enumerate(zip(single, longer, strict=True)) if a != b]
        shape = tuple(None if i in (*batch, *places) else size for i, size in enumerate(single))
        result[layer] = SiteShape(shape, places[0] if places else None, len(places))
    return result


def _shapes(opened: OpenedModel, site: str, batch: int, seq: int) -> list[tuple[int, ...]]:
    """Return the shape of a site in each of its layers for a batch of sequences."""
    ids, padding = (jax.ShapeDtypeStruct((batch, seq), dtype) for dtype in (jnp.int32, bool))
    read = jax.eval_shape(lambda ids, padding: capture(opened.model, [site])(ids, padding=padding), ids, padding)[1][
        site
    ]
    if not opened.site_layers[site]:
        return [read.shape]
    return [part.shape[1:] for part in parts_of(read) for _ in range(part.shape[0])]


def check_site(opened: OpenedModel, site: str) -> None:
    """Raise `UserError` if the model has no such site. The error names the mixers without attention weights."""
    if site in opened.site_layers:
        return
    if site in (PATTERN, "mixer.scores"):
        kinds = sorted({layer.mixer.kind for layer in opened.config.layers})
        problem = f"the mixers of this model, {' and '.join(kinds)}, compute no attention weights (site {site!r})"
        remedy = "Open a model with attention, or read another site, such as mixer.out."
        raise UserError(problem, path=("site",), remedy=remedy)
    problem = f"this model has no site {site!r}"
    raise UserError(problem, path=("site",), remedy=suggest(site, opened.site_layers))


def check_integer(name: str, value: Any) -> None:
    """Raise `UserError` if a value is not an integer."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        problem = f"{name} is {value!r}, expected an integer"
        raise UserError(problem, path=(name,), remedy=f"Use one {name}, or None for the default.")


def check_layer(opened: OpenedModel, layer: int) -> int:
    """Return the number of a layer from 0. Negative numbers count from the last layer, -1.

    Raises:
        UserError: if the model has no such layer.
    """
    number = len(opened.config.layers)
    check_integer("layer", layer)
    if not -number <= layer < number:
        problem = f"layer {layer} does not exist in a model of {number} layers"
        remedy = f"Use 0 to {number - 1}, or -1 to -{number} from the end."
        raise UserError(problem, path=("layer",), remedy=remedy)
    return layer % number


def check_site_layer(opened: OpenedModel, site: str, layer: int) -> int:
    """Return the number of a layer from 0; see `check_layer`.

    Raises:
        UserError: if the model has no such layer, or the layer has no such site.
    """
    check_site(opened, site)
    layer = check_layer(opened, layer)
    if layer in (layers := opened.site_layers[site]):
        return layer
    if not layers:
        problem = f"site {site!r} is not in a layer"
        raise UserError(problem, path=("layer",), remedy="Remove the layer.")
    mixer = opened.config.layers[layer].mixer.kind
    lacks = "computes no attention weights" if site in (PATTERN, "mixer.scores") else f"has no site {site!r}"
    part = f"layer {layer} has the mixer {mixer!r}, which {lacks}" if site.startswith("mixer.") else (
        f"layer {layer} has no site {site!r}")  # fmt: skip
    others = f"Use one of the layers {', '.join(map(str, layers))}."
    raise UserError(part, path=("layer",), remedy=others)


def check_position(position: int, tokens: int) -> int:
    """Return a position from 0. Negative numbers count from the last position, -1.

    Raises:
        UserError: if a text of this number of tokens has no such position.
    """
    check_integer("position", position)
    if not -tokens <= position < tokens:
        problem = f"position {position} does not exist in a text of {tokens} tokens"
        raise UserError(problem, path=("position",), remedy=f"Use 0 to {tokens - 1}, or -1 to -{tokens} from the end.")
    return position % tokens


def check_head(opened: OpenedModel, layer: int, head: int, number: int) -> int:
    """Return the number of a head.

    Args:
        opened: The model.
        layer: The number of the layer.
        head: The number of the head, from 0.
        number: The number of heads of the layer.

    Raises:
        UserError: if the layer has no such head.
    """
    check_integer("head", head)
    if not 0 <= head < number:
        problem = f"head {head} does not exist in layer {layer}, which has {number} heads"
        raise UserError(problem, path=("head",), remedy=f"Use 0 to {number - 1}.")
    return head


def by_layer(opened: OpenedModel, site: str, read: Read) -> dict[int | None, np.ndarray]:
    """Return the activations that were read at a site, by layer; a site outside the layers has the layer None."""
    layers = opened.site_layers[site]
    if not layers:
        return {None: np.asarray(read)}
    return dict(zip(layers, (activations for part in parts_of(read) for activations in np.asarray(part)), strict=True))
