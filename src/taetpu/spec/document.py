"""A study file as plain data, with the line of everything in it."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver

from taetpu.core.errors import UserError, Where, suggest
from taetpu.core.numerals import DECIMAL, INTEGER

NUMBERS = {
    "int": re.compile(rf"(?:{INTEGER.pattern}|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    "float": re.compile(rf"(?!{INTEGER.pattern}\Z)(?:{DECIMAL.pattern}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"),
}
"""What plain text is a number, by the end of its tag."""


@dataclass(frozen=True)
class Form:
    """A kind of YAML file, for messages about files that are not one.

    Attributes:
        name: what the file holds.
        key: a top-level key that every such file has.
        example: how its text begins.
        start: the remedy where there is no text.
    """

    name: str
    key: str
    example: str
    start: str


STUDY = Form("study", "study", "study: NAME ...", "`taetpu new NAME` writes a study to start from")
READ_AHEAD = 1 << 16
"""Bytes of a file in which its key is looked for."""


@dataclass(frozen=True)
class Document:
    """What a file says.

    Attributes:
        data: its plain data, a mapping.
        lines: 1-based line of each place, by its path.
    """

    file: Path
    data: dict[str, Any]
    lines: dict[Where, int] = field(default_factory=dict)

    def located(self, error: UserError) -> UserError:
        """The error with this file and the line of the nearest place that stands in it."""
        if error.file is not None or (error.path and str(error.path[0]).startswith("--")):
            return error
        known = (error.path[:n] for n in range(len(error.path), 0, -1))
        line = next((self.lines[path] for path in known if path in self.lines), None)
        return error.at(file=self.file, line=line)


def read(file: Path, form: Form = STUDY) -> Document:
    """Read a YAML 1.2 file that holds a mapping.

    Raises:
        UserError: no such file, not a text file, not YAML, a key given twice, not a mapping.
    """
    text = _text(file, form)
    try:
        node = _yaml().compose(text)
        lines: dict[Where, int] = {}
        _walk(node, (), lines, file, ())
        data = _yaml().load(text)
    except MarkedYAMLError as error:
        raise _syntax(error, text, file) from None
    except RecursionError:
        raise UserError(f"the file is nested too deeply to be a {form.name} file", file=file) from None
    except (YAMLError, ValueError) as error:  # a ValueError: a date or number that cannot be
        raise UserError(f"not valid YAML: {error}", file=file, remedy="quote what is meant as text") from None
    if data is None:
        raise UserError("the file is empty", file=file, remedy=form.start)
    if not isinstance(data, dict):
        raise UserError(
            f"a {form.name} file is a mapping of keys to values, not a {_noun(data)}",
            file=file,
            line=1,
            remedy=form.example,
        )
    return Document(file, data, lines)


def parse_value(text: str) -> Any:
    """The value of a YAML scalar or flow collection, as given on a command line.

    Raises:
        UserError: it is not YAML.
    """
    try:
        return _yaml().load(text)
    except (YAMLError, ValueError):
        raise UserError(f"{text!r} is not a YAML value", remedy="quote it, e.g. a.b='{kind: relu}'") from None


class CoreResolver(VersionedResolver):
    """Resolves numbers by YAML 1.2's core schema. The library's own rules also read `0_1` as 1 and `0b11` as 3."""

    def add_version_implicit_resolver(self, version: Any, tag: Any, regexp: Any, first: Any) -> None:
        super().add_version_implicit_resolver(version, tag, NUMBERS.get(str(tag).rpartition(":")[2], regexp), first)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)  # the C parser is YAML 1.1, where 1e-3 is a string
    yaml.Resolver = CoreResolver
    return yaml


def _text(file: Path, form: Form) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = [other.name for other in file.parent.glob("*.y*ml") if _has_key(other, form.key)]
        remedy = suggest(file.name, near) if near else form.start
        raise UserError("no such file", file=file, remedy=remedy) from None
    except IsADirectoryError:
        raise UserError(f"this is a folder, not a {form.name} file", file=file, remedy="name the YAML file") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError("not a UTF-8 text file", file=file, line=line, remedy="save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read: {error.strerror}", file=file) from None


def _has_key(file: Path, key: str) -> bool:
    """Whether a file looks as if it had a top-level key. Other files of a folder are not named in messages."""
    try:
        if not file.is_file():  # opening a pipe would wait
            return False
        with file.open("rb") as opened:
            return re.search(rf"^{key}\s*:".encode(), opened.read(READ_AHEAD), re.MULTILINE) is not None
    except OSError:
        return False


def _walk(node: Any, path: Where, lines: dict[Where, int], file: Path, above: tuple[Any, ...]) -> None:
    """Note the line of every key and item below `node`. Duplicate keys are found here, for the lines of both."""
    if any(node is outer for outer in above):
        line = lines.get(path)
        raise UserError("an alias of what it stands in", path=path, file=file, line=line, remedy="write it out")
    if isinstance(node, MappingNode):
        seen: dict[Any, int] = {}
        for key, value in node.value:
            name, line = _key(key), key.start_mark.line + 1
            here = (*path, name)
            if name in seen and name != "<<":
                problem = f"the key {name!r} is given twice, here and in line {seen[name]}"
                raise UserError(problem, path=here, file=file, line=line, remedy="remove one or rename it")
            seen[name] = lines[here] = line
            _walk(value, here, lines, file, (*above, node))
    elif isinstance(node, SequenceNode):
        for i, item in enumerate(node.value):
            lines[*path, i] = item.start_mark.line + 1
            _walk(item, (*path, i), lines, file, (*above, node))


def _key(node: Any) -> Any:
    if not isinstance(node, ScalarNode):
        return str(node.value)
    return int(node.value) if node.tag.endswith(":int") and node.value.lstrip("+-").isdecimal() else node.value


def _syntax(error: MarkedYAMLError, text: str, file: Path) -> UserError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    rows = text.splitlines()
    row = rows[line - 1] if line and line <= len(rows) else ""
    quoted = f": {row.strip()!r}" if row.strip() else ""
    if "\t" in row[: len(row) - len(row.lstrip())]:
        return UserError(f"a tab in the indentation{quoted}", file=file, line=line, remedy="indent with spaces")
    problem = (error.problem or error.context or "cannot be read").strip()
    return UserError(
        f"not valid YAML, {problem}{quoted}", file=file, line=line, remedy="check colons, quotes, brackets"
    )


def _noun(data: Any) -> str:
    return {list: "list", str: "text", int: "number", float: "number", bool: "truth value"}.get(type(data), "value")
