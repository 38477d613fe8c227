"""Tests assert values, places and remedies, or compare whole texts with `wording`: no sentence is in an assertion.

A sentence is a run of four or more words. Quoted names and numbers are values, not words.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
WORD = r"[A-Za-z](?:[A-Za-z'-]*[A-Za-z])?"
SENTENCE = re.compile(rf"(?<![^\s(])(?:{WORD} ){{3}}{WORD}(?![\w'`\"]|[./]\w)")


def strings(node: ast.AST) -> Iterator[str]:
    """Yield the string constants of an expression. The values of an f-string are `{}`."""
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            yield "".join(str(value.value) if isinstance(value, ast.Constant) else "{}" for value in part.values)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def asserted(function: ast.AST) -> Iterator[ast.AST]:
    """Yield what a test function compares with: parameters, conditions of `assert`, and `match=`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.parametrize":
            yield node
        elif isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value


def sentences(source: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a module's test functions that assert sentences, each with its first sentence."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            texts = (text for part in asserted(node) for text in strings(part) if SENTENCE.search(text))
            for text in texts:
                yield node.name, text
                break


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("assert 'layer 3' in text", 0),
        ("assert 'dim must divide 64' in text", 0),
        ("assert 'Did you mean \\'swiglu\\'?' in text", 0),
        ("assert 'the' ' size of' ' layer 3' in text", 1),
        ("assert text.count(f'{name} of ' 'the size of') == 1", 1),
        ("assert text, 'the text is not there'", 0),
        ("with pytest.raises(UserError, match='is not in the vocabulary'): pass", 1),
        ("print('the text is not asserted')", 0),
    ],
)
def test_runs_of_four_words_are_counted(line, count):
    assert len(list(sentences(f"def test_x():\n    {line}\n"))) == count


def test_no_test_asserts_a_sentence():
    lines = [
        f"{file.relative_to(TESTS)}: {name}: {text!r}"
        for file in sorted(TESTS.rglob("test_*.py"))
        for name, text in sentences(file.read_text("utf-8"))
    ]
    assert lines == [], "assert value, place and remedy, or use the fixture `wording`"
