"""Text corpora: which files a source names, and the documents in them."""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from taetpu.core.errors import UserError, locate_errors
from taetpu.data.document_files import ENDINGS, UNPACK, Format, Layout, format_of, read_texts
from taetpu.data.remote.fetched import own_split
from taetpu.data.remote.named import PUBLISHED
from taetpu.data.remote.sources import fetch, is_remote
from taetpu.data.splitting import Document, collapse

PYTHON_DOCS = "python-docs"
TEXT_ENDINGS = (*ENDINGS, ".txt")
"""Endings of the files of a dataset that are read."""
UNREAD = {
    "JSON": (".json", ".geojson", ".ipynb"),
    "a table": (".psv", ".feather", ".orc", ".avro", ".xls", ".xlsx", ".ods"),
    "compressed": (".tgz", ".bz2", ".xz", ".lz4", ".br", ".7z", ".rar", ".zip", ".tar"),
    "an array or a database": (".npy", ".npz", ".bin", ".idx", ".pt", ".pth", ".pkl", ".pickle", ".safetensors", ".h5",
                               ".hdf5", ".mat", ".tfrecord", ".msgpack", ".db", ".sqlite", ".sqlite3"),
    "formatted text": (".pdf", ".doc", ".docx", ".odt", ".rtf", ".epub"),
}  # fmt: skip
"""The endings of files that are not read, by what such a file is."""
UNREAD_OF = {ending: what for what, endings in UNREAD.items() for ending in endings}
SAVED = "dataset_dict.json"
"""The file of a folder that `datasets` saved with several splits."""
SNIFFED = 8192
"""Number of bytes at the start of a text file by which another format is recognised."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
STARTS: dict[bytes, tuple[str, str]] = {
    b"\x1f\x8b": ("compressed by gzip", "Let its name end in .gz."),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "Let its name end in .zst."),
    b"PAR1": ("parquet", "Set `format: parquet`."),
    b"ARROW1": ("Arrow", "Set `format: arrow`."),
    b"\x93NUMPY": ("a NumPy array", "Read token numbers with `task: {kind: tokens}`."),
    **dict.fromkeys((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), ("a pickle", "Write its text to a file.")),
    **dict.fromkeys((b"PK\x03\x04", b"%PDF-", b"BZh", b"\xfd7zXZ"), ("no text", "Write its text to a file.")),
}
"""What a file is that starts with these bytes, and the remedy."""

Sources = str | tuple[str, ...]


def names_of(*sources: Sources | Mapping[str, float] | None) -> tuple[str, ...]:
    """Return the names of sources, without the corpus that comes with Python."""
    listed = [(source,) if isinstance(source, str) else source or () for source in sources]
    return tuple(name for names in listed for name in names if name != PYTHON_DOCS)


@dataclass(frozen=True)
class Corpus:
    """Documents of files, which each iteration reads again.

    Attributes:
        source: how the study names it, for messages.
        files: names and paths.
        layout: how documents are found in the files.
        origins: facts about sources other than paths.
    """

    source: str
    files: tuple[tuple[str, Path], ...]
    layout: Layout
    origins: tuple[Mapping[str, Any], ...] = ()

    @property
    def size(self) -> int:
        """The number of bytes of the files."""
        return sum(path.stat().st_size for _, path in self.files)

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents that are not empty."""
        if self.source == PYTHON_DOCS:
            yield from (document for document in python_docs() if document.text.strip())
        for name, path in self.files:
            whole = self.layout.per == "file" and (self.layout.format or format_of(path) or "text") == "text"
            for i, text in enumerate(read_texts(path, self.layout)):
                if text.strip():
                    yield Document(name if whole else f"{name}:{i}", text)

    def texts(self) -> Iterator[str]:
        """Yield the texts of the documents that are not empty."""
        if self.source == PYTHON_DOCS:
            yield from (document.text for document in self)
        for _, path in self.files:
            yield from (text for text in read_texts(path, self.layout) if text and not text.isspace())

    def read(self) -> list[Document]:
        """Return all documents.

        Raises:
            UserError: if a file cannot be read, or if the corpus is empty.
        """
        documents = [*self]
        if not documents:
            raise UserError(
                f"the corpus {self.source!r} is empty", path=("source",), remedy="Use a file or folder with text."
            )
        return documents


def open_corpus(sources: Sources, folder: Path, layout: Layout, field: str = "source", split: str = "train") -> Corpus:
    """Return the corpus of a source.

    Args:
        sources: `python-docs`, files, patterns such as `*.jsonl`, folders (also those of `datasets.save_to_disk`), or
            sources other than paths (`data.remote.sources`), whose files are downloaded.
        folder: The folder to which paths are relative.
        layout: How documents are found in the files.
        field: The task's field, for errors.
        split: The split to read of datasets that have several.

    Raises:
        UserError: if a source does not exist, or if a file is not in the format that its ending says.
    """
    if sources == PYTHON_DOCS:
        return Corpus(PYTHON_DOCS, (), layout)
    files: list[tuple[str, Path]] = []
    origins: list[Mapping[str, Any]] = []
    single = isinstance(sources, str)
    for i, source in enumerate([sources] if single else sources):
        try:
            if is_remote(source):
                fetched = fetch(source, folder, TEXT_ENDINGS)
                files += fetched.files(split)
                origins.append(fetched.about_split(split))
            else:
                files += find_paths(source, folder, split)
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: `~` of an unknown user; ValueError: a NUL
            remedy = "Use a readable text file or folder."
            raise UserError(f"cannot read {source!r}: {error}", path=(field,), remedy=remedy) from None
        except UserError as error:
            raise error.within(field) if single else error.within(field, i) from None
    seen = set[Path]()
    for name, path in files:
        check_format(path, layout.format, field)
        if path in seen:
            problem = f"{name} is listed twice"
            remedy = "List it once. To read files more often than others, use a mixture: {FILE: weight}."
            raise UserError(problem, path=(field,), remedy=remedy)
        seen.add(path)
    if layout.field != Layout().field and all(
        (layout.format or format_of(path) or "text") == "text" for _, path in files
    ):
        problem = f"field is {layout.field!r}, but {', '.join(names_of(sources))} has text without fields"
        raise UserError(problem, path=("field",), remedy="Remove it, or set `format` if the files have rows.")
    return Corpus(sources if single else ", ".join(sources), tuple(files), layout, tuple(origins))


def has_split(sources: Sources, folder: Path, split: str) -> bool:
    """Return whether sources are datasets that all have a split `val` or `test` of their own."""

    def own(name: str) -> str | None:
        if is_remote(name):
            return fetch(name, folder, TEXT_ENDINGS).own_split(split)
        return own_split(saved_splits(folder / Path(name).expanduser()), split)

    names = names_of(sources)
    return bool(names) and all(own(name) is not None for name in names)


def list_local(sources: Sources | None, folder: Path, field: str) -> list[Path]:
    """Return the files of the sources that are paths. The others do not travel with a study.

    Of a dataset that `datasets` saved, they include the other splits, and the files that list them.

    Raises:
        UserError: if a path does not exist. The error names the field of the task.
    """
    paths = [name for name in names_of(sources) if not is_remote(name)]
    with locate_errors(field):
        files = [file for name in paths for _, file in find_paths(name, folder)]
        for place in (folder / Path(name).expanduser() for name in paths):
            if saved_splits(place):
                files += [*sorted(place.glob("*/*")), place / SAVED]
        return [*dict.fromkeys(files)]


def origins(corpora: Mapping[str, Corpus]) -> dict[str, Any]:
    """Return the fact `fetched`: where the files of each corpus are from that are downloaded; empty without any."""
    fetched = {name: [*corpus.origins] for name, corpus in corpora.items() if corpus.origins}
    return {"fetched": fetched} if fetched else {}


def find_paths(source: str, folder: Path, split: str = "train") -> list[tuple[str, Path]]:
    """Return names and paths of the files that a path names: a file, those of a folder, or those of a pattern.

    Args:
        source: The path.
        folder: The folder to which it is relative.
        split: The split to read of a folder with several.

    Raises:
        UserError: if there is no such file.
    """
    path = folder / Path(source).expanduser()
    if path.is_dir():
        if (saved := saved_dataset(path, split)) is not None:
            return saved
        return [(str(file.relative_to(path)), file) for file in sorted(list_files(path))]
    if path.is_file():
        return [(path.name, path)]
    if any(sign in source for sign in "*?["):
        base, pattern = folder, source
        if Path(source).is_absolute():
            base, pattern = Path(path.anchor), str(path.relative_to(path.anchor))
        if matching := sorted(file for file in base.glob(pattern) if file.is_file()):
            return [(os.path.relpath(file, folder), file) for file in matching]
    absent = next(part for part in (path, *path.parents) if part.parent.is_dir())
    known = [PYTHON_DOCS, *PUBLISHED, *(entry.name for entry in absent.parent.glob("[!.]*"))]
    near = get_close_matches(absent.name, known, n=1)
    # Other files are not listed, because the folder may be private.
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise UserError(
        f"no file or folder {source!r} (searched for {path})",
        remedy=f"{hint}Use a path relative to the study's folder, or `{PYTHON_DOCS}`, which needs no file.",
    )


def saved_splits(folder: Path) -> list[str]:
    """Return the splits of a folder that `datasets` saved with several; empty for other folders.

    Raises:
        ValueError, KeyError, TypeError: the list of splits is damaged.
    """
    return [*json.loads((folder / SAVED).read_bytes())["splits"]] if (folder / SAVED).is_file() else []


def saved_dataset(folder: Path, split: str = "train") -> list[tuple[str, Path]] | None:
    """Return the files of a folder that `datasets.save_to_disk` wrote; None for other folders.

    Args:
        folder: The folder of a dataset, or of one with several splits.
        split: The split to read if there are several: `train`, `val` or `test`.

    Raises:
        UserError: if the folder is damaged, or has no such split.
    """
    try:
        if splits := saved_splits(folder):
            if (name := own_split(splits, split)) is None:
                problem = f"{folder} has no split {split!r}, but {', '.join(map(repr, splits))}"
                raise UserError(problem, remedy=f"Name one of its folders, e.g. {folder / splits[0]}.")
            return saved_dataset(folder / name)
        if (state := folder / "state.json").is_file():
            names = [entry["filename"] for entry in json.loads(state.read_bytes())["_data_files"]]
            return [(name, folder / name) for name in names]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} is a damaged dataset: {error}", remedy="Save it again.") from None
    return None


def check_format(file: Path, stated: Format | None, field: str) -> None:
    """Raise `UserError` if a file is of a format that is not read, or of another one than its ending says."""
    if what := UNREAD_OF.get(Path(file.stem).suffix if file.suffix.lower() in UNPACK else file.suffix.lower()):
        problem = f"{file} is {what}, which is not read, because every character is trained"
        remedy = "Write its text to files that end in .txt or .jsonl, and remove this file from the corpus."
        if what == "an array or a database":
            remedy += " Read token numbers with `task: {kind: tokens}`."
        raise UserError(problem, path=(field,), remedy=remedy)
    kind = stated or format_of(file) or "text"
    if kind != "text" or file.suffix.lower() in UNPACK:
        return
    with file.open("rb") as opened:
        start = opened.read(SNIFFED)
    for sign, (what, remedy) in STARTS.items():
        if start.startswith(sign):
            raise UserError(f"{file} is {what}, but is read as plain text", path=(field,), remedy=remedy)
    if start.startswith(UTF_16):
        problem = f"{file} is UTF-16, but a corpus must be UTF-8"
        raise UserError(problem, path=(field,), remedy="Convert the file to UTF-8.")
    if b"\0" in start:
        problem = f"{file} has a byte 0 at {start.index(0)}, so it is binary, but a corpus must be plain text"
        raise UserError(
            problem, path=(field,), remedy="Convert the file if it is UTF-16, or remove it from the corpus."
        )
    if stated is None and _are_objects(start):
        problem = f"{file} holds JSON lines, but is read as plain text, because its name does not end in .jsonl"
        remedy = "Set `format: jsonl` to read its texts, or `format: text` to train its syntax too."
        raise UserError(problem, path=(field,), remedy=remedy)


def _are_objects(start: bytes) -> bool:
    """Return whether the first complete lines of a file are JSON objects."""
    lines = [line for line in start.split(b"\n")[:-1] if line.strip()][:5]
    try:
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        return False


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
            words = collapse(paragraph)
            if words and words not in known:
                known.add(words)
                paragraphs.append(paragraph.strip("\n"))
        documents.append(Document(name, "\n\n".join(paragraphs)))
    return documents


def list_files(folder: Path) -> Iterator[Path]:
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
