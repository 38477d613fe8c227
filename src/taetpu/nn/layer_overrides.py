"""Single layers whose settings differ from those of the model, or that share the parameters of an earlier layer."""

from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.number_parsing import parse_int
from taetpu.nn.block import LayerConfig


def with_own_mask(
    layer: LayerConfig, number: int, num_layers: int, known: dict[LayerConfig, LayerConfig]
) -> LayerConfig:
    """Return a layer with the mask that its config has in layer `number` (`MaskConfig.for_layer`).

    Args:
        layer: The layer.
        number: The number of the layer, from 0.
        num_layers: The number of layers.
        known: The changed layers so far, to which this one is added.
    """
    mask = layer.typed_mixer.effective_mask
    if mask is None or (chosen := mask.for_layer(number, num_layers)) is mask:
        return layer
    made = layer.with_mask(chosen)
    return known.setdefault(made, made)


def owner_of(number: int, same_as: int | tuple[int, ...]) -> int:
    """Return the layer whose parameters a layer shares. Several layers are repeated, from the layer after the last."""
    return same_as if isinstance(same_as, int) else same_as[(number - max(same_as) - 1) % len(same_as)]


def check_shared(
    number: int, same_as: int | tuple[int, ...], settings: Mapping[str, Any], layers: Sequence[LayerConfig]
) -> None:
    """Raise `UserError` if a layer cannot share the parameters of the layers that `same_as` names.

    Args:
        number: The number of the layer.
        same_as: The number of the layer to share, or several numbers.
        settings: The settings of the layer in `layers` of the study file.
        layers: The earlier layers.
    """
    path = ("layers", number, "same_as")
    for owner in (same_as,) if isinstance(same_as, int) else same_as:
        if owner >= number:
            remedy = f"Use a layer below {number}." if number else "Remove same_as, because no layer precedes layer 0."
            raise UserError(f"layer {number} cannot share the parameters of layer {owner}", path=path, remedy=remedy)
        if (other := layers[owner].same_as) is not None:
            problem = f"layer {owner} already shares the parameters of layer {other}"
            raise UserError(problem, path=path, remedy=f"Use same_as: {other}.")
    if others := sorted(set(settings) - {"same_as"}):
        problem = f"layer {number} shares the parameters of layer {same_as}, so its {others[0]} cannot be changed"
        raise UserError(problem, path=("layers", number, others[0]), remedy="Remove the setting, or same_as.")


def select_layers(where: int | str, num_layers: int) -> list[int]:
    """Return the layers that a key of `layers` selects: an index (negative from the end) or a slice such as `0:2`."""
    text = str(where)
    try:
        if ":" in text:
            cut = slice(*(parse_int(part) if part else None for part in text.split(":")))
            beyond = any(end is not None and not -num_layers <= end <= num_layers for end in (cut.start, cut.stop))
            indices = [] if beyond else list(range(num_layers)[cut])
        else:
            indices = [range(num_layers)[parse_int(text)]]
    except (ValueError, IndexError, TypeError):
        indices = []
    if not indices:
        raise UserError(
            f"no layer {text!r} in a model of {num_layers} layers",
            path=("layers", where),
            remedy=f"Use 0 to {num_layers - 1}, -1 to {-num_layers} from the end, or a slice such as 0:{num_layers}.",
        )
    return indices
