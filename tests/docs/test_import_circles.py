"""No module of the package imports itself through others: modules can be read, tested and moved one at a time."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src"


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(node: ast.AST, known: set[str]) -> Iterator[str]:
    """Yield the modules that a syntax tree imports, also in functions, but not for type checkers only."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from imported(child, known)
        return
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports are not followed"
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        yield from {*names, str(node.module)} & known
    elif isinstance(node, ast.Import):
        yield from {alias.name for alias in node.names} & known
    for child in ast.iter_child_nodes(node):
        yield from imported(child, known)


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    return {name: {*imported(ast.parse(text), {*sources})} - {name} for name, text in sources.items()}


def test_modules_form_no_circle():
    modules = {module_name(file): file.read_text() for file in (ROOT / "taetpu").rglob("*.py")}
    imports = graph(modules)
    assert "taetpu.lens.opened" in imports["taetpu.lens.ablation.removal"]
    TopologicalSorter(imports).prepare()


@pytest.mark.parametrize(
    ("text", "circle"),
    [
        ("def f():\n    import p.a\n", True),
        ("if TYPE_CHECKING:\n    import p.a\n", False),
    ],
)
def test_circles_are_found_in_functions_but_not_for_types(text: str, circle: bool):
    imports = graph({"p.a": "from p import b\n", "p.b": text})
    if not circle:
        TopologicalSorter(imports).prepare()
        return
    with pytest.raises(CycleError) as error:
        TopologicalSorter(imports).prepare()
    assert {*error.value.args[1]} == {"p.a", "p.b"}
