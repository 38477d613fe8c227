"""Formats of item files, which have an object in each line. The format follows from the fields of the first row.

Contexts and continuations are those of lm-evaluation-harness 0.4 for tasks without examples: a space separates them,
and the texts of HellaSwag lose the marks of WikiHow.

Source: Gao et al. 2024, "The Language Model Evaluation Harness", https://zenodo.org/records/12608602.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from taetpu.core.errors import UserError, errors_at
from taetpu.data.digests import digest_file
from taetpu.data.document_files import explained, numbered_lines

Kind = Literal["multiple-choice", "minimal-pairs", "last-word", "cloze", "generation"]
"""The kinds of slot `eval_metric` that read items."""

GROUPS = ("linguistics_term", "UID")
"""Fields by which minimal pairs are grouped, the first that a row has: BLiMP's phenomenon, and its paradigm."""
BLANK = "_"
MOST_FIELDS = 12


@dataclass(frozen=True)
class Item:
    """An item.

    Attributes:
        row: The line in the file, from 1.
        pairs: The context and the continuation of each choice. The continuation is scored.
        label: The place of the correct choice.
        group: The group, such as a phenomenon; empty without groups.
    """

    row: int
    pairs: tuple[tuple[str, str], ...]
    label: int = 0
    group: str = ""


@dataclass(frozen=True)
class ItemFile:
    """The items of a file.

    Attributes:
        path: The file.
        sha256: The digest of its content.
        format: The name of the format, a key of `FORMATS`.
        items: The items, in the order of the file.
    """

    path: Path
    sha256: str
    format: str
    items: tuple[Item, ...]


class _Row:
    """A row of a file, whose fields are checked as they are read."""

    def __init__(self, fields: Mapping[str, Any], number: int, file: Path):
        self.fields, self.number, self.place = fields, number, f"row {number} of {file}"

    def error(self, problem: str, remedy: str = "Repair or remove the row.") -> UserError:
        return UserError(f"{self.place} {problem}", path=("file",), remedy=remedy)

    def value(self, field: str) -> Any:
        if field not in self.fields:
            names = ", ".join(map(repr, [*self.fields][:MOST_FIELDS])) or "nothing"
            raise self.error(f"has no {field!r}, but {names}", f"Add {field!r}, or remove the row.")
        return self.fields[field]

    def text(self, field: str) -> str:
        return self.as_text(self.value(field), repr(field))

    def as_text(self, value: Any, what: str) -> str:
        if not isinstance(value, str) or not value.strip():
            shown = "empty" if isinstance(value, str) else f"{str(value)[:40]!r}, not a text"
            raise self.error(f"has {what}, which is {shown}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.error(f"has half of a surrogate pair in {what}: {value[error.start]!a}") from None
        return value

    def texts(self, value: Any, what: str) -> list[str]:
        if not isinstance(value, list) or len(value) < 2:
            raise self.error(f"has {what}, which is {str(value)[:40]!r}, not a list of two or more texts")
        return [self.as_text(text, f"choice {number} of {what}") for number, text in enumerate(value)]

    def choice(self, field: str, label: Any, names: list[Any]) -> int:
        """Return the place of the choice that a label names."""
        if isinstance(label, bool) or str(label) not in map(str, names):
            known = ", ".join(map(str, names))
            raise self.error(
                f"has {field!r}: {label!r}, which names no choice", f"Use one of {known}, or remove the row."
            )
        return [*map(str, names)].index(str(label))


@dataclass(frozen=True)
class Format:
    """A format of rows.

    Attributes:
        kind: The kind of score.
        fields: The fields that every row has, by which the format is recognised.
        parse: A function that returns the item of a row.
        equal_choices: Whether all items have the same number of choices.
    """

    kind: Kind
    fields: tuple[str, ...]
    parse: Callable[[_Row], Item]
    equal_choices: bool = True


def read_items(file: Path, kind: str | None = None, by: str | None = None) -> ItemFile:
    """Return the items of a file.

    Args:
        file: The file, with an object in each line. It may be compressed, as `.jsonl.gz`.
        kind: The kind of score that reads them; None for that of the file's format.
        by: The field that groups the items; by default, one of `GROUPS` for minimal pairs.

    Raises:
        UserError: If the file cannot be read, has another format, or has an invalid row.
    """
    with errors_at("file"), explained(file):
        name, items = _parse_rows(file, kind, by)
    if not items:
        raise UserError(f"{file} has no items", path=("file",), remedy="Use a file with an object in each line.")
    return ItemFile(file, digest_file(file), name, tuple(items))


def _parse_rows(file: Path, kind: str | None, by: str | None) -> tuple[str, list[Item]]:
    """Return the name of the format, and the items; see `read_items`."""
    items: list[Item] = []
    name, choices = "", 0
    for number, line in numbered_lines(file):
        if not line.strip():
            continue
        row = _Row(_parse_object(line, number, file), number, file)
        name = name or format_of_row(row.fields, kind, row.place)
        form = FORMATS[name]
        for field in form.fields:
            row.value(field)
        item = replace(form.parse(row), group=_group(row, by, form.kind))
        choices = choices or len(item.pairs)
        if form.equal_choices and len(item.pairs) != choices:
            problem = f"has {len(item.pairs)} choices, and row {items[0].row} has {choices}"
            raise row.error(problem, f"Give each row {choices} choices: the format {name} has equally many.")
        if items and bool(items[0].group) != bool(item.group):
            raise row.error(f"has the group {item.group!r}, and row {items[0].row} {items[0].group!r}")
        items.append(item)
    return name, items


def format_of_row(fields: Mapping[str, Any], kind: str | None, place: str) -> str:
    """Return the name of the format of a row with these fields, among the formats of a kind.

    Raises:
        UserError: If the row has the fields of no format.
    """
    known = {name: form for name, form in FORMATS.items() if kind in (None, form.kind)}
    fitting = [name for name, form in known.items() if fields.keys() >= {*form.fields}]
    if fitting:
        return fitting[0]
    names = ", ".join(map(repr, [*fields][:MOST_FIELDS])) or "nothing"
    shown = "; ".join(f"{name}: {', '.join(form.fields)}" for name, form in known.items())
    if other := [form.kind for form in FORMATS.values() if fields.keys() >= {*form.fields}]:
        remedy = f"Set kind: {other[0]}, or use rows with these fields: {shown}."
    else:
        remedy = f"Use rows with the fields of a format: {shown}."
    raise UserError(f"{place} has the fields {names}, of no format of {kind or 'items'}", path=("file",), remedy=remedy)


def _parse_object(line: str, number: int, file: Path) -> dict[str, Any]:
    remedy = "Write one object in each line."
    try:
        fields = json.loads(line)
    except ValueError as error:
        problem = f"row {number} of {file} is not JSON: {error}"
        raise UserError(problem, path=("file",), remedy=remedy) from None
    if not isinstance(fields, dict):
        problem = f"row {number} of {file} is {str(fields)[:40]!r}, not an object"
        raise UserError(problem, path=("file",), remedy=remedy)
    return fields


def _group(row: _Row, by: str | None, kind: Kind) -> str:
    if by is not None:
        return str(row.value(by))
    field = next((name for name in GROUPS if name in row.fields), None) if kind == "minimal-pairs" else None
    return "" if field is None else row.text(field)


# --- formats ---------------------------------------------------------------------------------------------------------


def _with_choices(row: _Row, context: str, choices: list[str], label: int) -> Item:
    return Item(row.number, tuple((context, f" {choice}") for choice in choices), label)


def _hellaswag(row: _Row) -> Item:
    """Return the item of a row of HellaSwag. Rows of the published files also have the parts of `ctx`."""
    row.text("ctx")
    if {"activity_label", "ctx_a", "ctx_b"} <= row.fields.keys():
        parts = [row.fields[name] for name in ("activity_label", "ctx_a", "ctx_b")]
        activity, first, second = (part if isinstance(part, str) else "" for part in parts)
        context = _without_marks(f"{activity}: {first} {second.capitalize()}")
    else:
        context = _without_marks(row.text("ctx"))
    endings = row.texts(row.value("endings"), "'endings'")
    choices = [row.as_text(_without_marks(ending), f"choice {i} of 'endings'") for i, ending in enumerate(endings)]
    return _with_choices(row, context, choices, row.choice("label", row.value("label"), [*range(len(choices))]))


def _without_marks(text: str) -> str:
    """Return a text of HellaSwag without the marks of WikiHow."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _arc(row: _Row) -> Item:
    choices = row.value("choices")
    if not isinstance(choices, dict) or not {"text", "label"} <= choices.keys():
        raise row.error(f"has 'choices': {str(choices)[:40]!r}", "Write {text: [...], label: [...]}.")
    texts, labels = row.texts(choices["text"], "'choices'"), choices["label"]
    if not isinstance(labels, list) or len(labels) != len(texts) or len({*map(str, labels)}) < len(labels):
        raise row.error(f"has {len(texts)} choices with the labels {str(labels)[:60]}", "Give each choice one label.")
    label = row.choice("answerKey", row.value("answerKey"), labels)
    return _with_choices(row, f"Question: {row.text('question')}\nAnswer:", texts, label)


def _blimp(row: _Row) -> Item:
    pair = [row.text("sentence_good"), row.text("sentence_bad")]
    if pair[0] == pair[1]:
        raise row.error("has two equal sentences")
    return _with_choices(row, "", pair, 0)


def _lambada(row: _Row) -> Item:
    context, space, word = row.text("text").rpartition(" ")
    if not space or not word:
        raise row.error(f"has a text without a last word: {row.fields['text'][-40:]!r}")
    return _with_choices(row, context, [word], 0)


def _winogrande(row: _Row) -> Item:
    """Return the item of a row of WinoGrande, whose text after the blank is scored (Trinh and Le 2018)."""
    before, blank, after = row.text("sentence").partition(BLANK)
    if not blank or BLANK in after or not after.strip():
        raise row.error(f"has no text after one blank {BLANK!r}: {row.fields['sentence'][:60]!r}")
    options = [row.text("option1"), row.text("option2")]
    if options[0] == options[1]:
        raise row.error("has two equal options")
    label = row.choice("answer", row.value("answer"), ["1", "2"])
    return Item(row.number, tuple((before + option, f" {after.strip()}") for option in options), label)


def _answer(row: _Row) -> Item:
    return Item(row.number, ((row.text("prompt"), row.text("answer")),))


FORMATS = {
    "hellaswag": Format("multiple-choice", ("ctx", "endings", "label"), _hellaswag),
    "arc": Format("multiple-choice", ("question", "choices", "answerKey"), _arc, equal_choices=False),
    "blimp": Format("minimal-pairs", ("sentence_good", "sentence_bad"), _blimp),
    "winogrande": Format("cloze", ("sentence", "option1", "option2", "answer"), _winogrande),
    "prompts": Format("generation", ("prompt", "answer"), _answer),
    "lambada": Format("last-word", ("text",), _lambada),
}
