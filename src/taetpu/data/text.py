"""Task `text`: next-token prediction on a corpus that fits into memory, in windows of fixed length."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from pydantic import Field

from taetpu.core.config import Size, SlotMark
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.progress import show_progress
from taetpu.core.registry import register
from taetpu.data.base import (
    Batch,
    BatchSpec,
    Source,
    Split,
    at_length,
    epoch_rows,
    evaluation_split,
    train_windows,
)
from taetpu.data.bigrams import bigram_loss
from taetpu.data.corpora import Corpus, Sources, has_split, list_local, names_of, open_corpus, origins
from taetpu.data.document_files import Format, Layout, Per
from taetpu.data.next_token import NextTokenTask
from taetpu.data.overlap import overlap
from taetpu.data.splitting import (
    SEPARATOR,
    collapse,
    group_duplicates,
    join_documents,
    split_by_document,
    split_by_hash,
    split_in_order,
    with_separators,
)
from taetpu.data.stream_source import EVALUATED, PROMPT_LENGTH, StreamSource
from taetpu.data.streamed_text import Settings, prepare_text
from taetpu.data.token_files import TokenStream
from taetpu.data.tokenizers import CharConfig, Tokenizer, TokenizerConfig

Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(gt=0)]
EMPTY_LINE = "empty-line"
SOURCES = ("source", "val_source", "test_source")
"""Fields that name files."""
LARGE = 2**28
"""Size of a corpus in bytes from which its tokens are kept in the cache, not in memory."""
EVAL_TOKENS = 2**20
SPLITTERS = {"order": split_in_order, "document": split_by_document, "hash": split_by_hash}

Streams = dict[str, np.ndarray]
"""Tokens, or the documents of tokens, of each split, int32 `(n,)`."""


@register("task", "text")
class TextTask(NextTokenTask):
    """Predict the next token of a text.

    `source` is `python-docs`, files, patterns or folders, the name of a published corpus such as `wikitext-2`, a
    dataset of the Hugging Face hub (`hf://datasets/OWNER/NAME`), or files in Cloud Storage (`gs://BUCKET/PATH`). In
    text files, a document is a file, a line, or what lies between blank lines (`per`). In `.jsonl`, `.csv`, `.tsv`,
    `.parquet` and `.arrow` files, and in folders that `datasets` saved, each row is a document, and `field` names its
    text. Endings `.gz` and `.zst` are unpacked.

    `split: document` keeps every document in one split, so that evaluation text does not continue training text. It is
    the default for several documents. A single document can only be split in order (training, validation, test).
    `split: hash` assigns documents by their text alone, so that more documents move none to another split. Documents
    with the same text belong to one split. The documents of a split are concatenated, and windows may span several.
    """

    source: Annotated[Sources, Field(description="python-docs, files, patterns, folders, names, hf:// or gs://")]
    val_source: Sources | None = None
    """Files of validation text, in place of a share of `source` or of its published split."""
    test_source: Sources | None = None
    """Files of test text, in place of a share of `source` or of its published split."""
    format: Format | None = None
    """Format of all files; `none`: that of their endings. `text` trains the syntax of any file."""
    field: str = "text"
    """Column or key of the text in tables and JSON lines."""
    per: Per = "file"
    """What a document of a text file is."""
    lines_per_document: Size = 1
    """Number of lines of a document, for `per: line`."""
    tokenizer: Annotated[TokenizerConfig, SlotMark("tokenizer")] = CharConfig()
    """Tokenizer of the text."""
    val: Share = 0.1
    """Share of the text for validation, without `val_source`. Datasets with such a split give it in full."""
    test: Share = 0.0
    """Share of the text for testing, without `test_source`. Datasets with such a split give it in full."""
    split: Literal["order", "document", "hash"] | None = None
    """Way to split: in the `order` of the text, by whole `document`, or by `hash`; `none`: `document` if several."""
    separator: str = "empty-line"
    """What follows a document: an `empty-line`, or a token of the tokenizer, such as `<|endoftext|>`."""
    bos: str | None = None
    """Token before each document, with a token as separator."""
    train_documents: Count | None = None
    """Number of training documents: the first ones. Evaluation data stay the same."""
    train_tokens: Count | None = None
    """Number of training tokens: the first ones. Evaluation data stay the same."""
    eval_tokens: Count | None = None
    """Tokens from which on an evaluation split of a corpus above 256 MiB takes no more documents; `none`: 1,048,576."""
    segments: bool = False
    """Whether batches contain the document of each token, for the mask `document` and for absolute positions."""

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """See `Task.evaluation_sets`."""
        return self.sets_of(val=self.val or self.val_source, test=self.test or self.test_source)

    @property
    def batch(self) -> BatchSpec:
        """See `Task.batch`."""
        return BatchSpec(segments=self.segments)

    @property
    def layout(self) -> Layout:
        """How documents are found in files."""
        return Layout(self.format, self.field, self.per, self.lines_per_document)

    def prepare(self, folder: Path) -> "TextSource | StreamSource":
        """See `Task.prepare`. Corpora above `LARGE` bytes are tokenized into the cache."""
        corpora = self._open(folder)
        if sum(corpus.size for corpus in corpora.values()) > LARGE:
            return self._prepare_large(corpora, folder)
        parts, about = self._read_parts(corpora)
        texts = {name: "".join(part) for name, part in parts.items()}
        if not texts["train"]:
            raise _too_short("train", 0, self.seq_len)
        try:
            tokenizer = self.tokenizer.prepare(texts["train"], folder)
        except UserError as error:
            raise error.within("tokenizer") from None
        streams, segments = self._encode(parts, tokenizer)
        self._check_lengths(streams)
        facts = {
            "source": self.source if isinstance(self.source, str) else ", ".join(self.source),
            **origins(corpora),
            **about,
            "characters": {name: len(text) for name, text in texts.items()},
            "bytes": {name: len(text.encode()) for name, text in texts.items()},
            "escape_bits": self._escape_bits(texts, parts, tokenizer),
            **tokenizer.facts,
        }
        return TextSource(
            streams, tokenizer, self.seq_len, _hash_held_out(texts), facts, self.eval_lengths, segments,
            starts=self.bos is not None,
        )  # fmt: skip

    @property
    def sources(self) -> tuple[str, ...]:
        """See `Task.sources`."""
        return names_of(self.source, self.val_source, self.test_source)

    def files(self, folder: Path) -> list[Path]:
        """See `Task.files`."""
        return [path for field in SOURCES for path in list_local(getattr(self, field), folder, field)]

    def _open(self, folder: Path) -> dict[str, Corpus]:
        """Return the corpus that shares divide, and those of evaluation files."""
        corpora = {"train": open_corpus(self.source, folder, self.layout)}
        for name in EVALUATED:
            if (given := getattr(self, f"{name}_source")) is not None:
                corpora[name] = open_corpus(given, folder, self.layout, f"{name}_source", name)
            elif getattr(self, name) and has_split(self.source, folder, name):
                corpora[name] = open_corpus(self.source, folder, self.layout, split=name)
        return corpora

    def _shares(self, corpora: Mapping[str, Corpus]) -> dict[str, float]:
        """Return the shares of `source` that evaluation splits take."""
        shares = {name: 0.0 if name in corpora else getattr(self, name) for name in EVALUATED}
        if sum(shares.values()) >= 1:
            problem = f"val {self.val} and test {self.test} leave no training text"
            raise UserError(problem, path=("val",), remedy="Set `val` and `test` so that their sum is below 1.")
        return shares

    def _prepare_large(self, corpora: Mapping[str, Corpus], folder: Path) -> StreamSource:
        """Return the source of a corpus whose tokens lie in the cache."""
        tokens = self.separator != EMPTY_LINE
        if self.split not in (None, "hash"):
            problem = f"a corpus of more than {LARGE:,} bytes cannot be split by {self.split!r}"
            raise UserError(problem, path=("split",), remedy="Use `split: hash`, or files of evaluation text.")
        if self.segments and not tokens:
            problem = f"segments of a corpus of more than {LARGE:,} bytes need a token between documents"
            raise UserError(problem, path=("separator",), remedy="Set `separator` to a token of the tokenizer.")
        if self.train_documents is not None:
            problem = f"train_documents of a corpus of more than {LARGE:,} bytes"
            raise UserError(problem, path=("train_documents",), remedy="Use train_tokens.")
        shares = self._shares(corpora)
        settings = Settings(
            self.layout, shares["val"], shares["test"], self.separator if tokens else None, self.bos,
            "" if tokens else SEPARATOR, self.eval_tokens or EVAL_TOKENS,
        )  # fmt: skip
        with show_progress("tokens") as progress:
            prepared = prepare_text(corpora, self.tokenizer, settings, self._token, folder, progress)
        counts = prepared.counts
        streams = {name: TokenStream([file.tokens]) for name, file in prepared.files.items()}
        if self.train_tokens is not None:
            _check_crop("train_tokens", self.train_tokens, len(streams["train"]))
            streams["train"] = streams["train"].part(0, self.train_tokens)
        self._check_lengths(streams)
        facts = {
            "source": self.source if isinstance(self.source, str) else ", ".join(self.source),
            **origins(corpora),
            "sha256": counts.text["train"],
            "documents": sum(counts.documents.values()),
            "split": "hash",
            "characters": counts.characters,
            "bytes": counts.bytes,
            "escape_bits": counts.escape_bits,
            **prepared.tokenizer.facts,
            **({"tokenizer_sample": prepared.sample} if prepared.sample else {}),
        }
        return StreamSource(
            streams, self.seq_len, prepared.tokenizer.vocab_size, facts,
            digest=prepared.digest, unit=prepared.tokenizer.unit,
            evaluated=hashlib.sha256(f"{counts.text['val']} {counts.text['test']}".encode()).hexdigest(),
            tokenizer=prepared.tokenizer, starts=self.bos is not None, eval_lengths=self.eval_lengths,
            end_token=prepared.tokenizer.number(self.separator) if self.segments else None,
        )  # fmt: skip

    def _read_parts(self, corpora: Mapping[str, Corpus]) -> tuple[dict[str, list[str]], dict[str, Any]]:
        """Return the texts of each split, one for each document, and facts about them."""
        shares = self._shares(corpora)
        separator = SEPARATOR if self.separator == EMPTY_LINE else ""
        documents = corpora["train"].read()
        held_out = {name: corpora[name].read() for name in EVALUATED if name in corpora}
        evaluated = {collapse(document.text) for part in held_out.values() for document in part}
        kept = (
            [document for document in documents if collapse(document.text) not in evaluated] if held_out else documents
        )
        if not kept:
            problem = f"every document of {self.source!r} is also an evaluation document"
            raise UserError(problem, path=("source",), remedy="Use other training text.")
        split = self.split or ("document" if len(kept) > 1 else "order")
        if split == "document" and any(shares.values()) and len(group_duplicates(kept)) == 1:
            problem = f"all documents of {self.source!r} have the same text, so they cannot be split by document"
            raise UserError(
                problem, path=("split",), remedy="Use `split: order`, or a folder with different documents."
            )
        parts = SPLITTERS[split](kept, shares["val"], shares["test"], separator)
        parts |= {name: with_separators(part, separator) for name, part in held_out.items()}
        if self.train_documents is not None:
            if self.train_documents > len(parts["train"]):
                problem = (
                    f"train_documents {self.train_documents:,} are more than the {len(parts['train']):,} there are"
                )
                raise UserError(problem, path=("train_documents",), remedy="Use fewer, or remove train_documents.")
            parts["train"] = parts["train"][: self.train_documents]
        text = join_documents([*documents, *(document for part in held_out.values() for document in part)])
        about = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "documents": len(documents), "split": split}
        if len(kept) < len(documents):
            about["removed"] = len(documents) - len(kept)
        return parts, about

    def _encode(self, parts: dict[str, list[str]], tokenizer: Tokenizer) -> tuple[Streams, Streams | None]:
        """Return the tokens of each split, and the document of each token if the task has segments."""
        begin, end = (self._token(name, tokenizer) for name in ("bos", "separator"))
        start = [] if begin is None else [begin]
        try:
            if end is None:
                encoded = {name: [*map(tokenizer.encode, part if self.segments else ["".join(part)] if part else [])]
                           for name, part in parts.items()}  # fmt: skip
            else:
                encoded = {name: [np.array([*start, *tokenizer.encode_plain(text), end], np.int32) for text in part]
                           for name, part in parts.items()}  # fmt: skip
        except UserError as error:
            raise error.within("tokenizer") from None
        streams = {name: np.concatenate([*rows, np.zeros(0, np.int32)]) for name, rows in encoded.items()}
        segments = {name: np.repeat(np.arange(len(rows), dtype=np.int32), [*map(len, rows)])
                    for name, rows in encoded.items()} if self.segments else None  # fmt: skip
        if self.train_tokens is not None:
            _check_crop("train_tokens", self.train_tokens, len(streams["train"]))
            for part in filter(None, (streams, segments)):
                part["train"] = part["train"][: self.train_tokens]
        return streams, segments

    def _token(self, field: str, tokenizer: Tokenizer) -> int | None:
        """Return the number of the token that a field names; None if it names none."""
        name = getattr(self, field)
        if name is None or (field, name) == ("separator", EMPTY_LINE):
            return None
        if field == "bos" and self.separator == EMPTY_LINE:
            problem = f"bos is {name!r}, but documents are separated by empty lines, without tokens"
            raise UserError(problem, path=("bos",), remedy="Set `separator` to a token, or remove `bos`.")
        if (number := tokenizer.number(name)) is None:
            problem = f"the tokenizer has no token {name!r}"
            remedy = f"Set {field} to a token of the tokenizer" + (
                ", or to empty-line." if field == "separator" else "."
            )
            raise UserError(problem, path=(field,), remedy=remedy)
        return number

    def _escape_bits(
        self, texts: Mapping[str, str], parts: Mapping[str, list[str]], tokenizer: Tokenizer
    ) -> dict[str, float | None]:
        """Return the bits that restore the text of evaluation splits; see `Tokenizer.escape_bits`."""
        if self.separator == EMPTY_LINE:
            return {name: tokenizer.escape_bits(texts[name]) for name in EVALUATED}
        bits = {name: [*map(tokenizer.escape_bits, parts[name])] for name in EVALUATED}
        return {name: None if None in part else sum(filter(None, part)) for name, part in bits.items()}

    def _check_lengths(self, streams: Mapping[str, np.ndarray | TokenStream]) -> None:
        """Raise `UserError` if a split that is asked for is too short for a window."""
        for name, stream in streams.items():
            wanted = name == "train" or getattr(self, name) or getattr(self, f"{name}_source")
            if wanted and len(stream) <= self.seq_len:
                raise _too_short(name, len(stream), self.seq_len)
        for i, length in enumerate(self.eval_lengths):
            if len(streams["val"]) <= length:
                problem = (
                    f"the val split has {len(streams['val'])} tokens, so no sequence of {length} tokens has targets"
                )
                raise UserError(problem, path=("eval_lengths", i), remedy="Use a shorter length, or raise val.")


def _check_crop(field: str, wanted: int, available: int) -> None:
    if wanted > available:
        problem = f"{field} {wanted:,} are more than the {available:,} there are"
        raise UserError(problem, path=(field,), remedy=f"Use fewer, or remove {field}.")


def _hash_held_out(texts: Mapping[str, str]) -> str:
    """Return the SHA-256 digest of the held-out text before tokenization."""
    digest = hashlib.sha256()
    for name in EVALUATED:
        text = texts[name].encode()
        digest.update(f"{name} {len(text)} ".encode() + text)
    return digest.hexdigest()


def _too_short(split: str, tokens: int, seq_len: int) -> UserError:
    problem = f"seq_len {seq_len} is longer than the {split} split, which has {tokens} tokens"
    bound = f"Use seq_len {tokens - 1} or less, or " if tokens > 1 else "Change the data: "
    other = "use more text." if split == "train" else f"raise {split}, use more text, or use `split: order`."
    return UserError(problem, path=("seq_len",), remedy=bound + other)


class TextSource(Source):
    """A tokenized corpus with training windows and evaluation splits; see `data.base.Source`."""

    can_gather = True
    num_windows: int
    tokenizer: Tokenizer

    def __init__(
        self,
        streams: Mapping[str, np.ndarray],
        tokenizer: Tokenizer,
        seq_len: int,
        evaluated: str,
        facts: dict[str, Any],
        eval_lengths: Sequence[int] = (),
        segments: Mapping[str, np.ndarray] | None = None,
        *,
        starts: bool = False,
    ):
        self.tokenizer = tokenizer  # pyright: ignore[reportIncompatibleVariableOverride]
        self.vocab_size = tokenizer.vocab_size
        self.seq_len = seq_len
        self.evaluated = evaluated
        self.unit = tokenizer.unit
        self._windows = {"windows": train_windows(streams["train"], seq_len)}
        self.num_windows = len(self._windows["windows"])  # pyright: ignore[reportIncompatibleVariableOverride]
        if segments is not None:
            self._windows["segments"] = train_windows(segments["train"], seq_len)[:, :-1]
        self._streams, self._segments = streams, segments
        self._text_facts, self._starts = facts, starts or len(tokenizer.start_tokens) > 0
        self._splits = {name: self._split(name, seq_len) if len(streams[name]) else None for name in EVALUATED}
        self._splits |= {at_length(length): self._split("val", length) for length in eval_lengths}
        self.fingerprint = self._fingerprint()

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """See `Source.rows`."""
        return epoch_rows(seed, start, count, batch_size, self.num_windows)

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """See `Source.batch`."""
        windows = arrays["windows"][rows]
        tokens, targets = windows[:, :-1], windows[:, 1:]
        segments = arrays["segments"][rows] if "segments" in arrays else None
        return Batch(tokens, targets, jnp.ones(tokens.shape, jnp.float32), segments)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """See `Source.arrays`."""
        return {name: np.ascontiguousarray(windows) for name, windows in self._windows.items()}

    def gather(self, rows: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """See `Source.gather`."""
        return {name: windows[rows] for name, windows in self._windows.items()}

    def evaluation(self, split: str) -> Split | None:
        """See `Source.evaluation`."""
        return self._splits.get(split)

    def _split(self, name: str, seq_len: int) -> Split:
        num_bytes, escape_bits = (self._text_facts[fact][name] for fact in ("bytes", "escape_bits"))
        documents = None if self._segments is None else self._segments[name]
        return evaluation_split(
            self._streams[name], seq_len, self.vocab_size, num_bytes, escape_bits, documents, starts=self._starts
        )

    def prompt(self) -> np.ndarray:
        """Return the start of the validation text, or of the training text if there is no validation split."""
        stream = self._streams["val"] if len(self._streams["val"]) else self._streams["train"]
        return stream[: max(1, min(PROMPT_LENGTH, self.seq_len // 2))]

    def show(self, ids: Any) -> str:
        """See `Source.show`."""
        return self.tokenizer.decode(ids)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """See `Source.facts`."""
        loss = bigram_loss(self._streams["train"], self._streams["val"], self.vocab_size)
        return {
            **self._text_facts,
            "vocab_size": self.vocab_size,
            "tokens": {name: len(stream) for name, stream in self._streams.items()},
            "windows": self.num_windows,
            "overlap": {name: overlap(self._streams["train"], self._streams[name]) for name in EVALUATED},
            "chance_loss": math.log(self.vocab_size),
            "bayes_loss": None,
            "decoy_loss": loss,
            "decoy": "bigrams counted on the training split, one added to each, scored on the validation split",
        }

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"text 2, seq_len {self.seq_len}, {self.tokenizer.to_json()}".encode())
        for name, stream in sorted(self._streams.items()):
            digest.update(f"{name} {len(stream)}".encode())
            digest.update(stream.astype("<i4").tobytes())
        for name, documents in sorted((self._segments or {}).items()):
            digest.update(f"segments of {name}".encode() + documents.astype("<i4").tobytes())
        return digest.hexdigest()
