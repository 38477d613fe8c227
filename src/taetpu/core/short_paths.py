"""Dotted paths of settings, shortened for names."""

from taetpu.core.errors import dotted_path


def short_paths(paths: list[str]) -> dict[str, str]:
    """Shorten each path to its last n parts, with the smallest n that keeps them distinct. `x.kind` counts as `x`."""
    split = {path: (path.removesuffix(".kind") or path).split(".") for path in paths}
    for size in range(1, max(map(len, split.values()), default=0) + 1):
        names = {path: dotted_path(parts[-size:]) for path, parts in split.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: path for path in paths}
