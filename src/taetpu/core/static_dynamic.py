"""The split of a config into a program's static structure and its traced numbers.

A field marked `Traced` holds a number that enters the compiled program as an array, so that runs that differ only in
such fields share one compiled program. `split` extracts these numbers from a config tree, and `bind` inserts arrays or
tracers in their places.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from taetpu.core.config import Config, Hole, Traced, traced_fields

C = TypeVar("C", bound=Config)
Path = tuple[str, ...]


def split(config: C, live: frozenset[str] = frozenset()) -> tuple[C, dict[str, Any]]:
    """Split a config into its structure and its traced numbers.

    Args:
        config: The config.
        live: Wildcard paths of fields that are traced even if their value is neutral (see `Traced.promote`).

    Returns:
        The structure, with a `Hole` for each traced number, and the numbers by path.
    """
    numbers: dict[str, Any] = {}

    def extract(node: Config, name: str, path: Path) -> Any:
        value, mark = getattr(node, name), traced_fields(type(node)).get(name)
        if mark is None:
            return _rewrite(value, path, extract)
        if _is_static(value, mark) and wildcard_path(path) not in live:
            return value
        # A bound config already holds encoded numbers.
        encode = None if hasattr(value, "shape") else mark.encode
        numbers[".".join(path)] = encode(node, value) if encode else value
        return Hole()

    return _rewrite(config, (), extract), numbers


def promoted_fields(config: Config) -> frozenset[str]:
    """Return the wildcard paths of a config's promotable fields whose value is not neutral (`live` in `split`)."""

    def is_promoted(node: Config, name: str) -> bool:
        mark = traced_fields(type(node)).get(name)
        return mark is not None and mark.promote and not _is_static(getattr(node, name), mark)

    return _paths_of(config, is_promoted)


def traced_paths(structure: Config) -> frozenset[str]:
    """Return the wildcard paths of the numbers that `split` has taken out of a structure (`live` in `split`)."""
    return _paths_of(structure, lambda node, name: isinstance(getattr(node, name), Hole))


def _paths_of(config: Config, chosen: Callable[[Config, str], bool]) -> frozenset[str]:
    """Return the wildcard paths of the fields for which `chosen(config, field)` is true."""
    paths: set[str] = set()

    def note(node: Config, name: str, path: Path) -> Any:
        if chosen(node, name):
            paths.add(wildcard_path(path))
        return _rewrite(getattr(node, name), path, note)

    _rewrite(config, (), note)
    return frozenset(paths)


def bind(structure: C, numbers: Mapping[str, Any]) -> C:
    """Return the structure with its holes filled with `numbers` (arrays or tracers by path)."""

    def fill(node: Config, name: str, path: Path) -> Any:
        value = getattr(node, name)
        return numbers[".".join(path)] if isinstance(value, Hole) else _rewrite(value, path, fill)

    return _rewrite(structure, (), fill)


def _rewrite(node: Any, path: Path, replace: Callable[[Config, str, Path], Any]) -> Any:
    """Return a copy of `node` in which each field of the outermost configs is `replace(config, field, path)`."""
    if isinstance(node, tuple):
        return tuple(_rewrite(item, (*path, str(i)), replace) for i, item in enumerate(node))
    if isinstance(node, Mapping):
        return {name: _rewrite(item, (*path, name), replace) for name, item in node.items()}
    if not isinstance(node, Config):
        return node
    new = {name: replace(node, name, (*path, name)) for name in type(node).model_fields}
    update = {name: value for name, value in new.items() if value is not getattr(node, name)}
    return node.model_copy(update=update) if update else node


def wildcard_path(path: Path) -> str:
    """Return a dotted path in which every number is replaced by `*`."""
    return ".".join("*" if part.isdigit() else part for part in path)


def _is_static(value: Any, mark: Traced) -> bool:
    """Return whether a value of a traced field is neutral, or a word without a number, such as `scale: 1/head_dim`."""
    if isinstance(value, str):
        return mark.encode is None
    # A traced array is never neutral, and must not be compared: under jit it has no truth value.
    neutral = mark.neutral
    return neutral is not ... and type(value) in (type(neutral), int, float) and value == neutral
