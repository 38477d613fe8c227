"""What training sees of a task: batches, evaluation splits, and which window each step reads.

The common form is `(tokens, targets, weights)`: a loss is summed over positions by weight, and nothing is marked by a
special target such as -100.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Array, Float, Int

from taetpu.core.config import Component, Size
from taetpu.core.keys import Key
from taetpu.data.tokenizers import Tokenizer


class Batch(NamedTuple):
    """What one step trains on."""

    tokens: Int[Array, "batch seq"]
    targets: Int[Array, "batch seq"]
    weights: Float[Array, "batch seq"]  # 0 where a position does not count


@dataclass(frozen=True)
class Split:
    """An evaluation set on the host, to be evaluated whole.

    Args:
        tokens, targets: int32 `(windows, seq)`.
        weights: float32 `(windows, seq)`, 0 where a position does not count (padding included).
        num_bytes: UTF-8 bytes of the split's text, whatever its tokens express: the denominator of bits per byte.
            None where the tokens are not text, or do not determine it.
        unpredicted_bits: bits of that text which no target holds, added to the loss in bits per byte: the first token,
            which nothing predicts, and what the tokens do not express (`Tokenizer.escape_bits`).
    """

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    num_bytes: int | None
    unpredicted_bits: float = 0.0


class Source(Protocol):
    """A prepared task."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def seq_len(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """sha256 that changes whenever a token of training or evaluation could; part of a run's identity."""
        ...

    @property
    def evaluated(self) -> str:
        """sha256 of what `val` and `test` hold, whatever the tokens: losses of equal ones are about the same thing."""
        ...

    @property
    def unit(self) -> str:
        """What a token is; losses and accuracies are per token, and cannot be compared between units."""
        ...

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Put on the device once and shared by all runs of a pack."""
        ...

    @property
    def num_windows(self) -> int | None:
        """Training windows in an epoch; None when sequences are drawn without end."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None where the tokens are not text."""
        ...

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What people are shown: sizes, the corpus' sha256, and losses (nats per weighted target) to compare with.

        `chance_loss` is that of a uniform guess over the vocabulary, `bayes_loss` cannot be beaten (None: unknown),
        `decoy_loss` is what goes without attention, and `decoy` says how it was found; synthetic tasks have the same
        as `_accuracy`. A text has, by split, its `bytes`, the `escape_bits` of what its tokens do not express, and its
        `overlap` with training (see `data.overlap`).
        """
        ...

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """Window numbers of steps `start` to `start + count - 1`: int32 `(count, batch_size)`, on the host."""
        ...

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """The batch of one step, inside jit: gathered by `rows` (text) or drawn from `key` (synthetic).

        May be vmapped over `rows` and `key` with `arrays` shared.
        """
        ...

    def evaluation(self, split: str) -> Split | None:
        """The split `val` or `test`; None where it is empty."""
        ...

    def prompt(self) -> np.ndarray:
        """What a sample starts from: int32 `(n,)`, at least one token, at most `seq_len`."""
        ...

    def show(self, ids: Any) -> str:
        """Tokens as text that people can read."""
        ...


class Task(Component):
    """Base of the kinds of slot `task`: what is learned, before any data is read."""

    seq_len: Size
    """Tokens of a sequence."""

    @property
    @abstractmethod
    def causal(self) -> bool:
        """Whether a position may see only those before it."""

    @abstractmethod
    def prepare(self, folder: Path) -> Source:
        """Read or set up the data.

        Args:
            folder: where the study file stands; relative paths start there.

        Raises:
            UserError: the data cannot be used; its path is relative to the task.
        """


@lru_cache(maxsize=32)
def permutation(seed: int, epoch: int, num_windows: int) -> np.ndarray:
    """The order of an epoch's windows: int32 `(num_windows,)`, read-only.

    Raw Philox words are sorted because numpy promises them to be the same in every version, and its shuffles not.
    """
    words = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(num_windows)
    order = np.argsort(words, kind="stable").astype(np.int32)
    order.setflags(write=False)
    return order


def epoch_rows(seed: int, start: int, count: int, batch_size: int, num_windows: int) -> np.ndarray:
    """Window numbers of `count` steps from step `start`: int32 `(count, batch_size)`.

    Every epoch is a fresh permutation, and batches run across the border between two: each window is read once before
    any is read again, whatever the batch size.
    """
    position = np.arange(start * batch_size, (start + count) * batch_size)
    epoch, place = np.divmod(position, num_windows)
    rows = np.empty(position.shape, np.int32)
    for number in np.unique(epoch):
        here = epoch == number
        rows[here] = permutation(seed, int(number), num_windows)[place[here]]
    return rows.reshape(count, batch_size)


@lru_cache(maxsize=32)
def evaluation_order(num_windows: int) -> np.ndarray:
    """The order in which a split's windows are sampled: int32 `(num_windows,)`, read-only. A sample is a prefix.

    Of every prefix of 2^k windows, each of 2^k equal parts of the split holds one, at a random place (a base-2 van der
    Corput sequence with nested scrambling; Owen 1995). So a sample covers all documents in proportion to their length,
    a smaller sample is part of a larger one, and no period of the text coincides with the spacing.
    """
    bits = (num_windows - 1).bit_length()
    number, place = np.arange(2**bits), np.zeros(2**bits, np.int64)
    for level in range(bits):
        first = np.random.Philox(key=np.array([num_windows, level], np.uint64)).random_raw(2**level) & np.uint64(1)
        place = 2 * place + ((number >> level & 1) ^ first.astype(np.int64)[place])
    windows = place * num_windows >> bits
    _, at = np.unique(windows, return_index=True)
    order = windows[np.sort(at)].astype(np.int32)
    order.setflags(write=False)
    return order


def train_windows(stream: np.ndarray, seq_len: int) -> np.ndarray:
    """`(windows, seq_len + 1)`: window i holds tokens i*T to i*T + T.

    Neighbours share one token, the last target of one and the first input of the next, so that no target is lost
    between them. Targets at the end that fill no window are left out.
    """
    starts = np.arange((len(stream) - 1) // seq_len) * seq_len
    return stream[starts[:, None] + np.arange(seq_len + 1)]


def evaluation_split(
    stream: np.ndarray, seq_len: int, vocab_size: int, num_bytes: int, escape_bits: float | None
) -> Split:
    """Return all targets of a stream in windows as in training; the last one is padded with weight 0.

    Only the first token is no target. It is charged as a uniform draw from the vocabulary.

    Args:
        num_bytes: UTF-8 bytes of the text.
        escape_bits: see `Tokenizer.escape_bits`.
    """
    count = len(stream) - 1
    shape = (-(-count // seq_len), seq_len)
    padded = np.zeros(shape[0] * seq_len + 1, np.int32)
    padded[: len(stream)] = stream
    weights = (np.arange(shape[0] * seq_len) < count).astype(np.float32)
    return Split(
        tokens=padded[:-1].reshape(shape),
        targets=padded[1:].reshape(shape),
        weights=weights.reshape(shape),
        num_bytes=None if escape_bits is None else num_bytes,
        unpredicted_bits=math.log2(vocab_size) + (escape_bits or 0.0),
    )
