"""Names of parameters for messages, in which layers are merged."""

from collections.abc import Sequence
from itertools import groupby


def fold_layers(names: Sequence[str]) -> list[str]:
    """Return parameter names. Names that differ only in the layer are merged, such as `layers.0-3.ffn.up`."""
    layers: dict[str, list[int]] = {}
    for name in names:
        head, _, rest = name.partition(".")
        number, _, inner = rest.partition(".") if head == "layers" else ("", "", "")
        layers.setdefault(f"layers.*.{inner}" if inner else name, []).extend([int(number)] if inner else [])
    return [name.replace("*", _ranges(numbers), 1) if numbers else name for name, numbers in layers.items()]


def _ranges(numbers: list[int]) -> str:
    """Format numbers as ranges, such as `0-2,5` for 0, 1, 2 and 5."""
    spans = [
        [n for _, n in group] for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
