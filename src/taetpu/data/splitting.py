"""Splitting documents into training, validation and test text."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

SEPARATOR = "\n\n"  # between two documents of one split


@dataclass(frozen=True)
class Document:
    """A text with a name."""

    name: str
    text: str


def join_documents(documents: Sequence[Document], separator: str = SEPARATOR) -> str:
    """Return the documents as one text, separated by empty lines or another text."""
    return separator.join(document.text for document in documents)


def with_separators(documents: Sequence[Document], separator: str = SEPARATOR) -> list[str]:
    """Return the parts of the joined text, each with the separator that follows it."""
    texts = [document.text for document in documents]
    return [text + separator for text in texts[:-1]] + texts[-1:]


def chain_texts(texts: Sequence[list[str]], separator: str) -> list[str]:
    """Return the parts of several texts that follow each other, with a separator after each text but the last."""
    filled = [parts for parts in texts if parts]
    for parts in filled[:-1]:
        parts[-1] += separator
    return [*chain.from_iterable(filled)]


def collapse(text: str) -> str:
    """Return a text with each run of white space as one space."""
    return " ".join(text.split())


Group = list[Document]  # documents with the same text


def group_duplicates(documents: Sequence[Document]) -> list[Group]:
    """Return groups of documents with the same text, in the order of their first documents.

    All documents in a group belong to one split, because a repeated document would leak from training into evaluation.
    Documents are compared with whitespace collapsed.
    """
    groups: dict[str, Group] = {}
    for document in documents:
        groups.setdefault(collapse(document.text), []).append(document)
    return list(groups.values())


def split_in_order(
    documents: Sequence[Document], val: float, test: float, separator: str = SEPARATOR
) -> dict[str, list[str]]:
    """Split the text in order into training, validation and test text, with the given shares of the characters.

    Each text is returned in parts, one for each document, with the separators that follow them.

    Repeated documents are moved next to their first occurrence. If a split point is inside a group of repeated
    documents, it is moved to the nearer end of the group.
    """
    groups = group_duplicates(documents)
    parts = with_separators([*chain.from_iterable(groups)], separator)
    length = sum(map(len, parts))
    first, second = int(length * (1 - val - test)), int(length * (1 - test))
    if not val:  # the two products may round to different integers
        first = second
    start = 0
    for group in groups:
        end = start + len(join_documents(group, separator))
        if len(group) > 1:
            first, second = (_outside(cut, start, end) for cut in (first, second))
        start = end + len(separator)
    ends = [*accumulate(map(len, parts))]
    texts: dict[str, list[str]] = {}
    for name, low, high in (("train", 0, first), ("val", first, second), ("test", second, length)):
        cut = (part[max(0, low - end + len(part)) : max(0, high - end + len(part))]
               for part, end in zip(parts, ends, strict=True))  # fmt: skip
        texts[name] = [part for part in cut if part]
    return texts


def _outside(cut: int, start: int, end: int) -> int:
    return min((start, end), key=lambda place: abs(place - cut)) if start < cut < end else cut


def split_by_document(
    documents: Sequence[Document], val: float, test: float, separator: str = SEPARATOR
) -> dict[str, list[str]]:
    """Assign whole documents to the three splits, so that no document spans two splits.

    See `assign_documents`. The documents in a split keep their order. Texts are returned as in `split_in_order`.
    """
    assigned = assign_documents(documents, val, test)
    split_of = {document.name: split for document, split in zip(documents, assigned, strict=True)}
    splits = ("train", "val", "test")
    return {split: with_separators([d for d in documents if split_of[d.name] == split], separator) for split in splits}


def assign_documents(documents: Sequence[Document], val: float, test: float) -> list[str]:
    """Return the split of each document, such that documents with the same text are in one split.

    Groups of repeated documents (see `group_duplicates`) are ordered by the hash of their first document's name. Each
    group goes to validation if the validation share has room for it, else to test if the test share has room for it,
    else to training. Shares are counted in characters. If no group fits into a nonzero share, its split gets the
    smallest of the training groups.
    """
    groups = {group[0].name: group for group in group_duplicates(documents)}
    sizes = {name: sum(len(document.text) for document in group) for name, group in groups.items()}
    total = sum(sizes.values())
    room = {"val": val * total, "test": test * total}
    chosen: dict[str, str] = {}
    for name in sorted(groups, key=lambda name: hashlib.sha256(os.fsencode(name)).digest()):
        chosen[name] = next((split for split in room if sizes[name] <= room[split]), "train")
        if chosen[name] != "train":
            room[chosen[name]] -= sizes[name]
    for split, share in (("val", val), ("test", test)):
        trained = sorted((name for name in groups if chosen[name] == "train"), key=lambda name: (sizes[name], name))
        if share and split not in chosen.values() and len(trained) > 1:
            chosen[trained[0]] = split
    split_of = {document.name: chosen[name] for name, group in groups.items() for document in group}
    return [split_of[document.name] for document in documents]


def split_by_hash(
    documents: Sequence[Document], val: float, test: float, separator: str = SEPARATOR
) -> dict[str, list[str]]:
    """Assign each document by a hash of its text, so that no document moves to another split if others are added.

    The shares are those of documents, and are met on average. Texts are returned as in `split_in_order`.
    """
    chosen: dict[str, list[Document]] = {"train": [], "val": [], "test": []}
    for document in documents:
        chosen[hashed_split(document.text, val, test)].append(document)
    return {split: with_separators(part, separator) for split, part in chosen.items()}


def hashed_split(text: str, val: float, test: float) -> str:
    """Return the split of a text by the SHA-256 digest of its words."""
    if not val and not test:
        return "train"
    place = int.from_bytes(hashlib.sha256(collapse(text).encode("utf-8", "surrogatepass")).digest()[:8]) / 2**64
    return "val" if place < val else "test" if place < val + test else "train"
