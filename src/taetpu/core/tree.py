"""Helpers for pytrees: leaves by dotted path, and element counts."""

from typing import Any

import jax


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """Return `{"stacks.0.mixer.wq": array, ...}` in tree order, without None leaves."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in pairs}


def count_elements(tree: Any) -> int:
    """Return the number of elements in a tree of arrays or array shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
