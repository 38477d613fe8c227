"""A study file as plain data, with the line of everything in it."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver

from taetpu.core.errors import KeyPath, UserError, suggest
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

LONGEST_TEXT = 500_000
MAX_VALUES = 20_000
MAX_DEPTH = 30


@dataclass(frozen=True)
class Document:
    """What a file says.

    Attributes:
        data: its plain data, a mapping.
        lines: 1-based line of each place, by its path.
    """

    file: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def locate(self, error: UserError) -> UserError:
        """The error with this file and the line of the nearest place that stands in it."""
        return error.map(self._located)

    def _located(self, error: UserError) -> UserError:
        if error.file is not None or (error.path and str(error.path[0]).startswith("--")):
            return error
        known = (error.path[:n] for n in range(len(error.path), 0, -1))
        line = next((self.lines[path] for path in known if path in self.lines), None)
        return error.within(file=self.file, line=line)


def read_document(file: Path, form: Form = STUDY) -> Document:
    """Read a YAML 1.2 file that holds a mapping.

    Raises:
        UserError: no such file, not a text file, not YAML, a key given twice, too large, not a mapping.
    """
    text = _text(file, form)
    lines: dict[KeyPath, int] = {}
    try:
        data = _plain(text, lines)
    except MarkedYAMLError as error:
        raise _syntax(error, text, file) from None
    except (YAMLError, ValueError) as error:  # a ValueError: a date or number that cannot be
        raise UserError(f"not valid YAML: {error}", file=file, remedy="quote what is meant as text") from None
    except UserError as error:
        raise Document(file, {}, lines).locate(error) from None
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
        UserError: it is not YAML, a key is given twice, or it is too large.
    """
    try:
        return _plain(text, {})
    except UserError as error:
        raise UserError(error.problem, remedy=error.remedy) from None  # its path leads into the value
    except (YAMLError, ValueError):
        raise UserError(f"{text!r} is not a YAML value", remedy="quote it, e.g. a.b='{kind: relu}'") from None


class CoreResolver(VersionedResolver):
    """Resolves numbers by YAML 1.2's core schema. The library's own rules also read `0_1` as 1 and `0b11` as 3."""

    @property
    def processing_version(self) -> Any:
        """The version of YAML, (1, 2). In 1.1 `no`, `010` and `1e-3` have other values."""
        version = super().processing_version
        if version != (1, 2):
            problem = f"YAML {'.'.join(map(str, version))} is not supported"
            raise UserError(problem, remedy="Remove the line `%YAML`: files are read as YAML 1.2.")
        return version

    def add_version_implicit_resolver(self, version: Any, tag: Any, regexp: Any, first: Any) -> None:
        super().add_version_implicit_resolver(version, tag, NUMBERS.get(str(tag).rpartition(":")[2], regexp), first)


def _plain(text: str, lines: dict[KeyPath, int]) -> Any:
    """The plain data of a YAML text; `lines` gets the line of every place in it.

    Raises:
        UserError: a key is given twice; an alias of what holds it; the text is too long, too deep or expands to too
            many values.
        YAMLError, ValueError: it is not YAML.
    """
    if len(text) > LONGEST_TEXT:
        problem = f"{len(text)} characters are more than a study takes"
        raise UserError(problem, remedy=f"at most {LONGEST_TEXT} characters; data goes into files of its own")
    yaml = YAML(typ="safe", pure=True)  # the C parser is YAML 1.1, where 1e-3 is a string
    yaml.Resolver, yaml.Composer = CoreResolver, _Bounded
    yaml.composer.warn_double_anchors = False  # the last anchor of a name counts, as YAML has it
    try:
        node = yaml.compose(text)
        _Walk(lines).walk(node, ())
        return None if node is None else yaml.constructor.construct_document(node)
    except (
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        AssertionError,
    ) as error:  # of ruamel, for odd tags and keys
        raise ValueError(str(error)) from None


class _Bounded(Composer):
    """Stops where a text has too many values or levels, before the rest of it is read."""

    values = levels = 0

    def compose_node(self, parent: Any, index: int) -> Any:
        self.values, self.levels = self.values + 1, self.levels + 1
        if self.levels > MAX_DEPTH:
            raise UserError("nested too deeply", remedy=f"at most {MAX_DEPTH} levels")
        if self.values > MAX_VALUES:
            raise UserError("there are too many values", remedy=f"at most {MAX_VALUES}")
        node = super().compose_node(parent, index)
        self.levels -= 1
        return node


def _text(file: Path, form: Form) -> str:
    try:
        if file.is_fifo() and file.parts[1:3] != ("dev", "fd"):  # as the `<(command)` of a shell is
            problem = f"this is a pipe, not a {form.name} file"
            raise UserError(problem, file=file, remedy="name a regular file")
        with file.open("rb") as opened:  # a device such as /dev/zero has no end
            content = opened.read(LONGEST_TEXT + 1)
        if len(content) > LONGEST_TEXT:
            problem = f"a {form.name} file of more than {LONGEST_TEXT} bytes"
            raise UserError(problem, file=file, remedy=f"at most {LONGEST_TEXT} bytes; data goes into separate files")
        return content.decode("utf-8-sig")
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


class _Walk:
    """Notes the line of every key and item. Duplicate keys are found here, for the lines of both.

    An alias counts as all that it stands for: a few lines of nested aliases expand to billions of values.
    """

    def __init__(self, lines: dict[KeyPath, int]):
        self.lines, self.count = lines, 0

    def walk(self, node: Any, path: KeyPath, above: tuple[Any, ...] = ()) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            remedy = f"at most {MAX_VALUES}, with every alias written out"
            raise UserError("aliases expand to too many values", path=path, remedy=remedy)
        if any(node is outer for outer in above):
            raise UserError("an alias of what it stands in", path=path, remedy="write it out")
        if len(above) > MAX_DEPTH:
            raise UserError("aliases nest too deeply", path=path, remedy=f"at most {MAX_DEPTH} levels")
        if isinstance(node, MappingNode):
            seen: dict[Any, int] = {}
            for key, value in node.value:
                if not isinstance(key, ScalarNode):
                    problem, line = "a key is a list or a mapping", key.start_mark.line + 1
                    self.lines[*path, "?"] = line
                    raise UserError(problem, path=(*path, "?"), remedy="keys are text or numbers")
                name, line = _key(key), key.start_mark.line + 1
                here = (*path, name)
                if name in seen and name != "<<":
                    problem = f"the key {name!r} is given twice, here and in line {seen[name]}"
                    self.lines[here] = line
                    raise UserError(problem, path=here, remedy="remove one or rename it")
                seen[name] = self.lines[here] = line
                self.walk(value, here, (*above, node))
        elif isinstance(node, SequenceNode):
            for i, item in enumerate(node.value):
                self.lines[*path, i] = item.start_mark.line + 1
                self.walk(item, (*path, i), (*above, node))


def _key(node: Any) -> Any:
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
