"""The split of a config into a program's static structure and its traced numbers.

A field marked `Traced` holds a number that enters the compiled program as an array, so that runs that differ only in
such fields share one compiled program. `split` extracts these numbers from a config tree. `bind` inserts arrays or
tracers.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from taetpu.core.config import Config, Hole, traced_fields

C = TypeVar("C", bound=Config)


def split(config: C, live: frozenset[str] = frozenset()) -> tuple[C, dict[str, Any]]:
    """Split a config into its structure and its traced numbers.

    Args:
        config: The config.
        live: Wildcard paths of fields that are traced even if their value is neutral (see `Traced.promote`).

    Returns:
        The structure, with a `Hole` for each traced number, and the numbers by path.
    """
    numbers: dict[str, Any] = {}

    def visit(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, tuple):
            return tuple(visit(item, (*path, str(i))) for i, item in enumerate(node))
        if isinstance(node, Mapping):
            return {name: visit(item, (*path, name)) for name, item in node.items()}
        if not isinstance(node, Config):
            return node
        traced = traced_fields(type(node))
        update = {}
        for name in type(node).model_fields:
            value, here = getattr(node, name), (*path, name)
            mark = traced.get(name)
            if mark is None:
                new = visit(value, here)
                if new is not value:
                    update[name] = new
            elif not _same(value, mark.neutral) or wildcard_path(here) in live:
                # A bound config already holds encoded numbers.
                encode = None if hasattr(value, "shape") else mark.encode
                numbers[".".join(here)] = encode(node, value) if encode else value
                update[name] = Hole()
        return node.model_copy(update=update) if update else node

    return visit(config, ()), numbers


def promoted_fields(config: Config) -> frozenset[str]:
    """Return the wildcard paths of a config's promotable fields whose value is not neutral, for `split`'s `live`."""
    found: set[str] = set()

    def visit(node: Any, path: tuple[str, ...]) -> None:
        if isinstance(node, tuple):
            for i, item in enumerate(node):
                visit(item, (*path, str(i)))
        elif isinstance(node, Mapping):
            for name, item in node.items():
                visit(item, (*path, name))
        elif isinstance(node, Config):
            for name, mark in traced_fields(type(node)).items():
                if mark.promote and not _same(getattr(node, name), mark.neutral):
                    found.add(wildcard_path((*path, name)))
            for name in type(node).model_fields:
                visit(getattr(node, name), (*path, name))

    visit(config, ())
    return frozenset(found)


def bind(structure: C, numbers: Mapping[str, Any]) -> C:
    """Return the structure with its holes filled with `numbers` (arrays or tracers by path)."""

    def visit(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, Hole):
            return numbers[".".join(path)]
        if isinstance(node, tuple):
            return tuple(visit(item, (*path, str(i))) for i, item in enumerate(node))
        if isinstance(node, Mapping):
            return {name: visit(item, (*path, name)) for name, item in node.items()}
        if not isinstance(node, Config):
            return node
        fields = {name: getattr(node, name) for name in type(node).model_fields}
        update = {}
        for name, value in fields.items():
            new = visit(value, (*path, name))
            if new is not value:
                update[name] = new
        return node.model_copy(update=update) if update else node

    return visit(structure, ())


def wildcard_path(path: tuple[str, ...]) -> str:
    """Return a dotted path in which every number is replaced by `*`."""
    return ".".join("*" if part.isdigit() else part for part in path)


def _same(value: Any, neutral: Any) -> bool:
    # A traced array is never neutral, and must not be compared: under jit it has no truth value.
    return neutral is not ... and type(value) in (type(neutral), int, float) and value == neutral
