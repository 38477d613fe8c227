"""The documentation of a kind, read from the docstring of its config class.

The first sentences give the formula and a short citation. The last paragraph may contain lines that start with a label:

    Source: the paper, with its identifier.
    Reference: the implementation that the tests compare the kind with.
    Excludes: what the kind cannot be combined with, and why.
"""

import ast
import inspect
import re
import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType

from taetpu.core.config import Config

LABELS = ("Source", "Reference", "Excludes")
_LABELLED = re.compile(rf"^({'|'.join(LABELS)}): ", re.MULTILINE)


@dataclass(frozen=True)
class KindDoc:
    """The documentation of a kind. Texts are single lines, and empty if the docstring does not contain them.

    Attributes:
        summary: The formula, with a short citation.
        details: Further paragraphs.
        source: The paper.
        reference: The implementation that the tests compare the kind with.
        excludes: What the kind cannot be combined with.
    """

    summary: str
    details: tuple[str, ...] = ()
    source: str = ""
    reference: str = ""
    excludes: str = ""


def kind_doc(cls: type) -> KindDoc:
    """Return the documentation in the docstring of a config class."""
    text = inspect.getdoc(cls) or ""
    first = _LABELLED.search(text)
    body, labelled = (text[: first.start()], text[first.start() :]) if first else (text, "")
    pieces = _LABELLED.split(labelled)[1:]
    sections = {label.lower(): _one_line(value) for label, value in zip(pieces[::2], pieces[1::2], strict=True)}
    summary, *details = [_one_line(paragraph) for paragraph in body.split("\n\n") if paragraph.strip()] or [""]
    return KindDoc(summary, tuple(details), **sections)


@cache
def field_docs(cls: type[Config]) -> dict[str, str]:
    """Return the text about each field of a config class: its description, or the docstring below it in the source.

    Pydantic would read the source of every class when it is created, which takes a quarter of the start of a command.
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        named = [name for name in vars(base).get("__annotations__", {}) if name in cls.model_fields]
        if named and issubclass(base, Config):
            below = _docstrings(base)
            texts.update({name: below.get(name, "") for name in named})
    return {name: field.description or texts.get(name, "") for name, field in cls.model_fields.items()}


def _docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings below the annotated names of a class; empty if it has no source."""
    tree = _classes(sys.modules.get(cls.__module__)).get(cls.__qualname__)
    texts: dict[str, str] = {}
    for pair in pairwise(tree.body if tree else ()):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(about))):
                texts[name] = inspect.cleandoc(about)
    return texts


@cache
def _classes(module: ModuleType | None) -> dict[str, ast.ClassDef]:
    """Return the classes in the source of a module by qualified name, such as `f.<locals>.A`; empty if it has none."""
    try:
        nodes = [("", ast.parse(inspect.getsource(module)))] if module else []
    except (OSError, TypeError):  # such as that of a notebook
        return {}
    classes: dict[str, ast.ClassDef] = {}
    while nodes:
        prefix, node = nodes.pop()
        if isinstance(node, ast.ClassDef):
            classes[prefix + node.name] = node
            prefix = f"{prefix}{node.name}."
        elif isinstance(node, ast.FunctionDef):
            prefix = f"{prefix}{node.name}.<locals>."
        nodes += [(prefix, child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
    return classes


def _one_line(text: str) -> str:
    return " ".join(text.split())
