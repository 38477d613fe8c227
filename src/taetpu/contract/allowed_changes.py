"""Which parameters the config diff of an arm speaks of: those that it says come, go, or start from other values."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from taetpu.contract.computation import Computation
from taetpu.nn.block import LayerConfig
from taetpu.nn.lm import LMConfig
from taetpu.spec.schema import ResolvedConfig

Place = tuple[str, ...]


def is_declared(name: str, diff: Mapping[str, Any], old: Computation, new: Computation, *, redrawn: bool) -> bool:
    """Does a diff say that this parameter changes?

    Everything may change with the model's sizes and the vocabulary's: components are built from them. Otherwise a
    parameter comes, goes or takes another shape with the component that it belongs to, or with `model.bias`; and it
    starts from other values (`redrawn`) with the model's `init`, with a field of its component, or with a component
    that says so (`own_init`).
    """
    return _sizes(old) != _sizes(new) or any(_covers(path, name, old.config, new.config, redrawn) for path in diff)


def _sizes(run: Computation) -> tuple[int, ...]:
    return run.config.model.dim, len(run.config.model.layers), run.source.vocab_size, run.source.seq_len


def _covers(path: str, name: str, old: ResolvedConfig, new: ResolvedConfig, redrawn: bool) -> bool:
    section, *inside = path.split(".")
    if section != "model":
        return False
    if inside[0] in ("bias", "init"):
        return (inside[0] == "init") == redrawn
    parts = name.split(".")
    layer, home = (parts[1], parts[2:]) if parts[0] == "layers" else (None, parts)
    if inside[0] == "layers":
        if inside[1] != layer:
            return False
        inside = inside[2:]
    slot, *below = inside
    if not redrawn:
        return _belongs(home, slot)
    before, after = (value_at(config, places(path, config)[0]) for config in (old, new))
    if not hasattr(after, "own_init"):  # a field: what it belongs to is the component that holds it
        return _belongs(home, slot) and home[1 : len(below)] == below[:-1]
    return (before.own_init or after.own_init) and _belongs(home, slot) and home[1 : len(below) + 1] == below


def _belongs(home: list[str], slot: str) -> bool:
    """Is a parameter one of the component in a slot? Its name begins in the block, or in the model.

    A branch that is not there has no norm either, and positions live in the mixer that uses them.
    """
    if slot == "norm":
        return home[0].endswith("norm")
    if slot == "position":
        return "position" in home
    return home[0] in (slot, f"{slot}_norm")


def places(path: str, config: ResolvedConfig) -> list[Place]:
    """Where in a resolved config a path of a diff stands: in every layer, where the diff is about all of them."""
    section, *inside = parts = path.split(".")
    if section != "model" or inside[0] not in LayerConfig.model_fields:
        return [tuple(parts)]
    found = [("model", "layers", str(i), *inside) for i in range(len(config.model.layers))]
    return [*found, tuple(parts)] if inside[0] in LMConfig.model_fields else found


def value_at(config: Any, place: Place) -> Any:
    """The value at a place of a config; None where there is none."""
    node = config
    for part in place:
        if isinstance(node, tuple):
            node = node[int(part)]
        else:
            node = node.get(part) if isinstance(node, Mapping) else getattr(node, part, None)
    return node


def fold_layers(names: list[str] | tuple[str, ...]) -> list[str]:
    """Parameter names with the layers that share one written together: `layers.0-3.ffn.up`."""
    layers: dict[str, list[int]] = {}
    for name in names:
        head, _, rest = name.partition(".")
        number, _, inner = rest.partition(".") if head == "layers" else ("", "", "")
        layers.setdefault(f"layers.*.{inner}" if inner else name, []).extend([int(number)] if inner else [])
    return [name.replace("*", _ranges(numbers), 1) if numbers else name for name, numbers in layers.items()]


def _ranges(numbers: list[int]) -> str:
    """`0-2,5` for 0, 1, 2 and 5."""
    spans = [
        [n for _, n in group] for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
