"""Dotted paths of settings: names of them, and values at them."""

from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.core.errors import dotted_path


def short_paths(paths: list[str]) -> dict[str, str]:
    """Shorten each path to its last n parts, with the smallest n that keeps them distinct. `x.kind` counts as `x`."""
    split = {path: (path.removesuffix(".kind") or path).split(".") for path in paths}
    for size in range(1, max(map(len, split.values()), default=0) + 1):
        names = {path: dotted_path(parts[-size:]) for path, parts in split.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in paths}


def value_at(data: Any, path: str | Sequence[str], default: Any = None) -> Any:
    """Return the value at a dotted path, or at its parts, of nested mappings; `default` if a part is missing."""
    for part in path.split(".") if isinstance(path, str) else path:
        if not isinstance(data, Mapping) or part not in data:
            return default
        data = data[part]
    return data
