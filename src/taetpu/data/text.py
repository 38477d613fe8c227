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

from taetpu.core.config import SlotMark
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.metric_spec import TASK_METRICS, MetricSpec
from taetpu.core.registry import register
from taetpu.data import corpora
from taetpu.data.base import Batch, Split, Task, at_length, epoch_rows, evaluation_split, train_windows
from taetpu.data.overlap import overlap
from taetpu.data.tokenizers import CharConfig, Tokenizer, TokenizerConfig

Share = Annotated[float, Field(ge=0, lt=1)]
PROMPT_LENGTH = 16
EVALUATED = ("val", "test")


@register("task", "text")
class TextTask(Task):
    """Predict the next token of a text.

    `source` is `python-docs`, a file, or a folder of text files. Every character is trained, so files of other formats,
    such as `.jsonl`, `.csv` or `.gz`, are refused. `split: document` keeps every document in one split,
    so that evaluation text does not continue training text. `split: document` is the default for several documents. A
    single file can only be split in order (training, validation, test). Documents with the same text belong to one
    split. The documents of a split are concatenated with an empty line between them, and windows may span several
    documents.
    """

    source: Annotated[str, Field(description="python-docs, or the path of a text file or a folder of text files")]
    tokenizer: Annotated[TokenizerConfig, SlotMark("tokenizer")] = CharConfig()
    """Tokenizer of the text."""
    val: Share = 0.1
    """Share of the text for validation."""
    test: Share = 0.0
    """Share of the text for testing."""
    split: Literal["order", "document"] | None = None
    """Way to split: in the `order` of the text, or by whole `document`; `none`: `document` for several documents."""
    segments: bool = False
    """Whether batches contain the document of each token, for the mask `document` and for absolute positions."""

    @property
    def causal(self) -> bool:
        """True, because each position predicts the next token."""
        return True

    @property
    def metric_specs(self) -> dict[str, MetricSpec]:
        """See `Task.metric_specs`."""
        return TASK_METRICS

    @property
    def has_segments(self) -> bool:
        """Whether batches contain segments."""
        return self.segments

    def prepare(self, folder: Path) -> "TextSource":
        """See `Task.prepare`."""
        if self.val + self.test >= 1:
            problem = f"val {self.val} and test {self.test} leave no training text"
            raise UserError(problem, path=("val",), remedy="Set `val` and `test` so that their sum is below 1.")
        documents = corpora.read_documents(self.source, folder)
        split = self.split or ("document" if len(documents) > 1 else "order")
        if split == "document" and len(corpora.group_duplicates(documents)) == 1:
            problem = f"all documents of {self.source!r} have the same text, so they cannot be split by document"
            raise UserError(
                problem, path=("split",), remedy="Use `split: order`, or a folder with different documents."
            )
        divide = corpora.split_by_document if split == "document" else corpora.split_in_order
        parts = divide(documents, self.val, self.test)
        texts = {name: "".join(part) for name, part in parts.items()}
        if not texts["train"]:
            raise _too_short("train", 0, self.seq_len)
        tokenizer = self.tokenizer.train(texts["train"])
        try:
            encoded = {name: [*map(tokenizer.encode, part if self.segments else ["".join(part)])]
                       for name, part in parts.items()}  # fmt: skip
            escape_bits = {name: tokenizer.escape_bits(texts[name]) for name in EVALUATED}
        except UserError as error:
            raise error.within("tokenizer") from None
        streams = {name: np.concatenate([*rows, np.zeros(0, np.int32)]) for name, rows in encoded.items()}
        segments = {name: np.repeat(np.arange(len(rows), dtype=np.int32), [*map(len, rows)])
                    for name, rows in encoded.items()} if self.segments else None  # fmt: skip
        shares = {"train": 1 - self.val - self.test, "val": self.val, "test": self.test}
        for name, share in shares.items():
            if share and len(streams[name]) <= self.seq_len:
                raise _too_short(name, len(streams[name]), self.seq_len)
        for i, length in enumerate(self.eval_lengths):
            if len(streams["val"]) <= length:
                problem = (
                    f"the val split has {len(streams['val'])} tokens, so no sequence of {length} tokens has targets"
                )
                raise UserError(problem, path=("eval_lengths", i), remedy="Use a shorter length, or raise val.")
        facts = {
            "source": self.source,
            "sha256": hashlib.sha256(corpora.join_documents(documents).encode()).hexdigest(),
            "documents": len(documents),
            "characters": {name: len(text) for name, text in texts.items()},
            "bytes": {name: len(text.encode()) for name, text in texts.items()},
            "escape_bits": escape_bits,
            "split": split,
        }
        return TextSource(streams, tokenizer, self.seq_len, _hash_held_out(texts), facts, self.eval_lengths, segments)


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


class TextSource:
    """A tokenized corpus with training windows and evaluation splits; see `data.base.Source`."""

    def __init__(
        self,
        streams: Mapping[str, np.ndarray],
        tokenizer: Tokenizer,
        seq_len: int,
        evaluated: str,
        facts: dict[str, Any],
        eval_lengths: Sequence[int] = (),
        segments: Mapping[str, np.ndarray] | None = None,
    ):
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.seq_len = seq_len
        self.evaluated = evaluated
        self.unit = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
        self._windows = {"windows": train_windows(streams["train"], seq_len)}
        self.num_windows = len(self._windows["windows"])
        if segments is not None:
            self._windows["segments"] = train_windows(segments["train"], seq_len)[:, :-1]
        self._streams, self._segments = streams, segments
        self._text_facts = facts
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
        starts = len(self.tokenizer.start_tokens) > 0
        return evaluation_split(
            self._streams[name], seq_len, self.vocab_size, num_bytes, escape_bits, documents, starts=starts
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


def bigram_loss(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float | None:
    """Return the loss of a bigram model of `train` on `held_out`, in nats per token; None if `held_out` is too short.

    P(b | a) = (count(a b) + 1) / (count(a) + vocab_size). Like a model without attention, this estimate depends only on
    the current token. Other estimates of P may have a lower loss.

    Args:
        train: Token numbers, `(n,)`.
        held_out: Token numbers, `(m,)`.
        vocab_size: The number of different tokens.
    """
    if len(held_out) < 2:
        return None
    pairs, counts = np.unique(train[:-1].astype(np.int64) * vocab_size + train[1:], return_counts=True)
    wanted = held_out[:-1].astype(np.int64) * vocab_size + held_out[1:]
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    joint = np.where(pairs[place] == wanted, counts[place], 0)
    first = np.bincount(train[:-1], minlength=vocab_size)[held_out[:-1]]
    return float(-np.log((joint + 1) / (first + vocab_size)).mean())
