"""Task `text`: next-token prediction on a corpus that fits into memory, in windows of fixed length."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from taetpu.core.config import Size, SlotMark
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.progress import show_progress
from taetpu.core.registry import register
from taetpu.data.base import BatchSpec
from taetpu.data.corpora import Sources, open_corpus, origins
from taetpu.data.document_encoding import encode_documents, split_rows
from taetpu.data.document_files import Format, Layout, Per
from taetpu.data.document_source import DocumentSource, join_rows
from taetpu.data.mixture import Weights, count_windows, mix, refuse_shared
from taetpu.data.next_token import NextTokenTask
from taetpu.data.pairs import CLS, SEP, PairSource
from taetpu.data.source_task import Opened, check_crop
from taetpu.data.splitting import SEPARATOR
from taetpu.data.stream_source import EVALUATED, StreamSource
from taetpu.data.streamed_text import Prepared, Settings, join_prepared, prepare_text
from taetpu.data.text_parts import Parts, none_assigned, read_parts
from taetpu.data.text_source import TextSource
from taetpu.data.token_cache import SPLITS
from taetpu.data.token_files import TokenStream, join_streams
from taetpu.data.tokenizers.base import Tokenizer, TokenizerConfig
from taetpu.data.tokenizers.bordered import END, with_borders
from taetpu.data.tokenizers.characters import CharConfig
from taetpu.data.tokenizers.files import ReadTokenizerConfig
from taetpu.data.unknown_tokens import find_unknown, unknown_facts

Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(gt=0)]
EMPTY_LINE = "empty-line"
LARGE = 2**28
"""Size of a corpus in bytes from which its tokens are kept in the cache, not in memory."""
EVAL_TOKENS = 2**20

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

    source: Annotated[
        Sources | Weights,
        Field(
            description="python-docs, files, patterns, folders, names, hf:// or gs://, or a mixture {source: weight}"
        ),
    ]
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
    samples: Literal["windows", "documents", "pairs"] = "windows"
    """Sequences: `windows` of the text, whole `documents`, padded, or `pairs` of pieces (objective `next-sentence`)."""
    long_documents: Literal["refuse", "crop"] = "refuse"
    """Documents that do not fit into `seq_len`, with `samples: documents`: an error, or their start is read."""
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
    """Number of training documents (of each source): the first ones. Evaluation data stay the same."""
    train_tokens: Count | None = None
    """Number of training tokens (of each source): the first ones. Evaluation data stay the same."""
    eval_tokens: Count | None = None
    """Tokens from which on an evaluation split of a corpus above 256 MiB takes no more documents; `none`: 1,048,576."""
    segments: bool = False
    """Whether batches contain the document of each token, for the mask `document` and for absolute positions."""

    @property
    def batch(self) -> BatchSpec:
        """See `Task.batch`."""
        lengths = self.samples != "windows"
        return BatchSpec(segments=self.segments, lengths=lengths, prefix=self.objective.has_prefix)

    @property
    def layout(self) -> Layout:
        """How documents are found in files."""
        return Layout(self.format, self.field, self.per, self.lines_per_document)

    def special_tokens(self, source: Any) -> Collection[int]:
        """See `NextTokenTask.special_tokens`."""
        numbers = (source.tokenizer.number(name) for name in (self.bos, self.separator) if name is not None)
        return *(number for number in numbers if number is not None), *getattr(source, "ends", ())

    def read(self, folder: Path) -> StreamSource | PairSource:
        """See `NextTokenTask.read`. Corpora above `LARGE` bytes are tokenized into the cache."""
        self._check_samples()
        opened = self._open(folder)
        if sum(corpus.size for corpora in opened for corpus in corpora.values()) > LARGE:
            if self.samples != "windows":
                problem = f"samples are {self.samples}, but the corpus has more than {LARGE:,} bytes"
                raise UserError(problem, path=("samples",), remedy="Use `samples: windows`, or less text.")
            return self._prepare_large(opened, folder)
        documents = self.samples != "windows"
        separator = SEPARATOR if self.separator == EMPTY_LINE and not documents else ""
        split = self.split or ("document" if documents else None)
        parts = read_parts(*opened, self.shares(opened.held_out, "text"), separator, split)
        if self.train_documents is not None:
            for name, part in parts.training.items():
                check_crop("train_documents", self.train_documents, len(part), name)
                parts.training[name] = part[: self.train_documents]
        if documents:
            prepare = self._prepare_pairs if self.samples == "pairs" else self._prepare_documents
            return prepare(opened, parts, folder)
        texts = parts.texts
        if not texts["train"]:
            raise _too_short("train", 0, self.seq_len)
        with locate_errors("tokenizer"):
            tokenizer = self.tokenizer.prepare(texts["train"], folder)
        streams, segments, sizes, uncropped = self._encode(parts, tokenizer)
        self._check_lengths(streams, sizes)
        facts = {
            **self._facts(opened, parts, texts),
            "escape_bits": self._escape_bits(texts, parts, tokenizer),
            "longest": parts.longest,
            **find_unknown(texts, streams, tokenizer),
            **self._uncropped(uncropped),
            **tokenizer.facts,
        }
        return TextSource(
            streams, tokenizer, self.seq_len, _hash_held_out(texts), facts, self.eval_lengths, segments,
            starts=self.bos is not None, mixture=mix(self.source, sizes, count_windows(sizes, self.seq_len)),
        )  # fmt: skip

    def _check_samples(self) -> None:
        """Raise `UserError` for a setting that has no meaning with the kind of samples."""
        if self.samples == "windows":
            if self.long_documents != "refuse":
                problem = f"long_documents is {self.long_documents!r}, but samples are windows, which divide documents"
                raise UserError(problem, path=("long_documents",), remedy="Set `samples: documents`.")
            return
        refused = {
            "segments": "Remove it: a sample is of one document.",
            "eval_lengths": "Remove it: the evaluation documents have their own lengths.",
            "train_tokens": "Use train_documents.",
        }
        if self.samples == "pairs":
            if isinstance(self.source, dict):
                problem = f"source is a mixture of {len(self.source)} sources, but samples are pairs"
                raise UserError(problem, path=("source",), remedy="List the sources, without weights.")
            if self.long_documents != "refuse":
                problem = f"long_documents is {self.long_documents!r}, but samples are pairs, which divide documents"
                raise UserError(problem, path=("long_documents",), remedy="Remove it.")
        for name, remedy in refused.items():
            if getattr(self, name):
                raise UserError(f"{name} is set, but samples are {self.samples}", path=(name,), remedy=remedy)
        if self.split == "order":
            problem = f"`split: order` divides documents, but samples are {self.samples}"
            raise UserError(problem, path=("split",), remedy="Use `split: document` or `split: hash`.")

    def _prepare_documents(self, opened: Opened, parts: Parts, folder: Path) -> DocumentSource:
        """Return the source whose sequences are documents."""
        tokenizer, ends = self._bordered(parts.documents["train"], folder)
        with locate_errors("tokenizer"):
            training, evaluation = (
                {name: split_rows(*encode_documents(tokenizer, part, *zip(ends))) for name, part in texts.items()}
                for texts in (parts.training, parts.evaluation)
            )
        limit, cropped = self.seq_len + 1, dict.fromkeys(SPLITS, 0)
        for texts, encoded in ((parts.training, training), (parts.evaluation, evaluation)):
            for name, rows in encoded.items():
                long = [i for i, row in enumerate(rows) if len(row) > limit]
                if long and self.long_documents == "refuse":
                    raise self._too_long([(texts[name][i], len(rows[i]) - 1) for i in long], opened)
                cropped[name if encoded is evaluation else "train"] += len(long)
                encoded[name] = [row[:limit] for row in rows]
        texts = {name: "".join(f"{text}\n" for text in part) for name, part in parts.documents.items()}
        bits = {name: [*map(tokenizer.escape_bits, parts.evaluation[name])] for name in EVALUATED}
        documents = {"train": join_rows([*chain.from_iterable(training.values())])}
        documents |= {name: join_rows(part) for name, part in evaluation.items()}
        facts = {
            **self._facts(opened, parts, texts),
            "escape_bits": {
                name: None if None in part or cropped[name] else sum(filter(None, part)) for name, part in bits.items()
            },
            "longest": parts.longest,
            **find_unknown(parts.texts, {name: part.tokens for name, part in documents.items()}, tokenizer),
            **({"cropped": cropped} if any(cropped.values()) else {}),
            **tokenizer.facts,
        }
        seen = f", {self.seq_len} of {tokenizer.unit}" if any(cropped[name] for name in EVALUATED) else ""
        return DocumentSource(
            documents, tokenizer, self.seq_len, ends,
            _hash_held_out(texts) + seen, facts,
            mix(self.source, {name: sum(map(len, part)) for name, part in training.items()},
                {name: len(part) for name, part in training.items()}),
        )  # fmt: skip

    def _prepare_pairs(self, opened: Opened, parts: Parts, folder: Path) -> PairSource:
        """Return the source whose sequences are pairs of pieces of documents."""
        texts = parts.documents
        tokenizer, ends = self._bordered(texts["train"], folder)
        with locate_errors("tokenizer"):
            documents = {name: tokenizer.encode_all(part) for name, part in texts.items()}
        whole = {name: "".join(f"{text}\n" for text in part) for name, part in texts.items()}
        facts = {**self._facts(opened, parts, whole), "longest": parts.longest, **tokenizer.facts}
        evaluated = f"{_hash_held_out(whole)}, pairs 1, {self.seq_len} of {tokenizer.unit}"
        return PairSource(documents, tokenizer, ends, self.seq_len, facts, evaluated)

    def _bordered(self, texts: Sequence[str], folder: Path) -> tuple[Tokenizer, tuple[int, int]]:
        """Return the tokenizer of documents or pairs, and the numbers of the tokens that begin and end them."""
        # The characters are those of the documents. Other tokenizers must not merge the ends of neighbours.
        glue = "" if isinstance(self.tokenizer, CharConfig) else "\n"
        with locate_errors("tokenizer"):
            tokenizer = self.tokenizer.prepare(glue.join(texts), folder)
        add = not isinstance(self.tokenizer, ReadTokenizerConfig)
        pairs = self.samples == "pairs"
        end = (SEP if pairs else END) if self.separator == EMPTY_LINE else self.separator
        names = {"separator": end, "bos": self.bos or (CLS if pairs else end)}
        if not add:
            for field, name in names.items():
                if tokenizer.number(name) is None:
                    raise _no_token(field, name)
        tokenizer = with_borders(tokenizer, names["bos"], end, add=add)
        first, last = (tokenizer.number(names[field]) for field in ("bos", "separator"))
        assert first is not None and last is not None  # noqa: PT018
        return tokenizer, (first, last)

    def _too_long(self, long: list[tuple[str, int]], opened: Opened) -> UserError:
        """Return the error for documents that do not fit, given with their numbers of tokens."""
        text, size = long[0]
        documents = (document for corpora in opened for corpus in corpora.values() for document in corpus)
        file, _, number = next(document.name for document in documents if document.text == text).rpartition(":")
        what = "line" if self.per == "line" and self.lines_per_document == 1 else "document"
        place = f"{what} {int(number) + 1} of {file}" if file else f"the document {number}"
        longest = max(size for _, size in long)
        problem = f"{place} ({text[:20]!r}...) has {size:,} tokens with its end, more than seq_len {self.seq_len}"
        if len(long) > 1:
            problem += f", as have {len(long) - 1:,} others; the longest has {longest:,}"
        remedy = f"Use seq_len {longest}, set `long_documents: crop`, or divide or remove them."
        return UserError(problem, path=("seq_len",), remedy=remedy)

    def _facts(self, opened: Opened, parts: Parts, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the facts of a corpus in memory that do not depend on its tokens."""
        return {
            "source": self.source if isinstance(self.source, str) else ", ".join(self.source),
            **origins({**{name or "train": corpus for name, corpus in opened.training.items()}, **opened.held_out}),
            **parts.facts,
            "characters": {name: len(text) for name, text in texts.items()},
            "bytes": {name: len(text.encode()) for name, text in texts.items()},
        }

    def _open(self, folder: Path) -> Opened:
        """Open the corpora."""
        names = tuple(self.source) if isinstance(self.source, dict) else self.source
        if isinstance(self.source, dict):
            corpora = {name: open_corpus(name, folder, self.layout) for name in self.source}
            refuse_shared({name: [path for _, path in corpus.files] for name, corpus in corpora.items()})
        else:
            corpora = {"": open_corpus(names, folder, self.layout)}
        return Opened(corpora, self.open_held_out(names, folder, self.layout))

    def _prepare_large(self, opened: Opened, folder: Path) -> StreamSource:
        """Return the source of a corpus whose tokens lie in the cache."""
        corpora, held_out = opened
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
        shares = self.shares(held_out, "text")
        limit = self.eval_tokens or EVAL_TOKENS
        settings = Settings(
            self.layout, shares["val"], shares["test"], self.separator if tokens else None, self.bos,
            "" if tokens else SEPARATOR, max(limit // len(corpora), 1) if any(shares.values()) else limit,
        )  # fmt: skip
        made: list[tuple[Prepared, str]] = []
        with show_progress("tokens") as progress:
            for name, corpus in corpora.items():
                part = prepare_text(
                    {"train": corpus, **held_out}, self.tokenizer, settings, self._token, folder, progress,
                    mixed=[*corpora.values()] if len(corpora) > 1 else (),
                    trained=made[0][0].tokenizer if made else None,
                )  # fmt: skip
                made.append((part, name))
        made.sort(key=lambda item: item[0].digest)  # an identity does not depend on names
        prepared = join_prepared([part for part, _ in made], held_out)
        counts, training = prepared.counts, {}
        for (_, name), file in zip(made, prepared.files["train"], strict=True):
            training[name] = TokenStream([file.tokens])
            if self.train_tokens is not None:
                check_crop("train_tokens", self.train_tokens, len(training[name]), name)
                training[name] = training[name].part(0, self.train_tokens)
        streams = {"train": join_streams(training.values())}
        streams |= {name: TokenStream([file.tokens for file in prepared.files[name]]) for name in EVALUATED}
        sizes = {name: len(stream) for name, stream in training.items()}
        for name, share in shares.items():
            if share and not counts.kept[name]:
                raise none_assigned(name, counts.documents["train"], ", ".join(corpora) or str(self.source))
        self._check_lengths(streams, sizes)
        facts = {
            "source": self.source if isinstance(self.source, str) else ", ".join(self.source),
            **origins({**{name or "train": corpus for name, corpus in corpora.items()}, **held_out}),
            "sha256": counts.text["train"],
            "documents": sum(counts.documents.values()),
            "split": "hash",
            "characters": counts.characters,
            "bytes": counts.bytes,
            **self._uncropped(counts.tokens["train"]),
            "escape_bits": counts.escape_bits,
            "longest": counts.longest,
            **unknown_facts(counts.unknown, counts.tokens, counts.unknown_texts),
            **prepared.tokenizer.facts,
            **({"tokenizer_sample": prepared.sample} if prepared.sample else {}),
        }
        return StreamSource(
            streams, self.seq_len, prepared.tokenizer.vocab_size, facts,
            digest=prepared.digest, unit=prepared.tokenizer.unit,
            evaluated=hashlib.sha256(f"{counts.text['val']} {counts.text['test']}".encode()).hexdigest(),
            tokenizer=prepared.tokenizer, eval_lengths=self.eval_lengths,
            starts=self.bos is not None or (not tokens and len(prepared.tokenizer.start_tokens) > 0),
            end_token=prepared.tokenizer.number(self.separator) if self.segments else None,
            mixture=mix(self.source, sizes, count_windows(sizes, self.seq_len)),
        )  # fmt: skip

    def _uncropped(self, tokens: int) -> dict[str, Any]:
        """Return the fact `uncropped`: the number of tokens before training data were cropped."""
        return {} if self.train_tokens is None else {"uncropped": {"train": tokens}}

    def _encode(self, parts: Parts, tokenizer: Tokenizer) -> tuple[Streams, Streams | None, dict[str, int], int]:
        """Return the tokens of each split, the document of each token, and the training tokens of each source.

        The documents are None if the task has no segments. The last value is the number of training tokens before they
        are cropped. If the tokenizer adds tokens to a text, such as `[CLS]`, each document has them.
        """
        begin, end = (self._token(name, tokenizer) for name in ("bos", "separator"))
        start = [] if begin is None else [begin]

        def encode(part: list[str]) -> tuple[np.ndarray, np.ndarray]:
            if end is None:
                alone = self.segments or len(tokenizer.start_tokens) or len(tokenizer.closing_tokens)
                rows = [*map(tokenizer.encode, part if alone else ["".join(part)] if part else [])]
            else:
                rows = [np.array([*start, *tokenizer.encode_plain(text), end], np.int32) for text in part]
            documents = np.repeat(np.arange(len(rows), dtype=np.int32), [*map(len, rows)])
            return np.concatenate([*rows, np.zeros(0, np.int32)]), documents

        with locate_errors("tokenizer"):
            training = {name: encode(part) for name, part in parts.training.items()}
            encoded = {name: encode(part) for name, part in parts.evaluation.items()}
        uncropped = sum(len(tokens) for tokens, _ in training.values())
        if self.train_tokens is not None:
            for name, (tokens, documents) in training.items():
                check_crop("train_tokens", self.train_tokens, len(tokens), name)
                training[name] = tokens[: self.train_tokens], documents[: self.train_tokens]
        sizes = {name: len(tokens) for name, (tokens, _) in training.items()}
        tokens, documents = map(np.concatenate, zip(*training.values(), strict=True))
        encoded["train"] = tokens, documents
        streams, segments = ({name: pair[i] for name, pair in encoded.items()} for i in range(2))
        return streams, segments if self.segments else None, sizes, uncropped

    def _token(self, field: str, tokenizer: Tokenizer) -> int | None:
        """Return the number of the token that a field names; None if it names none."""
        name = getattr(self, field)
        if name is None or (field, name) == ("separator", EMPTY_LINE):
            return None
        if field == "bos" and self.separator == EMPTY_LINE:
            problem = f"bos is {name!r}, but documents are separated by empty lines, without tokens"
            raise UserError(problem, path=("bos",), remedy="Set `separator` to a token, or remove `bos`.")
        if (number := tokenizer.number(name)) is None:
            raise _no_token(field, name, ", or to empty-line" if field == "separator" else "")
        return number

    def _escape_bits(self, texts: Mapping[str, str], parts: Parts, tokenizer: Tokenizer) -> dict[str, float | None]:
        """Return the bits that restore the text of evaluation splits; see `Tokenizer.escape_bits`."""
        if self.separator == EMPTY_LINE:
            return {name: tokenizer.escape_bits(texts[name]) for name in EVALUATED}
        bits = {name: [*map(tokenizer.escape_bits, parts.evaluation[name])] for name in EVALUATED}
        return {name: None if None in part else sum(filter(None, part)) for name, part in bits.items()}

    def _check_lengths(self, streams: Mapping[str, np.ndarray | TokenStream], sizes: Mapping[str, int]) -> None:
        """Raise `UserError` if a source, or an evaluation split that is asked for, is too short for a window."""
        for name, size in sizes.items():
            if size <= self.seq_len:
                raise _too_short("train", size, self.seq_len, name)
        for name in EVALUATED:
            wanted = getattr(self, name) or getattr(self, f"{name}_source")
            if wanted and len(streams[name]) <= self.seq_len:
                raise _too_short(name, len(streams[name]), self.seq_len)
        for i, length in enumerate(self.eval_lengths):
            if len(streams["val"]) <= length:
                problem = (
                    f"the val split has {len(streams['val'])} tokens, so no sequence of {length} tokens has targets"
                )
                raise UserError(problem, path=("eval_lengths", i), remedy="Use a shorter length, or raise val.")


def _no_token(field: str, name: str, otherwise: str = "") -> UserError:
    problem = f"the tokenizer has no token {name!r}"
    return UserError(problem, path=(field,), remedy=f"Set {field} to a token of the tokenizer{otherwise}.")


def _hash_held_out(texts: Mapping[str, str]) -> str:
    """Return the SHA-256 digest of the held-out text before tokenization."""
    digest = hashlib.sha256()
    for name in EVALUATED:
        text = texts[name].encode()
        digest.update(f"{name} {len(text)} ".encode() + text)
    return digest.hexdigest()


def _too_short(split: str, tokens: int, seq_len: int, source: str = "") -> UserError:
    of_source = f" of {source!r}" if source else ""
    problem = f"seq_len {seq_len} is longer than the {split} split{of_source}, which has {tokens} tokens"
    bound = f"Use seq_len {tokens - 1} or less, or " if tokens > 1 else "Change the data: "
    other = "use more text." if split == "train" else f"raise {split}, use more text, or use `split: order`."
    return UserError(problem, path=("seq_len",), remedy=bound + other)
