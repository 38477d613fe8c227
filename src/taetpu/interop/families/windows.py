"""Layers with a sliding window beside layers with the causal mask, in Hugging Face settings and in taetpu's."""

from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.core.errors import UserError, suggest
from taetpu.interop.families.base import Exported

SLIDING, FULL = "sliding_attention", "full_attention"


def read_layer_types(settings: Any, default: Sequence[str]) -> list[str]:
    """Return the type of each layer, `SLIDING` or `FULL`, from the setting `layer_types`.

    Args:
        settings: The settings of an architecture, with the field `layer_types`.
        default: The types if the setting is missing.

    Raises:
        UserError: If there is not one type for each layer, or a type is not supported.
    """
    types = settings.layer_types
    if types is None:
        return list(default)
    if len(types) != len(default):
        problem = f"layer_types has {len(types)} entries, expected one for each of {len(default)} layers"
        raise UserError(problem, path=("layer_types",), remedy="Correct layer_types or num_hidden_layers.")
    for number, kind in enumerate(types):
        if kind not in (SLIDING, FULL):
            problem = f"the layer type {kind!r} is not supported"
            raise UserError(problem, path=("layer_types", number), remedy=suggest(kind, (SLIDING, FULL)))
    return list(types)


def every_nth_full(num_layers: int, n: int) -> list[str]:
    """Return the types of layers of which every n-th is `FULL`."""
    return [SLIDING if (i + 1) % n else FULL for i in range(num_layers)]


def with_windows(data: Mapping[str, Any], types: Sequence[str], width: Any, kind: str = "window") -> dict[str, Any]:
    """Return the data of a model whose layers have the given types.

    Args:
        data: The data of a model with attention.
        types: The type of each layer.
        width: The width of the window.
        kind: The kind of the mask of layers with a window.

    Raises:
        UserError: If the width is not a positive integer.
    """
    if SLIDING not in types:
        return dict(data)
    if width is None:
        problem = f"sliding_window is {width!r}, expected a positive integer"
        raise UserError(problem, path=("sliding_window",), remedy="Correct sliding_window or layer_types.")
    mask: dict[str, Any] = {"kind": kind, "width": width}
    if FULL in types:
        pattern = shortest_pattern("".join("S" if kind == SLIDING else "L" for kind in types))
        mask |= {"pattern": pattern, "last": False}
    return {**data, "mixer": {**data["mixer"], "mask": mask}}


def shortest_pattern(letters: str) -> str:
    """Return the shortest text whose repetition starts with the given letters."""
    lengths = range(1, len(letters))
    return next(
        (letters[:n] for n in lengths if all(a == b for a, b in zip(letters, letters[n:], strict=False))), letters
    )


def with_positions(
    data: Mapping[str, Any], types: Sequence[str], positions: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the data of a model whose layers have the position of their type.

    The model has the position of the more frequent type, and the layers of the other type are in `layers`.
    """
    usual = max((SLIDING, FULL), key=types.count)
    others = [i for i, kind in enumerate(types) if kind != usual]
    if not others or positions[SLIDING] == positions[FULL]:
        return {**data, "position": dict(positions[usual])}
    other = {"position": dict(positions[types[others[0]]])}
    return {**data, "position": dict(positions[usual]), "layers": dict.fromkeys(layer_keys(others, len(types)), other)}


def layer_keys(numbers: Sequence[int], num_layers: int) -> list[int | str]:
    """Return keys of `layers` that select the layers with the given numbers: one slice if possible."""
    if len(numbers) > 1:
        first, step = numbers[0], numbers[1] - numbers[0]
        if list(range(first, num_layers, step)) == list(numbers):
            return [f"{first}::{step}"]
    return list(numbers)


def write_windows(ours: Exported) -> tuple[list[str], int | None]:
    """Return the type of each layer, and the width of the first layer with a window; None without such a layer."""
    widths = [layer.get("mixer.mask.width") for layer in ours.layers]
    return [FULL if width is None else SLIDING for width in widths], next((w for w in widths if w is not None), None)
