"""Text corpora: read into named documents, and divided into training, validation and test text."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import NoReturn

from taetpu.core.errors import UserError

PYTHON_DOCS = "python-docs"
BETWEEN = "\n\n"  # stands between two documents of one split


@dataclass(frozen=True)
class Document:
    name: str
    text: str


def read_documents(source: str, folder: Path) -> list[Document]:
    """Return the documents of `python-docs`, of a text file (one), or of a folder (a file each, by relative path).

    Raises:
        UserError: nothing there, no regular file, unreadable, not UTF-8, or no text in it; path `("source",)`.
    """
    documents = python_docs() if source == PYTHON_DOCS else _from_disk(source, folder)
    documents = [document for document in documents if document.text.strip()]
    if not documents:
        raise UserError(f"the corpus {source!r} is empty", path=("source",), remedy="name a file or folder with text")
    return documents


def join_documents(documents: Sequence[Document]) -> str:
    return BETWEEN.join(document.text for document in documents)


def hash_documents(documents: Sequence[Document]) -> str:
    """Of the joined text in UTF-8; for a single file that is what `sha256sum` prints."""
    return hashlib.sha256(join_documents(documents).encode()).hexdigest()


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


def _from_disk(source: str, folder: Path) -> list[Document]:
    try:
        path = folder / Path(source).expanduser()
    except RuntimeError as error:  # `~` of an unknown user
        raise _no_path(source, error) from None
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"no file or folder {source!r} (looked for {path})",
            path=("source",),
            remedy=f"{_nearest(path)}a relative path starts at the study's folder; `{PYTHON_DOCS}` needs no file",
        ) from None
    except OSError as error:
        raise _unreadable(source, error) from None
    except ValueError as error:  # a NUL byte
        raise _no_path(source, error) from None
    if stat.S_ISDIR(mode):
        return [Document(str(file.relative_to(path)), _text(file)) for file in sorted(_files(path))]
    if stat.S_ISREG(mode):
        return [Document(path.name, _text(path))]
    raise UserError(
        f"{path} is a {_special(mode)}, and a source must be a regular file or a folder",
        path=("source",),
        remedy="write its content to a file, and name that",
    )


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
    """Yield every regular file below a folder, and links to such files.

    Hidden files and folders are left out, as are linked folders (a link may lead back to a folder above it) and
    FIFOs, sockets and devices.
    """

    def refuse(error: OSError) -> NoReturn:
        raise _unreadable(error.filename, error) from None

    for here, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(here, name) for name in names if not name.startswith(".")):
            try:
                regular = stat.S_ISREG(file.stat().st_mode)
            except OSError as error:
                raise _unreadable(file, error) from None
            if regular:
                yield file


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None
    except MemoryError:
        problem = f"{file} is too large for this machine's memory: {file.stat().st_size:,} bytes"
        raise UserError(problem, path=("source",), remedy="take a part of it") from None
    try:
        return raw.decode("utf-8-sig")  # a byte order mark is no character of the text
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{file} is not UTF-8: byte 0x{raw[error.start]:02x} in line {line} (byte {error.start} of the file)",
            path=("source",),
            remedy="convert the file to UTF-8, or take it out of the folder",
        ) from None


def _no_path(source: str, error: Exception) -> UserError:
    return UserError(f"{source!r} is not a path: {error}", path=("source",), remedy="name a file or a folder")


def _unreadable(file: Path | str, error: OSError) -> UserError:
    remedy = "make it readable, take it out of the folder, or name another source"
    return UserError(f"cannot read {file}: {error.strerror}", path=("source",), remedy=remedy)


def _special(mode: int) -> str:
    """Return what a file of this mode is called that is neither regular nor a folder."""
    kinds = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    return kinds.get(stat.S_IFMT(mode), "special file")


# --- splitting -------------------------------------------------------------------------------------------------------

Group = list[Document]  # documents of one text


def group_duplicates(documents: Sequence[Document]) -> list[Group]:
    """Group documents that repeat one another, by the place of the first of each group.

    A group goes to one split as a whole: a repeated document would leak from training into evaluation. Documents are
    compared with runs of white space as one.
    """
    groups: dict[str, Group] = {}
    for document in documents:
        groups.setdefault(" ".join(document.text.split()), []).append(document)
    return list(groups.values())


def split_in_order(documents: Sequence[Document], val: float, test: float) -> dict[str, str]:
    """Divide into training text first, then validation, then test, cut at characters by share.

    Repeated documents follow the first of them, and a cut that would fall within such a group moves to the nearer end
    of the group.
    """
    groups = group_duplicates(documents)
    text = join_documents([*chain.from_iterable(groups)])
    first, second = int(len(text) * (1 - val - test)), int(len(text) * (1 - test))
    if not val:  # the two products may round to different integers
        first = second
    start = 0
    for group in groups:
        end = start + len(join_documents(group))
        if len(group) > 1:
            first, second = (_outside(cut, start, end) for cut in (first, second))
        start = end + len(BETWEEN)
    return {"train": text[:first], "val": text[first:second], "test": text[second:]}


def _outside(cut: int, start: int, end: int) -> int:
    return min((start, end), key=lambda place: abs(place - cut)) if start < cut < end else cut


def split_by_document(documents: Sequence[Document], val: float, test: float) -> dict[str, str]:
    """Divide into whole documents, so that no split holds the beginning of what another continues.

    Groups of repeated documents (see `grouped`) are assigned in the order of the hashes of their first names: to
    validation if they still fit into that share of the characters, else to test if they fit there, else to training.
    Where no group fits a share that is asked for, the smallest group goes there. Within a split the documents keep
    their order.
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
    return {split: join_documents([d for d in documents if split_of[d.name] == split]) for split in splits}
