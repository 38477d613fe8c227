"""Files with labelled texts for probes."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError
from taetpu.lens.token_texts import read_text

EXAMPLE = '{"text": "a dog", "label": "animal"}'


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
    rows = _csv_rows(text) if path.suffix == ".csv" else _json_rows(text, path)
    inputs, labels = [], []
    for line, row in rows:
        given = [row[name] for name in ("text", "ids") if row.get(name) is not None]
        own = [row[name] for name in ("label", "labels") if row.get(name) is not None]
        if len(given) != 1 or len(own) != 1:
            wanted = "text and ids" if len(given) != 1 else "label and labels"
            problem = f"expected one of the fields {wanted}, found {', '.join(map(str, row)) or 'none'}"
            raise UserError(problem, file=path, line=line, remedy=f"Write lines such as {EXAMPLE}.")
        inputs.append(given[0])
        labels.append(own[0])
    return inputs, labels


def _csv_rows(text: str) -> list[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text))
    return [(reader.line_num, {name: value for name, value in row.items() if name}) for row in reader]


def _json_rows(text: str, path: Path) -> list[tuple[int, dict[str, Any]]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"not JSON: {error}", file=path, line=number, remedy=f"Write {EXAMPLE}.") from None
        if not isinstance(row, dict):
            raise UserError(f"expected an object, found {line[:40]!r}", file=path, line=number,
                            remedy=f"Write {EXAMPLE}.")  # fmt: skip
        rows.append((number, row))
    return rows
