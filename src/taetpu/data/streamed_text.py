"""Text larger than memory: documents are tokenized in blocks into the cache, once for all studies.

A block is a sequence of documents with about `BLOCK` characters. After each block, the progress is stored, so that a
killed preparation continues. Every document is encoded by itself, and its split depends on its text alone.
"""

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taetpu.core.atomic_files import explain_os_error, write_file
from taetpu.core.config import to_data
from taetpu.core.errors import UserError
from taetpu.core.identity import computation_fields
from taetpu.core.jax_setup import cache_folder
from taetpu.data.corpora import Corpus
from taetpu.data.digests import digest_file, digest_tokens
from taetpu.data.document_files import Layout
from taetpu.data.splitting import Document, collapse, hashed_split
from taetpu.data.token_files import TokenFile
from taetpu.data.tokenizers import ByteTokenizer, Tokenizer, TokenizerConfig

SPLITS = ("train", "val", "test")
BLOCK = 2**23
"""Number of characters that are tokenized at once."""
SAMPLE = 2**28
"""Number of characters of training text of which a tokenizer is trained."""
VERSION = 1
"""Raised whenever the same settings give other tokens."""


class Settings(NamedTuple):
    """What decides the tokens, besides files and tokenizer.

    Attributes:
        layout: how documents are found in files.
        val: share of documents for validation; 0 if evaluation files are named.
        test: share of documents for testing.
        separator: token after each document.
        bos: token before each document.
        separator_text: text after each document, if no token separates them.
        eval_tokens: number of tokens from which on an evaluation split takes no more documents.
    """

    layout: Layout
    val: float
    test: float
    separator: str | None
    bos: str | None
    separator_text: str
    eval_tokens: int


@dataclass
class Counts:
    """What has been prepared.

    Attributes:
        documents: number of documents of each corpus that were read.
        kept: number of documents of each split.
        tokens, characters, bytes: numbers of each split. `bytes` are UTF-8.
        escape_bits: see `Tokenizer.escape_bits`, of evaluation splits.
        text: chained digests of the text of each split.
    """

    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    kept: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    characters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    escape_bits: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(SPLITS[1:], 0.0))
    text: dict[str, str] = field(default_factory=lambda: dict.fromkeys(SPLITS, ""))


class Prepared(NamedTuple):
    """A corpus in the cache."""

    files: dict[str, TokenFile]
    tokenizer: Tokenizer
    counts: Counts
    digest: str

    @property
    def sample(self) -> dict[str, int]:
        """The number of characters of which the tokenizer was trained, and of all; empty if it read all of them."""
        total = self.counts.characters["train"]
        trained = not isinstance(self.tokenizer, ByteTokenizer) and not self.tokenizer.origin
        return {"characters": SAMPLE, "of": total} if trained and total > SAMPLE else {}


Progress = Callable[[int, int], None]


def prepare_text(
    corpora: Mapping[str, Corpus],
    tokenizer: TokenizerConfig,
    settings: Settings,
    check: Callable[[str, Tokenizer], int | None],
    study: Path,
    progress: Progress | None = None,
) -> Prepared:
    """Return the tokens of a corpus from the cache, where they are put first if they are not there.

    Args:
        corpora: the corpus `train`, which shares divide, and those of evaluation files.
        tokenizer: the tokenizer's config.
        settings: what else decides the tokens.
        check: raises `UserError` if the tokenizer has no token for the setting `bos` or `separator`.
        study: the folder of the study file, to which the path of a tokenizer is relative.
        progress: called with the bytes that are read and those that there are.

    Raises:
        UserError: if the text cannot be read or encoded, or if the disk is full.
    """
    contents = {name: [digest_file(path, progress) for _, path in corpus.files] for name, corpus in corpora.items()}
    with _about_tokenizer():
        about = [VERSION, contents, _describe(tokenizer, study), str(settings)]
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder() / "text" / name
    with explain_os_error("tokenize the corpus", folder, option="TAETPU_CACHE"):
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if not (folder / "tokenizer.json").is_file():
                sample = training_sample(corpora, settings)
                with _about_tokenizer():
                    trained = tokenizer.prepare(sample, study)
                write_file(folder / "tokenizer.json", trained.to_json().encode(), replace=True)
            known = tokenizer.reopen(load(folder), study)
            for name in ("bos", "separator"):
                check(name, known)
            writer = _Writer(folder, known, settings)
            if not writer.done:
                writer.write(corpora, progress)
    files = {split: TokenFile(path, "prepared", writer.mapped(split)) for split, path in writer.paths.items()}
    digests = writer.digests()
    if digests != writer.stored:
        damaged = next(split for split in SPLITS if digests[split] != writer.stored.get(split))
        problem = f"{writer.paths[damaged]} of the cache is damaged: it no longer has the tokens that were written"
        raise UserError(problem, remedy=f"Run `taetpu data clean {folder.name}`, then the same command again.")
    return Prepared(files, known, writer.counts, digests["train"])


@contextmanager
def _about_tokenizer() -> Iterator[None]:
    """Prepend `tokenizer` to the path of a `UserError` in the `with` block."""
    try:
        yield
    except UserError as error:
        raise error.within("tokenizer") from None


def _describe(tokenizer: TokenizerConfig, study: Path) -> Any:
    """Return the settings of a tokenizer as plain data, with the content of its file in place of the path."""
    data, content = to_data(tokenizer), tokenizer.content(study)
    if not content:
        return data
    return computation_fields({"task": {"tokenizer": data}})["task"], hashlib.sha256(content.encode()).hexdigest()


def load(folder: Path) -> Tokenizer:
    """Return the tokenizer of a prepared corpus."""
    from taetpu.data.tokenizers import load_tokenizer

    return load_tokenizer((folder / "tokenizer.json").read_text())


def training_sample(corpora: Mapping[str, Corpus], settings: Settings) -> str:
    """Return the first `SAMPLE` characters of the training text."""
    sample, size = [], 0
    for document in corpora["train"]:
        if hashed_split(document.text, settings.val, settings.test) == "train":
            sample.append(document.text + settings.separator_text)
            size += len(sample[-1])
            if size >= SAMPLE:
                break
    if not sample:
        problem = f"the corpus {corpora['train'].source!r} has no training text"
        raise UserError(problem, path=("source",), remedy="Use more text, or smaller shares.")
    return "".join(sample)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process prepares the folder."""
    with open(folder / "lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Writer:
    """Writes the tokens of the splits, and continues where a killed process stopped."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, settings: Settings):
        self.folder, self.tokenizer, self.settings = folder, tokenizer, settings
        self.dtype = np.dtype("<u2" if tokenizer.vocab_size <= 2**16 else "<u4")
        self.paths = {split: folder / f"{split}.bin" for split in SPLITS}
        self.state = folder / "progress.json"
        self.done, self.counts, self.stored = False, Counts(), dict[str, str]()
        try:
            stored = json.loads(self.state.read_bytes())
            self.done, self.counts = stored["done"], Counts(**stored["counts"])
            self.stored = stored["digests"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not begun, or damaged: prepared from the start

    def write(self, corpora: Mapping[str, Corpus], progress: Progress | None) -> None:
        """Tokenize the corpora from the place of the last stored progress."""
        for split, path in self.paths.items():
            with path.open("ab") as file:
                file.truncate(self.counts.tokens[split] * self.dtype.itemsize)
        held_out = {collapse(d.text) for name in SPLITS[1:] for d in corpora.get(name, ())}
        size, read = sum(corpus.size for corpus in corpora.values()), 0
        with ThreadPoolExecutor(1, "tokenize") as thread:
            for name in SPLITS:
                if name not in corpora:
                    continue
                waiting = None
                for block in blocks(islice(corpora[name], self.counts.documents[name], None)):
                    parts = self.divide(name, block, held_out)
                    coming = thread.submit(self.encode, parts)
                    if waiting is not None:
                        self.append(name, *waiting)
                    waiting = len(block), parts, coming
                    read += sum(len(document.text) for document in block)
                    if progress is not None:
                        progress(min(read, size), size)
                if waiting is not None:
                    self.append(name, *waiting)
        self.store(done=True)

    def divide(self, name: str, block: list[Document], held_out: set[str]) -> dict[str, list[str]]:
        """Return the texts of a block by split."""
        parts: dict[str, list[str]] = {split: [] for split in SPLITS}
        for document in block:
            split = name
            if name == "train":
                split = hashed_split(document.text, self.settings.val, self.settings.test)
                if held_out and split == "train" and collapse(document.text) in held_out:
                    continue
            parts[split].append(document.text + self.settings.separator_text)
        return parts

    def encode(self, parts: Mapping[str, list[str]]) -> dict[str, list[np.ndarray]]:
        """Return the tokens of each document, with those around it."""
        rows = {}
        start, end = (self.number(token) for token in (self.settings.bos, self.settings.separator))
        for split, texts in parts.items():
            encoded = self.tokenizer.encode_all(texts)
            rows[split] = [np.concatenate([start, ids, end]) for ids in encoded]
        return rows

    def number(self, token: str | None) -> np.ndarray:
        """Return the number of a token as an array, which is empty without a token."""
        return np.array([] if token is None else [self.tokenizer.number(token)], np.int32)

    def append(self, name: str, read: int, parts: Mapping[str, list[str]], coming: Any) -> None:
        """Write the tokens of a block, and store the progress."""
        counts = self.counts
        for split, rows in coming.result().items():
            texts, ids = parts[split], rows
            if split != "train":
                room = self.settings.eval_tokens - counts.tokens[split]
                before = np.cumsum([0, *map(len, rows)])[:-1]
                fitting = int((before < room).sum()) if room > 0 else 0
                texts, ids = texts[:fitting], rows[:fitting]
                for text in texts:
                    bits, more = counts.escape_bits[split], self.tokenizer.escape_bits(text)
                    counts.escape_bits[split] = None if bits is None or more is None else bits + more
            text = "".join(texts).encode()
            with self.paths[split].open("ab") as file:
                np.concatenate([np.zeros(0, np.int32), *ids]).astype(self.dtype).tofile(file)
            counts.kept[split] += len(texts)
            counts.tokens[split] += sum(map(len, ids))
            counts.characters[split] += sum(map(len, texts))
            counts.bytes[split] += len(text)
            counts.text[split] = hashlib.sha256(counts.text[split].encode() + text).hexdigest()
        counts.documents[name] += read
        self.store(done=False)

    def store(self, *, done: bool) -> None:
        """Store the progress."""
        self.done, self.stored = done, self.digests() if done else {}
        state = {"done": done, "counts": asdict(self.counts), "digests": self.stored}
        write_file(self.state, json.dumps(state).encode(), replace=True)

    def mapped(self, split: str) -> np.ndarray:
        """Return the tokens of a split, memory-mapped; fewer than there were if the file is cut."""
        count = self.paths[split].stat().st_size // self.dtype.itemsize
        return np.memmap(self.paths[split], self.dtype, "r", shape=(count,)) if count else np.zeros(0, self.dtype)

    def digests(self) -> dict[str, str]:
        """Return the digest of each split's tokens."""
        tokens = {split: TokenFile(path, "prepared", self.mapped(split)) for split, path in self.paths.items()}
        return {split: digest_tokens(file).sha256 if len(file.tokens) else "" for split, file in tokens.items()}


def blocks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Yield lists of documents with about `BLOCK` characters each."""
    block: list[Document] = []
    size = 0
    for document in documents:
        block.append(document)
        size += len(document.text)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def list_prepared() -> list[dict[str, Any]]:
    """Return the corpora in the cache: name, whether they are complete, tokens of the splits, and bytes."""
    rows = []
    for state in sorted(cache_folder().glob("text/*/progress.json")):
        stored = json.loads(state.read_bytes())
        tokens = stored["counts"]["tokens"]
        size = sum(file.stat().st_size for file in state.parent.iterdir())
        rows.append({"name": state.parent.name, "complete": stored["done"], **tokens, "bytes": size})
    return rows
