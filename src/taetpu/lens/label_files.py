"""Files with labelled texts for probes, and with pairs of texts for patching."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError, suggest
from taetpu.lens.token_texts import read_text, split_lines

EXAMPLE = '{"text": "a dog", "label": "animal"}'
TYPES = {str: "a text", list: "a list of token numbers", int: "a token number"}
PAIR_FIELDS = ("clean", "corrupted", "answer", "wrong")
PAIR = '{"clean": "a cat and a", "corrupted": "a dog and a", "answer": " cat", "wrong": " dog"}'


def read_labels(file: str | Path) -> tuple[list[Any], list[Any]]:
    """Return the texts and the labels of a file.

    A `.jsonl` file has an object in each line, with `text` (or `ids` for token numbers), and `label` for the text or
    `labels` with a label or null for each token. A `.csv` file has the columns `text` and `label`.

    Raises:
        UserError: if the file has another ending, cannot be read, or a line lacks a text or a label.
    """
    path = Path(file)
    if path.suffix not in (".jsonl", ".csv"):
        remedy = f"Use a .csv file with the columns text and label, or a .jsonl file with lines such as {EXAMPLE}."
        raise UserError(f"unknown file format {path.suffix or path.name!r}", file=path, remedy=remedy)
    text = read_text(path)
    rows = _csv_rows(text, path) if path.suffix == ".csv" else _json_rows(text, path, EXAMPLE)
    inputs, labels = [], []
    for line, row in rows:
        texts = [name for name in ("text", "ids") if row.get(name) is not None]
        marks = [row[name] for name in ("label", "labels") if row.get(name) is not None]
        if len(texts) != 1 or len(marks) != 1:
            wanted = "text and ids" if len(texts) != 1 else "label and labels"
            problem = f"expected one of the fields {wanted}, found {', '.join(map(str, row)) or 'none'}"
            raise UserError(problem, file=path, line=line, remedy=f"Write lines such as {EXAMPLE}.")
        _check_type(row, texts[0], (str,) if texts[0] == "text" else (list,), path, line)
        inputs.append(row[texts[0]])
        labels.append(marks[0])
    return inputs, labels


def _csv_rows(text: str, path: Path) -> list[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text))
    try:
        return [(reader.line_num, {name: value for name, value in row.items() if name}) for row in reader]
    except csv.Error as error:
        remedy = f"Use a .jsonl file, whose texts may have any length and character, with lines such as {EXAMPLE}."
        raise UserError(f"not CSV: {error}", file=path, line=reader.line_num + 1, remedy=remedy) from None


def read_pair_file(file: str | Path) -> dict[str, list[Any]]:
    """Return the columns `clean`, `corrupted`, `answer` and `wrong` of a `.jsonl` file with an object in each line.

    Texts may be lists of token numbers. `wrong` is empty if no line has it.

    Raises:
        UserError: if the file cannot be read, or a line lacks a field or has an unknown one.
    """
    path = Path(file)
    if path.suffix != ".jsonl":
        remedy = f"Use a .jsonl file with lines such as {PAIR}."
        raise UserError(f"unknown file format {path.suffix or path.name!r}", file=path, remedy=remedy)
    rows = _json_rows(read_text(path), path, PAIR)
    if not rows:
        raise UserError("the file has no pairs", file=path, remedy=f"Write lines such as {PAIR}.")
    names = ["clean", "corrupted", "answer", *(["wrong"] if any("wrong" in row for _, row in rows) else [])]
    for line, row in rows:
        if unknown := [name for name in row if name not in PAIR_FIELDS]:
            problem = f"unknown field {unknown[0]!r}"
            raise UserError(problem, file=path, line=line, remedy=suggest(unknown[0], PAIR_FIELDS))
        if missing := [name for name in names if name not in row]:
            problem = f"the field {missing[0]} is missing"
            raise UserError(problem, file=path, line=line, remedy=f"Write lines such as {PAIR}.")
        for name in names:
            _check_type(row, name, (str, list) if name in ("clean", "corrupted") else (str, int), path, line)
    return {name: [row[name] for _, row in rows] if name in names else [] for name in (*names, "wrong")}


def _check_type(row: Mapping[str, Any], name: str, types: tuple[type, ...], path: Path, line: int) -> None:
    """Raise `UserError` if a field has another type than those given."""
    value = row[name]
    if not isinstance(value, types) or isinstance(value, bool):
        expected = " or ".join(TYPES[each] for each in types)
        problem = f"the field {name} is {json.dumps(value)[:40]}, expected {expected}"
        remedy = f"Write lines such as {PAIR if name in PAIR_FIELDS else EXAMPLE}."
        raise UserError(problem, file=path, line=line, remedy=remedy)


def _json_rows(text: str, path: Path, example: str) -> list[tuple[int, dict[str, Any]]]:
    rows = []
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"not JSON: {error}", file=path, line=number, remedy=f"Write {example}.") from None
        except RecursionError:
            problem = "the lists and objects of this line are nested too deeply"
            raise UserError(problem, file=path, line=number, remedy=f"Write {example}.") from None
        if not isinstance(row, dict):
            raise UserError(f"expected an object, found {line[:40]!r}", file=path, line=number,
                            remedy=f"Write {example}.")  # fmt: skip
        rows.append((number, row))
    return rows
