"""Every gcloud line that taetpu can run or print, collected from its code and its docs."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import taetpu

SOURCE = Path(taetpu.__file__).parent
DOCS = SOURCE.parents[1] / "docs"
VALUES = {"project": "my-project", "zone": "us-east5-b", "name": "box"}
"""Of shell variables."""

Site = tuple[str, int, int]
"""A call in the code: file below the package, first and last line."""


def call_sites() -> list[Site]:
    """Return every call in the package that builds a gcloud command."""
    return [
        (file.relative_to(SOURCE).as_posix(), node.lineno, node.end_lineno or node.lineno)
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "command"
    ]


class Recorder:
    """A replacement of `gcloud.command` that records the commands built at each call."""

    def __init__(self, real):
        self.real, self.lines, self.places = real, dict[str, None](), set[tuple[str, int]]()

    def __call__(self, *words, **flags):
        frame = sys._getframe(1)
        file = Path(frame.f_code.co_filename).relative_to(SOURCE).as_posix()
        self.places.add((file, frame.f_lineno))
        line = self.real(*words, **flags)
        self.lines[line.shown] = None
        return line

    def missed(self, sites: list[Site]) -> list[Site]:
        """Return the calls that built no command."""
        return [site for site in sites if not any(f == site[0] and site[1] <= n <= site[2] for f, n in self.places)]


def written_lines() -> Iterator[tuple[str, str]]:
    """Yield the place and text of gcloud lines in scripts, messages and docs, with concrete values."""
    for file in sorted(SOURCE.rglob("*")):
        where = file.relative_to(SOURCE).as_posix()
        if file.suffix == ".sh":
            for line in re.findall(r"(?m)^(?!\s*#).*?\bgcloud ([a-z][^\n\";|]*)", file.read_text()):
                yield where, _concrete(f"gcloud {line}")
        elif file.suffix == ".py":
            for text in _printed(ast.parse(file.read_text())):
                for line in _within(text):
                    yield where, _concrete(line)
    for file in sorted(DOCS.glob("cloud*.md")):
        for block in re.findall(r"(?ms)^```\w*\n(.*?)^```", file.read_text()):
            for line in re.findall(r"(?m)^gcloud [^\n#|;&]*", block.replace("\\\n", "")):
                yield file.name, _concrete(line)
        for line in re.findall(r"`(gcloud [^`\n]+ --[^`\n]+)`", file.read_text()):
            yield file.name, _concrete(line)


def _printed(tree: ast.AST) -> Iterator[str]:
    """Yield a module's strings except docstrings, and its lists of words that begin with gcloud."""
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.List) and node.elts and _text(node.elts[0]) == "gcloud":
            yield " ".join(map(_text, node.elts))
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in skipped:
            yield _text(node)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "VALUE"


def _within(text: str) -> Iterator[str]:
    """Return the commands in a string: in backticks, or at the start of a line or after `&&`."""
    for part in re.findall(r"`(gcloud [^`]+)`|(?m:^(gcloud [a-z][^`\n]*))", text):
        for line in re.split(r" && |\|", part[0] or part[1]):
            if line.startswith("gcloud "):
                yield line.strip()


def _concrete(line: str) -> str:
    line = re.sub(r"\$\{?(\w+)\}?", lambda found: VALUES.get(found[1], "value"), line).replace("[OPTIONS]", "")
    line = line.replace("ACCOUNT", "trainer@my-project.iam.gserviceaccount.com")
    return re.sub(r"\b[A-Z][A-Z_-]{2,}\b", lambda found: found[0].lower().replace("_", "-"), line).strip()
