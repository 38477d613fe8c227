"""Variables and parameters are named by what they hold. Fields may have any name, because stored files contain them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import taetpu

EMPTY = {"found", "one", "own"}
"""Names that say nothing about a value."""


def bound(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each variable and parameter of a module, also of comprehensions and lambdas."""
    tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {part.target for cls in classes for part in cls.body if isinstance(part, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.lineno, node.id


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a = b", {"a"}),
        ("def f(a, *b, c=d, **e): pass", {"a", "b", "c", "e"}),
        ("[a for a, _ in b]", {"a", "_"}),
        ("f(key=lambda a: (b := a))", {"a", "b"}),
        ("class A:\n    a: int\n    def f(self): return self.a", {"self"}),
    ],
)
def test_variables_and_parameters_are_listed_without_fields(source, names):
    assert {name for _, name in bound(source)} == names


def test_no_variable_has_an_empty_name():
    package = Path(taetpu.__file__).parent
    lines = [
        f"{file.relative_to(package)}:{line}: {name}"
        for file in sorted(package.rglob("*.py"))
        for line, name in bound(file.read_text("utf-8"))
        if name in EMPTY
    ]
    assert lines == [], "name the variable by what it holds"
