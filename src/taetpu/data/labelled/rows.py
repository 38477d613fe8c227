"""Rows with texts and a label: how they are read from tables, and divided into splits."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.core.errors import UserError
from taetpu.data.corpora import Corpus
from taetpu.data.document_files import read_rows
from taetpu.data.splitting import Document, assign_documents, collapse, hashed_split


@dataclass(frozen=True)
class Example:
    """A row of a table.

    Attributes:
        name: The file and the number of the row, by which splits are drawn.
        place: The row and its file, for messages.
        texts: The texts; for labels of words, the words.
        label: The label as the task reads it; None for pairs.
        shared: The text by which rows belong together: those with an equal one are in one split.
    """

    name: str
    place: str
    texts: tuple[str, ...]
    label: Any
    shared: str

    @property
    def key(self) -> str:
        """All texts, by which a row is recognised in another file."""
        return "\0".join(map(collapse, self.texts))


Parse = Callable[[Mapping[str, Any], str], tuple[tuple[str, ...], Any, str]]
"""A function of a row and its place that returns its texts, its label, and the text that rows share."""


def read_examples(corpus: Corpus, columns: Mapping[str, str], parse: Parse) -> list[Example]:
    """Return the rows of a corpus.

    Args:
        corpus: The files.
        columns: The settings of the task that name the columns, by column.
        parse: See `Parse`.

    Raises:
        UserError: if a file cannot be read, if a value is invalid, or if there are no rows.
    """
    examples = []
    for file, path in corpus.files:
        for number, (where, row) in enumerate(read_rows(path, columns, corpus.layout.format)):
            place = f"{where} of {path}"
            texts, label, shared = parse(row, place)
            examples.append(Example(f"{file}:{number}", place, texts, label, shared))
    if not examples:
        raise UserError(f"{corpus.source!r} has no rows", path=("source",), remedy="Use a file with rows.")
    return examples


def read_text(value: Any, setting: str, place: str) -> str:
    """Return a text of a row, or raise `UserError` if it is none."""
    if not isinstance(value, str) or not value.strip():
        problem = f"{place} has {str(value)[:40]!r} as {setting}, not a text"
        raise UserError(problem, path=(setting,), remedy="Choose a column with texts, or remove the row.")
    return value


def divide(
    examples: Sequence[Example], shares: Mapping[str, float], way: str, held_out: Collection[str], source: str
) -> tuple[dict[str, list[Example]], int]:
    """Return the rows of each split, and the number of rows that are left out.

    Args:
        examples: The rows of `source`.
        shares: The shares of `val` and `test`.
        way: `document` or `hash`.
        held_out: The keys of rows in evaluation files. Such a row is left out.
        source: The source, for messages.

    Raises:
        UserError: if a split that has a share, or the training split, is empty.
    """
    kept = [example for example in examples if example.key not in held_out]
    documents = [Document(example.name, example.shared) for example in kept]
    if way == "hash":
        assigned = [hashed_split(document.text, shares["val"], shares["test"]) for document in documents]
    else:
        assigned = assign_documents(documents, shares["val"], shares["test"])
    parts = {split: [e for e, to in zip(kept, assigned, strict=True) if to == split] for split in ("train", *shares)}
    for split, part in parts.items():
        if not part and (split == "train" or shares[split]):
            different = len({collapse(document.text) for document in documents})
            problem = f"{split} has no row of {source!r}, with {len(examples):,} rows and {different:,} different texts"
            remedy = "Use more rows, other shares, or files of evaluation rows."
            raise UserError(problem, path=("split" if different else "source",), remedy=remedy)
    return parts, len(examples) - len(kept)
