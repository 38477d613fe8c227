"""The prepared task `text` whose samples are documents: one padded sequence for each."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from taetpu.core.keys import Key
from taetpu.data.base import Batch, Split
from taetpu.data.bigrams import Pairs, bigram_loss, find_pairs
from taetpu.data.mixture import Mixture
from taetpu.data.stream_source import StreamSource
from taetpu.data.token_files import TokenStream
from taetpu.data.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class Documents:
    """The documents of a split, each with the token that begins it and, unless it is cropped, the one that ends it.

    Attributes:
        tokens: the tokens of all documents, int32 `(n,)`.
        lengths: the number of tokens of each document, int64 `(documents,)`.
    """

    tokens: np.ndarray
    lengths: np.ndarray

    @cached_property
    def starts(self) -> np.ndarray:
        """The index of the first token of each document."""
        return np.cumsum(self.lengths) - self.lengths

    def padded(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Return documents as rows of a width, padded on the right with 0: int32 `(rows, width)`."""
        place = np.arange(width)
        inside = place < self.lengths[rows, None]
        return np.where(inside, self.tokens[np.where(inside, self.starts[rows, None] + place, 0)], 0).astype(np.int32)


def join_rows(rows: Sequence[np.ndarray]) -> Documents:
    """Return the tokens of documents as `Documents`."""
    lengths = np.array([*map(len, rows)], np.int64)
    return Documents(np.concatenate([*rows, np.zeros(0, np.int32)]), lengths)


class DocumentSource(StreamSource):
    """A tokenized corpus whose sequences are documents; see `data.base.Source`.

    A position predicts the next token of its document: the first position has the token that begins the document, and
    the last target is the token that ends it. Positions after it are padding.

    Args:
        documents: the documents of `train`, `val` and `test`. None has more than `seq_len` + 1 tokens.
        tokenizer: the tokenizer.
        seq_len: the number of tokens in a sequence.
        ends: the numbers of the tokens that begin and end documents.
        evaluated: see `Source.evaluated`.
        facts: see `StreamSource`.
        mixture: see `StreamSource`; its windows are documents.
    """

    tokenizer: Tokenizer
    sample = 2**62

    def __init__(
        self,
        documents: Mapping[str, Documents],
        tokenizer: Tokenizer,
        seq_len: int,
        ends: tuple[int, int],
        evaluated: str,
        facts: dict[str, Any],
        mixture: Mixture | None = None,
    ):
        self.documents, self.ends = documents, ends
        streams = {name: TokenStream([part.tokens]) for name, part in documents.items()}
        super().__init__(
            streams, seq_len, tokenizer.vocab_size, facts,
            digest="", unit=tokenizer.unit, evaluated=evaluated, tokenizer=tokenizer, mixture=mixture,
        )  # fmt: skip
        self.num_windows = len(documents["train"].lengths)  # pyright: ignore[reportIncompatibleVariableOverride]
        self.fingerprint = self._digest()
        self.special_tokens = dict(zip(("bos_token_id", "eos_token_id"), ends, strict=True))

    def gather(self, rows: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """See `Source.gather`."""
        train = self.documents["train"]
        lengths = (train.lengths[rows] - 1).astype(np.int32)  # the last token is a target only
        return {"windows": train.padded(rows, self.seq_len + 1), "lengths": lengths}

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """See `Source.batch`."""
        windows, lengths = arrays["windows"][rows], arrays["lengths"][rows]
        weights = (jnp.arange(self.seq_len) < lengths[:, None]).astype(jnp.float32)
        return Batch(windows[:, :-1], windows[:, 1:], weights, lengths=lengths)

    def _split(self, name: str, seq_len: int) -> Split:
        part = self.documents[name]
        windows = part.padded(np.arange(len(part.lengths)), seq_len + 1)
        lengths = (part.lengths - 1).astype(np.int32)
        escape_bits = self._facts["escape_bits"][name]
        return Split(
            tokens=windows[:, :-1],
            targets=windows[:, 1:],
            weights=(np.arange(seq_len) < lengths[:, None]).astype(np.float32),
            num_bytes=None if escape_bits is None else self._facts["bytes"][name],
            unpredicted_bits=escape_bits or 0.0,
            lengths=lengths,
        )

    def prompt(self) -> np.ndarray:
        """Return the token that begins a document."""
        return np.array(self.ends[:1], np.int32)

    def show(self, ids: Any) -> str:
        """Return the text of tokens, up to the token that ends the document."""
        ids = np.asarray(ids)
        last = np.flatnonzero(ids[1:] == self.ends[1])
        return self.tokenizer.decode(ids[: last[0] + 2] if len(last) else ids)

    @property
    def pairs(self) -> Pairs:
        """See `StreamSource.pairs`. No pair spans two documents."""
        return find_pairs(self.documents["train"].tokens, self.documents["train"].starts)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """See `Source.facts`. `tokens` are those that are predicted; `bytes` count 1 for the end of each document."""
        train, val = self.documents["train"], self.documents["val"]
        return {
            **StreamSource.facts.func(self),
            "tokens": {name: int((part.lengths - 1).sum()) for name, part in self.documents.items()},
            "decoy_loss": bigram_loss(train.tokens, val.tokens, self.vocab_size, (train.starts, val.starts)),
        }

    def _digest(self) -> str:
        """Return the fingerprint."""
        digest = hashlib.sha256(f"documents 1, {self.seq_len}, {self.ends}, {self.tokenizer.to_json()}".encode())
        for name, part in sorted(self.documents.items()):
            digest.update(f"{name} {len(part.lengths)} {len(part.tokens)}".encode())
            digest.update(part.lengths.astype("<i4").tobytes() + part.tokens.astype("<i4").tobytes())
        if self.mixture is not None:
            digest.update(f"mixture {self.mixture}".encode())
        return digest.hexdigest()
