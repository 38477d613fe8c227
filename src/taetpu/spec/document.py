"""YAML files, and dictionaries in their place, as plain data, with the line of every key."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver

from taetpu.core.errors import KeyPath, UserError, suggest
from taetpu.core.number_parsing import DECIMAL, INTEGER
from taetpu.store.backend import default_root
from taetpu.store.gcs_client import parse_address

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
        start: The remedy for a file that is missing, empty or not a mapping.
    """

    name: str
    start: str


STUDY = Form("study", "Run `taetpu new NAME` to write a study.")

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*")
"""Pattern of texts that need no quotes."""

LONGEST_FILE = 500_000  # maximum number of bytes in a file
MAX_VALUES = 20_000
MAX_DEPTH = 30
MAX_STORED = 8  # maximum number of stored studies in a remedy
NOT_IN_FILE = ("--", "sets[")
"""How the first part of a path begins if the path is that of an option or an argument, not of a value in the file."""
MAX_BITS = 1024
"""Maximum size of an integer in a dictionary. Larger ones exceed every number that a study can use."""


@dataclass(frozen=True)
class PlainKey:
    """A key such as `1e3` or `true`, which YAML does not read as text. Messages quote what was written."""

    text: str

    def __repr__(self) -> str:
        return self.text


class KeyConstructor(SafeConstructor):
    """Constructs plain data, and a `PlainKey` for keys that are neither text nor integers."""


PLAIN_KEY = "!plain-key"
KeyConstructor.add_constructor(PLAIN_KEY, lambda constructor, node: PlainKey(node.value))


@dataclass(frozen=True)
class Document:
    """The content of a YAML file, or of a dictionary in its place.

    Attributes:
        file: The path of the file; None for a dictionary.
        data: The plain data of the file, which is a mapping.
        lines: The line of each key path, counted from 1; None for those of a dictionary.
    """

    file: Path | None
    data: dict[str, Any]
    lines: dict[KeyPath, int | None] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder that paths in the document are relative to: that of the file, or the current folder."""
        return Path.cwd() if self.file is None else self.file.resolve().parent

    def locate(self, error: UserError) -> UserError:
        """Return the error with this file and the line of its path, or of the longest prefix that is in the file.

        Errors that were found together are ordered by line.
        """
        first, *others = sorted(map(self._located, error.all_errors), key=lambda mistake: mistake.line or 0)
        first.others = tuple(others)
        return first

    def _located(self, error: UserError) -> UserError:
        if error.file is not None or (error.path and str(error.path[0]).startswith(NOT_IN_FILE)):
            return error
        path = tuple(part if isinstance(part, int) else str(part) for part in error.path)
        known = (path[:n] for n in range(len(path), 0, -1))
        line = next((self.lines[path] for path in known if path in self.lines), None)
        return error.within(file=self.file, line=line)


def read_document(source: Path | str | Mapping[str, Any], form: Form = STUDY) -> Document:
    """Read a YAML 1.2 file that contains a mapping, or copy a dictionary with the content of such a file.

    Raises:
        UserError: If the file is missing, not UTF-8, not YAML, too large or not a mapping, or the dictionary contains a
            value that a YAML file cannot.
    """
    lines: dict[KeyPath, int | None] = {}
    if isinstance(source, Mapping):
        return Document(None, _copy_plain(source, (), lines), lines)
    if not isinstance(source, str | PathLike):
        problem = f"a {form.name} must be a YAML file or a dictionary, got {type(source).__name__}"
        raise UserError(problem, remedy=form.start)
    file = Path(source)
    text = _text(file, form)
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
        problem = f"a {form.name} file must be a mapping of keys to values, not a {type(data).__name__}"
        raise UserError(problem, file=file, line=1, remedy=form.start)
    return Document(file, data, lines)


def parse_value(text: str) -> Any:
    """Parse a YAML scalar or flow collection that was given on the command line.

    Raises:
        UserError: If the text is not YAML, has a duplicate key, or contains too many values.
    """
    try:
        return _plain(text, {})
    except UserError as error:
        raise UserError(error.problem, remedy=error.remedy) from None  # the path inside the value is dropped
    except (YAMLError, ValueError):
        raise UserError(f"{text!r} is not a YAML value", remedy="Quote the value, e.g. a.b='{kind: relu}'.") from None


def format_brief(value: Any) -> str:
    """Format a value on one line. A component is formatted as its kind, without its fields."""
    return str(value["kind"]) if isinstance(value, Mapping) and "kind" in value else format_value(value)


def format_value(value: Any, quote: bool = False) -> str:
    """Format a value on one line, in the notation of a study file. For `quote`, see `format_yaml`."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {format_value(v, quote)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(format_value(v, quote) for v in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    quoted = quote and isinstance(value, str) and not PLAIN.fullmatch(value)
    return json.dumps(value) if quoted else "none" if value is None else str(value)


def format_yaml(value: Any) -> str:
    """Return a value as YAML on one line, with quotes around text that YAML would read as something else."""
    return format_value(value, quote=True)


class CoreResolver(VersionedResolver):
    """A resolver for the core schema of YAML 1.2, in which a date is a text.

    The default rules of ruamel also read `0_1` as 1 and `0b11` as 3.
    """

    def add_version_implicit_resolver(self, version: Any, tag: Any, regexp: Any, first: Any) -> None:
        """Register a resolver. For numbers, the patterns in `NUMBERS` replace the given pattern."""
        name = str(tag).rpartition(":")[2]
        if name != "timestamp":
            super().add_version_implicit_resolver(version, tag, NUMBERS.get(name, regexp), first)


def _plain(text: str, lines: dict[KeyPath, int | None]) -> Any:
    """Parse a YAML text.

    Args:
        text: The text.
        lines: A dict to which the line of every key path is added.

    Raises:
        UserError: If the text is nested too deeply or expands to too many values.
        YAMLError, ValueError: If the text is not YAML.
    """
    yaml = YAML(typ="safe", pure=True)  # the C parser is YAML 1.1, where 1e-3 is a string
    yaml.Resolver = CoreResolver
    yaml.Constructor = KeyConstructor
    yaml.composer.warn_double_anchors = False  # YAML allows repeated anchors: an alias refers to the last one
    try:
        node = yaml.compose(text)
        _record_lines(node, (), lines)
        return None if node is None else yaml.constructor.construct_document(node)
    except RecursionError:
        raise _too_deep(()) from None
    except (TypeError, AttributeError, LookupError, OverflowError, AssertionError) as error:
        raise ValueError(str(error)) from None  # ruamel raises these errors for unusual tags and keys


def _record_lines(node: Any, path: KeyPath, lines: dict[KeyPath, int | None]) -> None:
    """Add the line of every key and item below a node to `lines`.

    The values of aliases count too, because a few lines of nested aliases can expand to billions of values.

    Raises:
        UserError: If there are too many levels or values.
    """
    _check_limits(path, lines)
    items: list[tuple[Any, Any, Any]] = []
    if isinstance(node, MappingNode):
        items = [(_key(key), key, value) for key, value in node.value]
        for key, _ in node.value:
            if key.tag.rpartition(":")[2] in ("float", "bool", "null"):
                key.tag = PLAIN_KEY
    elif isinstance(node, SequenceNode):
        items = [(i, item, item) for i, item in enumerate(node.value)]
    for name, place, value in items:
        lines[*path, name] = place.start_mark.line + 1
        _record_lines(value, (*path, name), lines)


def _copy_plain(value: Any, path: KeyPath, lines: dict[KeyPath, int | None]) -> Any:
    """Return a copy of a value with lists and dicts in place of other sequences and mappings, as a YAML file gives it.

    A range, for example, becomes a list.

    Args:
        value: The value.
        path: The path of the value.
        lines: A dict to which every key path below the value is added.

    Raises:
        UserError: If there is a value or key that a study file cannot contain, or too many levels or values.
    """
    _check_limits(path, lines)
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, PathLike):
        value = str(value)
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int) and value.bit_length() <= MAX_BITS:
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise UserError(f"the key {key!r} is not a text", path=path, remedy="Use texts as keys.")
        items = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        items = enumerate(value)
    elif isinstance(value, int):
        problem = f"an integer of {value.bit_length()} bits is too large"
        raise UserError(problem, path=path, remedy=f"Use at most {MAX_BITS} bits.")
    else:
        remedy = "Use numbers, texts, True, False, None, lists and dictionaries."
        raise UserError(f"a study cannot contain a {type(value).__name__}", path=path, remedy=remedy)
    copies = {}
    for key, item in items:
        lines[*path, key] = None
        copies[key] = _copy_plain(item, (*path, key), lines)
    return copies if isinstance(value, Mapping) else list(copies.values())


def _check_limits(path: KeyPath, lines: Mapping[KeyPath, int | None]) -> None:
    """Raise `UserError` if a path has too many levels, or there are too many values."""
    if len(path) > MAX_DEPTH:
        raise _too_deep(path[:2])
    if len(lines) > MAX_VALUES:
        problem = f"more than {MAX_VALUES} values after expansion of all aliases"
        raise UserError(problem, path=path, remedy="Move data to separate files.")


def _too_deep(path: KeyPath) -> UserError:
    remedy = f"Use at most {MAX_DEPTH} levels, and do not use an alias inside its own value."
    return UserError("nested too deeply", path=path, remedy=remedy)


def _key(node: Any) -> Any:
    whole = node.tag.endswith(":int") and node.value.lstrip("+-").isdecimal()
    return int(node.value) if whole else str(node.value)


def _text(file: Path, form: Form) -> str:
    try:
        with file.open("rb") as opened:  # a device such as /dev/zero has no end
            content = opened.read(LONGEST_FILE + 1)
        if len(content) > LONGEST_FILE:
            problem = f"the {form.name} file is larger than {LONGEST_FILE} bytes"
            raise UserError(problem, file=file, remedy="Move data to separate files.")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError("no such file", file=file, remedy=_nearest_files(file, form)) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError("not a UTF-8 text file", file=file, line=line, remedy="Save the file as UTF-8.") from None
    except OSError as error:
        problem = f"cannot read the {form.name} file: {error.strerror}"
        raise UserError(problem, file=file, remedy="Pass a readable YAML file.") from None
    if "\0" in text:  # UTF-16 without a byte order mark is also valid UTF-8
        raise UserError("not a UTF-8 text file", file=file, line=1, remedy="Save the file as UTF-8.")
    return text


def _nearest_files(file: Path, form: Form) -> str:
    """Return a remedy for a missing file: YAML files in its folder, and studies of this name that are stored.

    A study's folder holds the study as it was run, but not the file from which it was run.
    """
    near = [other.name for other in file.parent.glob("*.y*ml")]
    remedy = suggest(file.name, near) if near else form.start
    root = default_root()
    if form is not STUDY or parse_address(root) is not None or not Path(root).is_dir():
        return remedy
    stored = sorted(path.parent.name for path in Path(root).glob("*/study.yaml"))
    if file.name in stored:
        return f"{remedy} A study {file.name} is stored under {root}: see `taetpu status {file.name}`."
    return f"{remedy} Stored under {root}: {', '.join(stored[:MAX_STORED])}." if stored else remedy


def _syntax(error: MarkedYAMLError, text: str, file: Path) -> UserError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    rows = text.splitlines()
    row = rows[line - 1] if line and line <= len(rows) else ""
    quoted = f": {row.strip()!r}" if row.strip() else ""
    if isinstance(error, DuplicateKeyError):
        return UserError(
            f"a key is given twice{quoted}", file=file, line=line, remedy="Remove or rename one of the keys."
        )
    problem = (error.problem or error.context or "cannot be read").strip()
    return UserError(
        f"not valid YAML, {problem}{quoted}",
        file=file,
        line=line,
        remedy="Check colons, quotes and brackets, and indent with spaces.",
    )
