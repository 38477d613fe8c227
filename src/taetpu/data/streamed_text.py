"""Text larger than memory: documents are tokenized in blocks into the cache, once for all studies.

A block is a sequence of documents with about `BLOCK` characters. Several processes encode blocks
(`data.tokenizer_pool`), and this one writes them in their order (`data.token_cache`), so tokens do not depend on the
number of processes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from taetpu.core.atomic_files import explain_os_error, locked, write_file
from taetpu.core.config import to_data
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.identity import computation_fields
from taetpu.core.jax_setup import cache_folder, cpu_cores
from taetpu.core.progress import Progress
from taetpu.data.corpora import Corpus
from taetpu.data.digests import digest_file
from taetpu.data.document_encoding import Block, Job, digest_words
from taetpu.data.document_files import Layout
from taetpu.data.splitting import hashed_split
from taetpu.data.token_cache import SPLITS, TOKENIZER, Counts, TokenWriter, read_tokenizer
from taetpu.data.token_files import TokenFile
from taetpu.data.tokenizer_pool import encode_blocks
from taetpu.data.tokenizers.base import Tokenizer, TokenizerConfig

BLOCK = 2**21
"""Number of characters that are tokenized at once."""
LONGEST = 2**24
"""Maximum number of characters of a document. The library needs about 20 bytes for each to encode it."""
DIVIDE = "Divide it, e.g. with `per: blank-line`."
VERSION = 3
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


class Prepared(NamedTuple):
    """A corpus in the cache, or several that are mixed.

    Attributes:
        files: the tokens of each split, and of each source of a mixture.
        tokenizer: the tokenizer.
        counts: what was counted.
        digest: the digest of the training tokens.
        sampled: the number of characters of which the tokenizer was trained; 0 if it reads no text.
    """

    files: dict[str, list[TokenFile]]
    tokenizer: Tokenizer
    counts: Counts
    digest: str
    sampled: int

    @property
    def sample(self) -> dict[str, int]:
        """The number of characters of which the tokenizer was trained, and of all; empty if it read all of them."""
        total = self.counts.characters["train"]
        trained = self.sampled and not self.tokenizer.origin
        return {"characters": self.sampled, "of": total} if trained and total > self.sampled else {}


def prepare_text(
    corpora: Mapping[str, Corpus],
    tokenizer: TokenizerConfig,
    settings: Settings,
    check: Callable[[str, Tokenizer], int | None],
    study: Path,
    progress: Progress | None = None,
    mixed: Sequence[Corpus] = (),
    trained: Tokenizer | None = None,
) -> Prepared:
    """Return the tokens of a corpus from the cache, where they are put first if they are not there.

    Args:
        corpora: the corpus `train`, which shares divide, and those of evaluation files.
        tokenizer: the tokenizer's config.
        settings: what else decides the tokens.
        check: raises `UserError` if the tokenizer has no token for the setting `bos` or `separator`.
        study: the folder of the study file, to which the path of a tokenizer is relative.
        progress: called with the bytes that are read and those that there are.
        mixed: the corpora whose text trains the tokenizer, if the corpus is one of several in a mixture.
        trained: the tokenizer, if it was trained before.

    Raises:
        UserError: if the text cannot be read or encoded, or if the disk is full.
    """
    with ThreadPoolExecutor(cpu_cores()) as pool:
        contents = {
            name: [*pool.map(partial(digest_file, progress=progress), (path for _, path in corpus.files))]
            for name, corpus in corpora.items()
        }
    with locate_errors("tokenizer"):
        about = [VERSION, contents, _describe(tokenizer, study), str(settings)]
        if mixed and tokenizer.sample:
            about.append(sorted(digest_file(path, progress) for corpus in mixed for _, path in corpus.files))
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder() / "text" / name
    with explain_os_error("tokenize the corpus", folder, option="TAETPU_CACHE"), locked(folder):
        if not (folder / TOKENIZER).is_file():
            if trained is None:
                trained = _train(tokenizer, mixed or [corpora["train"]], settings, study)
            write_file(folder / TOKENIZER, trained.to_json().encode(), replace=True)
        known = tokenizer.reopen(read_tokenizer(folder), study)
        begin, end = (check(name, known) for name in ("bos", "separator"))
        before, after = ([] if token is None else [token] for token in (begin, end))
        if end is None:  # documents are joined by text, and each has the tokens that the tokenizer adds to a text
            before, after = known.start_tokens.tolist(), known.closing_tokens.tolist()
        writer = TokenWriter(folder, known.vocab_size, settings.eval_tokens)
        if not writer.done:
            job = Job(
                (folder / TOKENIZER).read_text(encoding="utf-8"), known.special_is_text, writer.dtype.str,
                tuple(before), tuple(after), settings.separator_text,
                settings.val, settings.test, _held_out(corpora),
            )  # fmt: skip
            _write(writer, corpora, job, progress)
    files = {split: [TokenFile(path, "prepared", writer.mapped(split))] for split, path in writer.paths.items()}
    sampled = min(tokenizer.sample // max(len(mixed), 1), writer.counts.characters["train"])
    return Prepared(files, known, writer.counts, writer.check(), sampled)


def join_prepared(parts: Sequence[Prepared], held_out: Collection[str]) -> Prepared:
    """Return the sources of a mixture, which have the same tokenizer, as one corpus.

    Args:
        parts: the sources.
        held_out: the splits of evaluation files, which are those of the first source.
    """
    if len(parts) == 1:
        return parts[0]
    first, total = parts[0], deepcopy(parts[0].counts)
    for part in parts[1:]:
        for name in {*SPLITS} - {*held_out}:
            for sums in ("documents", "kept", "tokens", "characters", "bytes", "unknown", "text"):
                getattr(total, sums)[name] += getattr(part.counts, sums)[name]
            total.longest[name] = max(total.longest[name], part.counts.longest[name])
            if name != "train":
                bits, more = total.escape_bits[name], part.counts.escape_bits[name]
                total.escape_bits[name] = None if bits is None or more is None else bits + more
        total.unknown_texts = dict(Counter(total.unknown_texts) + Counter(part.counts.unknown_texts))
    files = {
        name: first.files[name] if name in held_out else [part.files[name][0] for part in parts] for name in SPLITS
    }
    for name in {*SPLITS} - {*held_out}:  # a chain of digests has one length
        total.text[name] = hashlib.sha256(total.text[name].encode()).hexdigest() if total.text[name] else ""
    digest = " ".join(part.digest for part in parts)
    return Prepared(files, first.tokenizer, total, digest, sum(part.sampled for part in parts))


def _train(tokenizer: TokenizerConfig, corpora: Sequence[Corpus], settings: Settings, study: Path) -> Tokenizer:
    """Return the trained tokenizer. The text of which it is trained is not kept."""
    sample = training_sample(corpora, settings, tokenizer.sample)
    with locate_errors("tokenizer"):
        return tokenizer.prepare(sample, study)


def _held_out(corpora: Mapping[str, Corpus]) -> frozenset[bytes]:
    """Return the digests of the documents in evaluation files."""
    return frozenset(digest_words(text) for name in SPLITS[1:] if name in corpora for text in corpora[name].texts())


def _write(writer: TokenWriter, corpora: Mapping[str, Corpus], job: Job, progress: Progress | None) -> None:
    """Tokenize the corpora from the place of the last stored progress."""
    writer.start()
    size, read = sum(corpus.size for corpus in corpora.values()), sum(writer.counts.characters.values())

    def list_blocks() -> Iterator[Block]:
        for name in SPLITS:
            if name in corpora:
                rest = islice(corpora[name].texts(), writer.counts.documents[name], None)
                yield from (Block(name, texts, writer.full) for texts in blocks(rest))

    for block, encoded in encode_blocks(job, list_blocks()):
        writer.append(block, encoded)
        read += sum(map(len, block.texts))
        if progress is not None:
            progress(min(read, size), size)
    writer.store(done=True)


def _describe(tokenizer: TokenizerConfig, study: Path) -> Any:
    """Return the settings of a tokenizer as plain data, with the content of its file in place of the path."""
    data, content = to_data(tokenizer), tokenizer.content(study)
    if not content:
        return data
    return computation_fields({"task": {"tokenizer": data}})["task"], hashlib.sha256(content.encode()).hexdigest()


def training_sample(corpora: Sequence[Corpus], settings: Settings, size: int) -> str:
    """Return the first `size` characters of the training text, in equal parts of each corpus, or somewhat more.

    The text is empty if none is needed.
    """
    sample: list[str] = []
    for corpus in corpora if size else ():
        total = 0
        for text in corpus.texts():
            if hashed_split(text, settings.val, settings.test) == "train":
                sample.append(text + settings.separator_text)
                total += len(sample[-1])
                if total >= size // len(corpora):
                    break
        if not total:
            problem = f"the corpus {corpus.source!r} has no training text"
            raise UserError(problem, path=("source",), remedy="Use more text, or smaller shares.")
    return "".join(sample)


def blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of documents with about `BLOCK` characters each.

    Raises:
        UserError: if a document has more than `LONGEST` characters.
    """
    block: list[str] = []
    size = 0
    for text in texts:
        if len(text) > LONGEST:
            problem = f"a document has {len(text):,} characters, but of large corpora the limit is {LONGEST:,}: "
            problem += f"{text[:40]!r}"
            raise UserError(problem, path=("per",), remedy=DIVIDE)
        block.append(text)
        size += len(text)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block
