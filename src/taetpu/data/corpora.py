"""Text corpora: read into named documents, and divided into training, validation and test text."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from taetpu.core.errors import UserError

PYTHON_DOCS = "python-docs"
BETWEEN = "\n\n"  # stands between two documents of one split


@dataclass(frozen=True)
class Document:
    name: str
    text: str


def read(source: str, folder: Path) -> list[Document]:
    """The documents of `python-docs`, of a text file (one), or of a folder (a file each, by relative path).

    Raises:
        UserError: nothing there, unreadable, not UTF-8, or no text in it; path `("source",)`.
    """
    documents = python_docs() if source == PYTHON_DOCS else _from_disk(source, folder / Path(source).expanduser())
    documents = [document for document in documents if document.text.strip()]
    if not documents:
        raise UserError(f"the corpus {source!r} is empty", path=("source",), remedy="name a file or folder with text")
    return documents


def joined(documents: Sequence[Document]) -> str:
    return BETWEEN.join(document.text for document in documents)


def sha256(documents: Sequence[Document]) -> str:
    """Of the joined text in UTF-8; for a single file that is what `sha256sum` prints."""
    return hashlib.sha256(joined(documents).encode()).hexdigest()


def python_docs() -> list[Document]:
    """The topics of Python's own `help()`, sorted by name; a paragraph is kept where it stands first.

    A fifth of the paragraphs repeat others (the topic of `if` is a part of that of compound statements), and would
    leak from training into validation. They are compared with runs of white space as one.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            "this Python comes without pydoc_data, the text of python-docs",
            path=("source",),
            remedy="install the full standard library, or name a text file",
        ) from None
    seen: set[str] = set()
    documents = []
    for name in sorted(topics):
        kept = []
        for paragraph in topics[name].split("\n\n"):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                seen.add(words)
                kept.append(paragraph.strip("\n"))
        documents.append(Document(name, "\n\n".join(kept)))
    return documents


def _from_disk(source: str, path: Path) -> list[Document]:
    if not path.exists():
        raise UserError(
            f"no file or folder {source!r} (looked for {path})",
            path=("source",),
            remedy=f"{_nearest(path)}a relative path starts at the study's folder; `{PYTHON_DOCS}` needs no file",
        )
    files = sorted(_files(path)) if path.is_dir() else [path]
    return [Document(str(file.relative_to(path)) if path.is_dir() else file.name, _text(file)) for file in files]


def _nearest(path: Path) -> str:
    """Return a question with the file or folder whose name is most like a missing one's; nothing where none is like it.

    Others are not named: the folder may be the user's home, whose content belongs in no message.
    """
    try:
        names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
    except OSError:
        names = []
    near = get_close_matches(path.name, [*names, PYTHON_DOCS], n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}? " if near else ""


def _files(folder: Path) -> Iterator[Path]:
    """Every file below a folder, hidden ones and those in hidden folders left out."""
    for file in folder.rglob("*"):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts):
            yield file


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}", path=("source",)) from None
    try:
        return raw.decode("utf-8-sig")  # a byte order mark is no character of the text
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{file} is not UTF-8: byte 0x{raw[error.start]:02x} in line {line} (byte {error.start} of the file)",
            path=("source",),
            remedy="convert the file to UTF-8, or take it out of the folder",
        ) from None


# --- splitting -------------------------------------------------------------------------------------------------------


def in_order(documents: Sequence[Document], val: float, test: float) -> dict[str, str]:
    """Training text first, then validation, then test, cut at characters by share."""
    text = joined(documents)
    first, second = int(len(text) * (1 - val - test)), int(len(text) * (1 - test))
    if not val:  # the two products may round to different integers
        first = second
    return {"train": text[:first], "val": text[first:second], "test": text[second:]}


def by_document(documents: Sequence[Document], val: float, test: float) -> dict[str, str]:
    """Whole documents, so that no split holds the beginning of what another goes on with.

    Documents are walked in the order of their names' hashes; each goes to validation if it still fits into that
    share of the characters, else to test if it fits there, else to training. Where no document fits a share that is
    asked for, the smallest one goes there all the same. Within a split the documents keep their order.
    """
    total = sum(len(document.text) for document in documents)
    room = {"val": val * total, "test": test * total}
    chosen: dict[str, str] = {}
    for document in sorted(documents, key=lambda d: hashlib.sha256(d.name.encode()).digest()):
        chosen[document.name] = next((name for name in room if len(document.text) <= room[name]), "train")
        if chosen[document.name] != "train":
            room[chosen[document.name]] -= len(document.text)
    for name, share in (("val", val), ("test", test)):
        trained = sorted((d for d in documents if chosen[d.name] == "train"), key=lambda d: (len(d.text), d.name))
        if share and name not in chosen.values() and len(trained) > 1:
            chosen[trained[0].name] = name
    splits = ("train", "val", "test")
    return {split: joined([d for d in documents if chosen[d.name] == split]) for split in splits}
