"""The split of a config into a program's structure and its numbers.

A field marked `Traced` holds a number that enters the compiled program as an array, so that runs which differ in it
alone share one compile. `split` takes those numbers out of a config tree, `bind` puts arrays (or tracers) back in.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from taetpu.core.config import Config, Hole, traced_fields

C = TypeVar("C", bound=Config)


def split(config: C, live: frozenset[str] = frozenset()) -> tuple[C, dict[str, Any]]:
    """Take the traced numbers out: `(structure, {path: number})`.

    `live` names the fields (paths with `*` for numbers) that are traced though neutral here; see `Traced.promote`.
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
                # A config that was bound already holds numbers.
                encode = None if hasattr(value, "shape") else mark.encode
                numbers[".".join(here)] = encode(node, value) if encode else value
                update[name] = Hole()
        return node.model_copy(update=update) if update else node

    return visit(config, ()), numbers


def promoted_fields(config: Config) -> frozenset[str]:
    """The promotable fields that a config really uses, as generic paths: what `live` is collected from."""
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
    """Put numbers (arrays, tracers) into the holes of a structure. The result is for building, never for showing."""

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
    """A path with every number in it replaced by `*`."""
    return ".".join("*" if part.isdigit() else part for part in path)


def _same(value: Any, neutral: Any) -> bool:
    # A traced array is never neutral, and must not be compared: under jit it has no truth value.
    return neutral is not ... and type(value) in (type(neutral), int, float) and value == neutral
