"""Task `text`: next-token prediction over a corpus that fits in memory, in windows of a fixed length."""

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from pydantic import Field

from taetpu.core.config import SlotMark
from taetpu.core.errors import UserError, suggest
from taetpu.core.keys import Key
from taetpu.core.registry import register
from taetpu.data import corpora
from taetpu.data.batches import Batch, Split, Task, epoch_rows, evaluation_split, train_windows
from taetpu.data.overlap import overlap
from taetpu.data.tokenizers import CharConfig, Tokenizer, TokenizerConfig

Share = Annotated[float, Field(ge=0, lt=1)]
PROMPT_LENGTH = 16
EVALUATED = ("val", "test")


@register("task", "text")
class TextTask(Task):
    """Predict the next token of a text.

    `source` is `python-docs`, a file, or a folder of text files. `split` by document keeps every document in one
    split and so asks about text that does not continue what was trained on: it is what is done when nothing is said
    and there are several documents; a single file can only be split in order (training first, then validation, then
    test). Documents that repeat one another go to one split together. Documents of a split follow one another, an
    empty line between them, and windows cross from one to the next.
    """

    source: Annotated[str, Field(description="python-docs, or the path of a text file or of a folder of them")]
    tokenizer: Annotated[TokenizerConfig, SlotMark("tokenizer")] = CharConfig()
    """How text becomes tokens."""
    val: Share = 0.1
    """Share of the text for validation."""
    test: Share = 0.0
    """Share of the text for testing."""
    split: Literal["order", "document"] | None = None
    """Split the text in its order, or keep each document whole; `none`: by document where there are several."""

    @property
    def causal(self) -> bool:
        return True

    def prepare(self, folder: Path) -> "TextSource":
        if self.val + self.test >= 1:
            raise UserError(
                f"val {self.val} and test {self.test} leave nothing to train on",
                path=("val",),
                remedy="val + test must be below 1",
            )
        documents = corpora.read_documents(self.source, folder)
        split = self.split or ("document" if len(documents) > 1 else "order")
        if split == "document" and len(documents) == 1:
            raise UserError(
                f"{self.source!r} is a single document, which cannot be split by document",
                path=("split",),
                remedy="split: order",
            )
        if split == "document" and len(corpora.group_duplicates(documents)) == 1:
            raise UserError(
                f"the {len(documents)} documents of {self.source!r} hold the same text, which cannot be split",
                path=("source",),
                remedy="name a folder of different documents, or one file",
            )
        divide = corpora.split_by_document if split == "document" else corpora.split_in_order
        texts = divide(documents, self.val, self.test)
        if not texts["train"]:
            raise _too_short("train", 0, self.seq_len)
        tokenizer = self.tokenizer.train(texts["train"])
        try:
            streams = {name: tokenizer.encode(text) for name, text in texts.items()}
            escape_bits = {name: tokenizer.escape_bits(texts[name]) for name in EVALUATED}
        except UserError as error:
            raise error.within("tokenizer") from None
        shares = {"train": 1 - self.val - self.test, "val": self.val, "test": self.test}
        for name, share in shares.items():
            if share and len(streams[name]) <= self.seq_len:
                raise _too_short(name, len(streams[name]), self.seq_len)
        described = {
            "source": self.source,
            "sha256": corpora.hash_documents(documents),
            "documents": len(documents),
            "characters": {name: len(text) for name, text in texts.items()},
            "bytes": {name: len(text.encode()) for name, text in texts.items()},
            "escape_bits": escape_bits,
            "split": split,
        }
        return TextSource(streams, tokenizer, self.seq_len, _evaluated(texts), described)


def _evaluated(texts: Mapping[str, str]) -> str:
    """sha256 of the held-out text, before any tokenizer."""
    digest = hashlib.sha256()
    for name in EVALUATED:
        text = texts[name].encode()
        digest.update(f"{name} {len(text)} ".encode() + text)
    return digest.hexdigest()


def _too_short(split: str, tokens: int, seq_len: int) -> UserError:
    problem = f"seq_len {seq_len} is longer than the {split} split, which has {tokens} tokens"
    bound = f"seq_len must be at most {tokens - 1}, or " if tokens > 1 else ""
    other = "take more text" if split == "train" else f"raise {split}, take more text, or try split: order"
    return UserError(problem, path=("seq_len",), remedy=bound + other)


class TextSource:
    """A tokenised corpus: training windows for the device, evaluation splits on the host. See `batches.Source`."""

    def __init__(
        self,
        streams: Mapping[str, np.ndarray],
        tokenizer: Tokenizer,
        seq_len: int,
        evaluated: str,
        described: dict[str, Any],
    ):
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.seq_len = seq_len
        self.evaluated = evaluated
        self.unit = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
        self.arrays = {"windows": train_windows(streams["train"], seq_len)}
        self.num_windows = len(self.arrays["windows"])
        self._streams = streams
        self._described = described
        self._splits = {name: self._split(name) if len(streams[name]) else None for name in EVALUATED}
        self.fingerprint = self._fingerprint()

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        return epoch_rows(seed, start, count, batch_size, self.num_windows)

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        windows = arrays["windows"][rows]
        tokens, targets = windows[:, :-1], windows[:, 1:]
        return Batch(tokens, targets, jnp.ones(tokens.shape, jnp.float32))

    def evaluation(self, split: str) -> Split | None:
        if split not in self._splits:
            raise UserError(f"no evaluation split {split!r}", remedy=suggest(split, self._splits))
        return self._splits[split]

    def _split(self, name: str) -> Split:
        num_bytes, escape_bits = (self._described[of][name] for of in ("bytes", "escape_bits"))
        return evaluation_split(self._streams[name], self.seq_len, self.vocab_size, num_bytes, escape_bits)

    def prompt(self) -> np.ndarray:
        stream = self._streams["val"] if len(self._streams["val"]) else self._streams["train"]
        return stream[: max(1, min(PROMPT_LENGTH, self.seq_len // 2))]

    def show(self, ids: Any) -> str:
        return self.tokenizer.decode(ids)

    @cached_property
    def facts(self) -> dict[str, Any]:
        loss = bigram_loss(self._streams["train"], self._streams["val"], self.vocab_size)
        return {
            **self._described,
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
        return digest.hexdigest()


def bigram_loss(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float | None:
    """Nats per token of `held_out` under bigrams of `train`; None where nothing is held out.

    P(b | a) = (count(a b) + 1) / (count(a) + vocab_size). Like a model without attention it sees the current token
    alone; other estimates of P than this one may do better.
    """
    if len(held_out) < 2:
        return None
    pairs, counts = np.unique(train[:-1].astype(np.int64) * vocab_size + train[1:], return_counts=True)
    asked = held_out[:-1].astype(np.int64) * vocab_size + held_out[1:]
    place = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    joint = np.where(pairs[place] == asked, counts[place], 0)
    first = np.bincount(train[:-1], minlength=vocab_size)[held_out[:-1]]
    return float(-np.log((joint + 1) / (first + vocab_size)).mean())
