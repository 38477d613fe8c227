"""Differences between the configs of an arm and its baseline."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from taetpu.core.config import to_data

if TYPE_CHECKING:
    from taetpu.spec.study_config import ResolvedConfig

Diff = dict[str, tuple[Any, Any]]


def difference(old: "ResolvedConfig", new: "ResolvedConfig") -> Diff:
    """Return the differences between two configs, in the form of `Arm.diff`."""
    a, b = to_data(old), to_data(new)
    before, after = a["model"].pop("layers"), b["model"].pop("layers")
    a["model"]["num_layers"], b["model"]["num_layers"] = len(before), len(after)
    differences = dict(changes(a, b, ()))
    layers = [dict(changes(x, y, ())) for x, y in zip(before, after, strict=False)]
    for i, layer in enumerate(layers):
        for path, change in layer.items():
            alike = all(other.get(path) == change for other in layers)
            differences[f"model.{path}" if alike else f"model.layers.{i}.{path}"] = change
    return differences


def changes(a: Any, b: Any, path: tuple[str, ...]) -> list[tuple[str, tuple[Any, Any]]]:
    """Return the differences between plain data as pairs of a dotted path and `(a's value, b's value)`."""
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)) or a.get("kind") != b.get("kind"):
        return [] if a == b else [(".".join(path), (a, b))]
    return [change for name in {**a, **b} for change in changes(a.get(name), b.get(name), (*path, str(name)))]
