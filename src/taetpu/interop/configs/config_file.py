"""What the translations of configs share: the settings of a file, and notes about those without a counterpart."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError

OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
LARGEST = 2**20
"""The size in bytes up to which a config is read."""


@dataclass(frozen=True)
class Note:
    """A setting that is not in the study, or not exactly.

    Attributes:
        setting: Its name in the config, with its value.
        line: Its line in the config, from 1; None if it is not known.
        reason: Why, and what to write instead.
    """

    setting: str
    line: int | None
    reason: str


@dataclass
class ConfigFile:
    """The settings that a config sets.

    Attributes:
        name: The name of the study.
        given: The values, by the name of the setting.
        lines: The lines of the settings.
        notes: Notes about settings, by their names; see `note`.
    """

    name: str
    given: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notes: dict[str, Note] = field(default_factory=dict)

    def note(self, name: str, reason: str) -> None:
        """Say why a setting has no counterpart, or differs. Nothing is said about settings that the config leaves."""
        if name in self.given and name not in self.notes:
            self.notes[name] = Note(f"{name} = {self.given[name]!r}", self.lines.get(name), reason)


@dataclass
class Translation:
    """The content of a study file that has the settings of a config.

    Attributes:
        task: The settings of the task.
        model: The settings of the model.
        train: The settings of training.
        more: Other keys of the study file, such as `measure`.
    """

    task: dict[str, Any]
    model: dict[str, Any]
    train: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> dict[str, Any]:
        """The baseline."""
        return {"task": self.task, "model": self.model, "train": self.train}


@dataclass(frozen=True)
class System:
    """A training system whose configs are translated.

    Attributes:
        title: Its name.
        recognises: A function that returns whether a file is one of its configs, given its path and text.
        read: A function that reads a file, which may have several configs, given its path and text.
        translate: A function that translates the values of all settings. It adds notes to the config.
        defaults: The values of settings that a config does not set.
        whole: The settings whose value is a list by nature, not a list of values to try.
    """

    title: str
    recognises: Callable[[Path, str], bool]
    read: Callable[[Path, str], list[ConfigFile]]
    translate: Callable[[Mapping[str, Any], ConfigFile], Translation]
    defaults: Mapping[str, Any]
    whole: tuple[str, ...] = ()


def constant(node: ast.expr, known: Mapping[str, Any] | None = None) -> Any:
    """Return the value of a Python expression of literals, sums, products and names with known values.

    Raises:
        ValueError: If it is any other expression.
    """
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = constant(node.left, known), constant(node.right, known)
        if not all(isinstance(side, int | float) and abs(side) < 1e18 for side in (left, right)):
            raise ValueError("not a number")
        try:
            return OPERATIONS[type(node.op)](left, right)
        except ArithmeticError as error:
            raise ValueError(str(error)) from None
    if isinstance(node, ast.Name) and known is not None and node.id in known:
        return known[node.id]
    return ast.literal_eval(node)


def parse_constant(text: str) -> Any:
    """Return the value of a Python literal, or of a sum or product of numbers. Raises `ValueError` for other text."""
    try:
        return constant(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(str(error)) from None


def read_text(file: Path) -> str:
    """Return the text of a config. Raises `UserError` if it cannot be read."""
    try:
        if file.stat().st_size > LARGEST:
            remedy = "Name the config alone, not a file with data."
            raise UserError(f"a config has at most {LARGEST:,} bytes", file=file, remedy=remedy)
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read this config: {error.strerror}", file=file) from None
    except UnicodeDecodeError:
        raise UserError("this config is not text", file=file, remedy="Name a text file in UTF-8.") from None


def divide(total: float, part: float) -> int:
    """Return the rounded ratio of two numbers, at least 1."""
    return max(1, round(total / part)) if part else 1
