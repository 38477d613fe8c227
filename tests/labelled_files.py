"""Files of labelled rows, in which the class follows from the words."""

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GOOD, BAD, OTHER = ("good", "fine"), ("bad", "sad"), ("tree", "car", "dog")


def labelled_rows(count: int = 120, seed: int = 0) -> list[dict[str, Any]]:
    """Return rows with different texts: a class, a number, words with labels, and a second text."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        words = draw.choices((*GOOD, *BAD, *OTHER), k=draw.randint(2, 5))
        score = sum((word in GOOD) - (word in BAD) for word in words)
        rows.append({
            "text": " ".join([*words, str(number)]),
            "label": "pos" if score > 0 else "neg" if score < 0 else "even",
            "score": score / 2,
            "tokens": [*words, str(number)],
            "labels": [*("G" if w in GOOD else "B" if w in BAD else "O" for w in words), "N"],
            "second_text": " ".join([str(number), *words]),
        })  # fmt: skip
    return rows


def write_json_lines(file: Path, rows: Sequence[Any]) -> Path:
    """Write rows, each in a line, and return the file."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_table(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as CSV or TSV, and return the file. Lists are words with spaces between them."""
    texts = [{name: " ".join(v) if isinstance(v, list) else v for name, v in row.items()} for row in rows]
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, [*texts[0]], delimiter="\t" if file.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(texts)
    return file
