"""YAML files as plain data, with the line of every key."""

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
"""Patterns of the plain scalars that are numbers, by the last part of their YAML tag."""


@dataclass(frozen=True)
class Form:
    """A kind of YAML file, as error messages describe it.

    Attributes:
        name: The noun for the file's content, such as `study`.
        key: A top-level key that all files of this kind have.
        example: An example of the start of such a file.
        start: The remedy for an empty or missing file.
    """

    name: str
    key: str
    example: str
    start: str


STUDY = Form("study", "study", "study: NAME ...", "Run `taetpu new NAME` to write a study.")
READ_AHEAD = 1 << 16
"""Number of bytes at the start of a file that are searched for `Form.key`."""

LONGEST_TEXT = 500_000
MAX_VALUES = 20_000
MAX_DEPTH = 30


@dataclass(frozen=True)
class Document:
    """The content of a YAML file.

    Attributes:
        file: The path of the file.
        data: The plain data of the file, which is a mapping.
        lines: The line of each key path, counted from 1.
    """

    file: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def locate(self, error: UserError) -> UserError:
        """Return the error with this file and the line of the longest prefix of its path."""
        return error.map(self._located)

    def _located(self, error: UserError) -> UserError:
        if error.file is not None or (error.path and str(error.path[0]).startswith("--")):
            return error
        known = (error.path[:n] for n in range(len(error.path), 0, -1))
        line = next((self.lines[path] for path in known if path in self.lines), None)
        return error.within(file=self.file, line=line)


def read_document(file: Path, form: Form = STUDY) -> Document:
    """Read a YAML 1.2 file that contains a mapping.

    Raises:
        UserError: If the file is missing, not UTF-8, not YAML, too large or not a mapping, or has a duplicate key.
    """
    text = _text(file, form)
    lines: dict[KeyPath, int] = {}
    try:
        data = _plain(text, lines)
    except MarkedYAMLError as error:
        raise _syntax(error, text, file) from None
    except (YAMLError, ValueError) as error:  # ValueError: an invalid date or number
        raise UserError(f"not valid YAML: {error}", file=file, remedy="Quote text values.") from None
    except UserError as error:
        raise Document(file, {}, lines).locate(error) from None
    if data is None:
        raise UserError("the file is empty", file=file, remedy=form.start)
    if not isinstance(data, dict):
        raise UserError(
            f"a {form.name} file must be a mapping of keys to values, not a {_noun(data)}",
            file=file,
            line=1,
            remedy=form.example,
        )
    return Document(file, data, lines)


def parse_value(text: str) -> Any:
    """Parse a YAML scalar or flow collection that was given on the command line.

    Raises:
        UserError: If the text is not YAML, is too large, or has a duplicate key.
    """
    try:
        return _plain(text, {})
    except UserError as error:
        raise UserError(error.problem, remedy=error.remedy) from None  # the path inside the value is dropped
    except (YAMLError, ValueError):
        raise UserError(f"{text!r} is not a YAML value", remedy="Quote it, e.g. a.b='{kind: relu}'.") from None


class CoreResolver(VersionedResolver):
    """A resolver for the core schema of YAML 1.2. The default rules of ruamel also read `0_1` as 1 and `0b11` as 3."""

    @property
    def processing_version(self) -> Any:
        """The YAML version, (1, 2). Others are rejected, because YAML 1.1 reads `no`, `010` and `1e-3` differently."""
        version = super().processing_version
        if version != (1, 2):
            problem = f"YAML {'.'.join(map(str, version))} is not supported"
            raise UserError(problem, remedy="Remove the line `%YAML`: files are read as YAML 1.2.")
        return version

    def add_version_implicit_resolver(self, version: Any, tag: Any, regexp: Any, first: Any) -> None:
        """Register a resolver. For numbers, the patterns in `NUMBERS` replace the given pattern."""
        super().add_version_implicit_resolver(version, tag, NUMBERS.get(str(tag).rpartition(":")[2], regexp), first)


def _plain(text: str, lines: dict[KeyPath, int]) -> Any:
    """Parse a YAML text.

    Args:
        text: The text.
        lines: A dict to which the line of every key path is added.

    Raises:
        UserError: If a key is given twice, an alias contains itself, or the text is too long, is nested too deeply or
            expands to too many values.
        YAMLError, ValueError: If the text is not YAML.
    """
    if len(text) > LONGEST_TEXT:
        problem = f"the text has {len(text)} characters, more than {LONGEST_TEXT}"
        raise UserError(problem, remedy="Move data to separate files.")
    yaml = YAML(typ="safe", pure=True)  # the C parser is YAML 1.1, where 1e-3 is a string
    yaml.Resolver, yaml.Composer = CoreResolver, _Bounded
    yaml.composer.warn_double_anchors = False  # YAML allows repeated anchors: an alias refers to the last one
    try:
        node = yaml.compose(text)
        _Walk(lines).visit(node, ())
        return None if node is None else yaml.constructor.construct_document(node)
    except (
        TypeError,
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        AssertionError,
    ) as error:  # ruamel raises these errors for unusual tags and keys
        raise ValueError(str(error)) from None


class _Bounded(Composer):
    """A composer that raises a `UserError` at the first value or nesting level above the limit."""

    values = levels = 0

    def compose_node(self, parent: Any, index: int) -> Any:
        self.values, self.levels = self.values + 1, self.levels + 1
        if self.levels > MAX_DEPTH:
            raise UserError("nested too deeply", remedy=f"Use at most {MAX_DEPTH} levels.")
        if self.values > MAX_VALUES:
            raise UserError("too many values", remedy=f"Use at most {MAX_VALUES}.")
        node = super().compose_node(parent, index)
        self.levels -= 1
        return node


def _text(file: Path, form: Form) -> str:
    try:
        if file.is_fifo() and file.parts[1:3] != ("dev", "fd"):  # a shell's `<(command)` is allowed
            problem = f"this is a pipe, not a {form.name} file"
            raise UserError(problem, file=file, remedy="Pass a regular file.")
        with file.open("rb") as opened:  # a device such as /dev/zero has no end
            content = opened.read(LONGEST_TEXT + 1)
        if len(content) > LONGEST_TEXT:
            problem = f"the {form.name} file is larger than {LONGEST_TEXT} bytes"
            raise UserError(problem, file=file, remedy="Move data to separate files.")
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        near = [other.name for other in file.parent.glob("*.y*ml") if _has_key(other, form.key)]
        remedy = suggest(file.name, near) if near else form.start
        raise UserError("no such file", file=file, remedy=remedy) from None
    except IsADirectoryError:
        raise UserError(f"this is a folder, not a {form.name} file", file=file, remedy="Pass the YAML file.") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError("not a UTF-8 text file", file=file, line=line, remedy="Save it as UTF-8.") from None
    except OSError as error:
        raise UserError(f"cannot read: {error.strerror}", file=file) from None


def _has_key(file: Path, key: str) -> bool:
    """Return whether a file seems to have a given top-level key. Error messages suggest only such files."""
    try:
        if not file.is_file():  # opening a pipe would block
            return False
        with file.open("rb") as opened:
            return re.search(rf"^{key}\s*:".encode(), opened.read(READ_AHEAD), re.MULTILINE) is not None
    except OSError:
        return False


class _Walk:
    """A visitor that records the line of every key and item, and rejects duplicate keys and excessive aliases.

    All values to which an alias expands are counted, because a few lines of nested aliases can expand to billions of
    values.
    """

    def __init__(self, lines: dict[KeyPath, int]):
        self.lines, self.count = lines, 0

    def visit(self, node: Any, path: KeyPath, above: tuple[Any, ...] = ()) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            remedy = f"Use at most {MAX_VALUES} values, counting every alias in full."
            raise UserError("aliases expand to too many values", path=path, remedy=remedy)
        if any(node is outer for outer in above):
            raise UserError("an alias contains itself", path=path, remedy="Write the value out.")
        if len(above) > MAX_DEPTH:
            raise UserError("aliases nest too deeply", path=path, remedy=f"Use at most {MAX_DEPTH} levels.")
        if isinstance(node, MappingNode):
            seen: dict[Any, int] = {}
            for key, value in node.value:
                if not isinstance(key, ScalarNode):
                    problem, line = "a key is a list or a mapping", key.start_mark.line + 1
                    self.lines[*path, "?"] = line
                    raise UserError(problem, path=(*path, "?"), remedy="Use text or a number as key.")
                name, line = _key(key), key.start_mark.line + 1
                here = (*path, name)
                if name in seen and name != "<<":
                    problem = f"the key {name!r} is given twice, here and in line {seen[name]}"
                    self.lines[here] = line
                    raise UserError(problem, path=here, remedy="Remove or rename one.")
                seen[name] = self.lines[here] = line
                self.visit(value, here, (*above, node))
        elif isinstance(node, SequenceNode):
            for i, item in enumerate(node.value):
                self.lines[*path, i] = item.start_mark.line + 1
                self.visit(item, (*path, i), (*above, node))


def _key(node: Any) -> Any:
    return int(node.value) if node.tag.endswith(":int") and node.value.lstrip("+-").isdecimal() else node.value


def _syntax(error: MarkedYAMLError, text: str, file: Path) -> UserError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    rows = text.splitlines()
    row = rows[line - 1] if line and line <= len(rows) else ""
    quoted = f": {row.strip()!r}" if row.strip() else ""
    if "\t" in row[: len(row) - len(row.lstrip())]:
        return UserError(f"a tab in the indentation{quoted}", file=file, line=line, remedy="Indent with spaces.")
    problem = (error.problem or error.context or "cannot be read").strip()
    return UserError(
        f"not valid YAML, {problem}{quoted}", file=file, line=line, remedy="Check colons, quotes and brackets."
    )


def _noun(data: Any) -> str:
    return {list: "list", str: "text", int: "number", float: "number", bool: "truth value"}.get(type(data), "value")
