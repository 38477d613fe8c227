"""Text corpora: reading documents, and splitting them into training, validation and test text."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate, chain
from pathlib import Path
from typing import NoReturn

from taetpu.core.errors import UserError

PYTHON_DOCS = "python-docs"
SEPARATOR = "\n\n"  # between two documents of one split
FORMATS = {
    "JSON": (".json", ".jsonl", ".ndjson", ".geojson", ".ipynb"),
    "a table": (".csv", ".tsv", ".psv", ".parquet", ".arrow", ".feather", ".orc", ".avro", ".xls", ".xlsx", ".ods"),
    "compressed": (".gz", ".tgz", ".bz2", ".xz", ".zst", ".lz4", ".br", ".7z", ".rar", ".zip", ".tar"),
    "an array or a database": (".npy", ".npz", ".bin", ".idx", ".pt", ".pth", ".pkl", ".pickle", ".safetensors", ".h5",
                               ".hdf5", ".mat", ".tfrecord", ".msgpack", ".db", ".sqlite", ".sqlite3"),
    "formatted text": (".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub"),
}  # fmt: skip
"""The endings of files that hold no plain text, by what such a file is."""
FORMAT_OF = {ending: what for what, endings in FORMATS.items() for ending in endings}
BINARY_STARTS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PAR1", b"%PDF-", b"BZh", b"\xfd7zXZ", b"\x93NUMPY")
SNIFFED = 8192  # number of bytes at the start of a file in which no byte may be 0
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # such text has bytes 0, and is refused as text that is not UTF-8


@dataclass(frozen=True)
class Document:
    """A text with a name."""

    name: str
    text: str


def read_documents(source: str, folder: Path) -> list[Document]:
    """Read the documents of a source.

    Args:
        source: `python-docs`, a text file (one document), or a folder (one document per file, named by relative path).
        folder: The folder to which `source` is relative.

    Raises:
        UserError: if the source does not exist, is unreadable, is not plain text in UTF-8, or is empty. The error's
            path is `("source",)`.
    """
    documents = python_docs() if source == PYTHON_DOCS else _from_disk(source, folder)
    documents = [document for document in documents if document.text.strip()]
    if not documents:
        raise UserError(f"the corpus {source!r} is empty", path=("source",), remedy="Use a file or folder with text.")
    return documents


def join_documents(documents: Sequence[Document]) -> str:
    """Return the documents as one text, separated by empty lines."""
    return SEPARATOR.join(document.text for document in documents)


def with_separators(documents: Sequence[Document]) -> list[str]:
    """Return the parts of the joined text, each with the separator that follows it."""
    texts = [document.text for document in documents]
    return [text + SEPARATOR for text in texts[:-1]] + texts[-1:]


def python_docs() -> list[Document]:
    """Return the topics of Python's `help()`, sorted by name, without repeated paragraphs.

    A fifth of the paragraphs repeat other paragraphs and would leak from training into validation. For example, the
    topic on compound statements contains the topic `if`. Paragraphs are compared with whitespace collapsed.
    """
    from pydoc_data.topics import topics

    known: set[str] = set()
    documents = []
    for name in sorted(topics):
        paragraphs = []
        for paragraph in topics[name].split("\n\n"):
            words = _collapse(paragraph)
            if words and words not in known:
                known.add(words)
                paragraphs.append(paragraph.strip("\n"))
        documents.append(Document(name, "\n\n".join(paragraphs)))
    return documents


def _collapse(text: str) -> str:
    return " ".join(text.split())


def _from_disk(source: str, folder: Path) -> list[Document]:
    try:
        path = folder / Path(source).expanduser()
        if path.is_dir():
            return [Document(str(file.relative_to(path)), _text(file)) for file in sorted(_files(path))]
        if path.is_file():
            return [Document(path.name, _text(path))]
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: `~` of an unknown user; ValueError: a NUL byte
        remedy = "Use a readable text file or folder."
        raise UserError(f"cannot read {source!r}: {error}", path=("source",), remedy=remedy) from None
    near = get_close_matches(path.name, [PYTHON_DOCS, *(entry.name for entry in path.parent.glob("[!.]*"))], n=1)
    hint = (
        f"Did you mean {near[0]!r}? " if near else ""
    )  # other files are not listed, because the folder may be private
    raise UserError(
        f"no file or folder {source!r} (searched for {path})",
        path=("source",),
        remedy=f"{hint}Use a path relative to the study's folder, or `{PYTHON_DOCS}`, which needs no file.",
    )


def _files(folder: Path) -> Iterator[Path]:
    """Yield every regular file below a folder, and every link to one.

    Hidden files and folders, linked folders (a link may lead to a parent folder), FIFOs, sockets and devices are
    skipped. A folder or link that cannot be read raises an `OSError`.
    """

    def fail(error: OSError) -> NoReturn:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(parent, name) for name in names if not name.startswith(".")):
            if stat.S_ISREG(file.stat().st_mode):
                yield file


def _text(file: Path) -> str:
    if (what := FORMAT_OF.get(file.suffix.lower())) is not None:
        raise _not_plain(file, what)
    raw = file.read_bytes()
    if raw.startswith(BINARY_STARTS) or (b"\0" in raw[:SNIFFED] and not raw.startswith(UTF_16)):
        raise _not_plain(file, "binary")
    try:
        return raw.decode("utf-8-sig")  # removes a byte order mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{file} is not UTF-8: byte 0x{raw[error.start]:02x} in line {line} (byte {error.start} of the file)",
            path=("source",),
            remedy="Convert the file to UTF-8, or remove it from the folder.",
        ) from None


def _not_plain(file: Path, what: str) -> UserError:
    problem = f"{file} is {what}, but a corpus must be plain text, because every character is trained"
    remedy = "Write its text to files that end in .txt, and remove this file from the corpus."
    if what in ("JSON", "a table"):
        remedy += " To train its syntax too, rename it so that it ends in .txt."
    return UserError(problem, path=("source",), remedy=remedy)


# --- splitting -------------------------------------------------------------------------------------------------------

Group = list[Document]  # documents with the same text


def group_duplicates(documents: Sequence[Document]) -> list[Group]:
    """Return groups of documents with the same text, in the order of their first documents.

    All documents in a group belong to one split, because a repeated document would leak from training into evaluation.
    Documents are compared with whitespace collapsed.
    """
    groups: dict[str, Group] = {}
    for document in documents:
        groups.setdefault(_collapse(document.text), []).append(document)
    return list(groups.values())


def split_in_order(documents: Sequence[Document], val: float, test: float) -> dict[str, list[str]]:
    """Split the text in order into training, validation and test text, with the given shares of the characters.

    Each text is returned in parts, one for each document, with the separators that follow them.

    Repeated documents are moved next to their first occurrence. If a split point is inside a group of repeated
    documents, it is moved to the nearer end of the group.
    """
    groups = group_duplicates(documents)
    parts = with_separators([*chain.from_iterable(groups)])
    length = sum(map(len, parts))
    first, second = int(length * (1 - val - test)), int(length * (1 - test))
    if not val:  # the two products may round to different integers
        first = second
    start = 0
    for group in groups:
        end = start + len(join_documents(group))
        if len(group) > 1:
            first, second = (_outside(cut, start, end) for cut in (first, second))
        start = end + len(SEPARATOR)
    ends = [*accumulate(map(len, parts))]
    texts: dict[str, list[str]] = {}
    for name, low, high in (("train", 0, first), ("val", first, second), ("test", second, length)):
        cut = (part[max(0, low - end + len(part)) : max(0, high - end + len(part))]
               for part, end in zip(parts, ends, strict=True))  # fmt: skip
        texts[name] = [part for part in cut if part]
    return texts


def _outside(cut: int, start: int, end: int) -> int:
    return min((start, end), key=lambda place: abs(place - cut)) if start < cut < end else cut


def split_by_document(documents: Sequence[Document], val: float, test: float) -> dict[str, list[str]]:
    """Assign whole documents to the three splits, so that no document spans two splits.

    Groups of repeated documents (see `group_duplicates`) are ordered by the hash of their first document's name. Each
    group goes to validation if the validation share has room for it, else to test if the test share has room for it,
    else to training. Shares are counted in characters. If no group fits into a nonzero share, its split gets the
    smallest of the training groups. The documents in a split keep their order. Texts are returned as in
    `split_in_order`.
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
    splits = ("train", "val", "test")
    return {split: with_separators([d for d in documents if split_of[d.name] == split]) for split in splits}
