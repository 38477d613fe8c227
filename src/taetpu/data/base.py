"""Tasks and prepared data sources: batches, evaluation splits, and the order of training windows.

A batch is `(tokens, targets, weights)`, and what the task declares in `Task.batch`. A loss is a weighted sum over
positions. Positions that are not scored have weight 0, not a special target such as -100.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from pydantic import Field, field_validator

from taetpu.core.config import Component, Size
from taetpu.core.errors import UserError, shorten
from taetpu.core.jax_setup import cache_folder
from taetpu.core.keys import Key
from taetpu.core.metric_spec import ACCURACY, LOSS, MetricSpec
from taetpu.core.model_interface import Interface
from taetpu.data.digests import digest_file
from taetpu.data.feistel import permuted
from taetpu.data.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from taetpu.data.mixture import Mixture

TOKEN_METRICS = {"loss": LOSS, "accuracy": ACCURACY}


class Batch(NamedTuple):
    """The data of one training step. What the task does not declare is None."""

    tokens: Int[Array, "batch seq"] | Float[Array, "batch seq features"]  # real inputs if the task has features
    targets: Int[Array, "batch seq"] | Float[Array, "batch seq"]
    weights: Float[Array, "batch seq"]  # 0 for positions that are not scored
    segments: Int[Array, "batch seq"] | None = None  # number of the document of each token, not decreasing
    types: Int[Array, "batch seq"] | None = None  # number of the type of each token, from 0
    lengths: Int[Array, " batch"] | None = None  # tokens of each sequence; those after them are padding
    prefix: Int[Array, " batch"] | None = None  # tokens at the start of each sequence that may see each other
    second: Int[Array, "batch seq"] | None = None  # tokens of the second text of each pair, a sequence of its own
    second_lengths: Int[Array, " batch"] | None = None  # as `lengths`, of the second texts

    @property
    def context(self) -> dict[str, Any]:
        """The arguments of `nn.lm.LM` that go with the tokens."""
        padding = None if self.lengths is None else jnp.arange(self.weights.shape[-1]) >= self.lengths[..., None]
        return {"segments": self.segments, "types": self.types, "padding": padding, "prefix": self.prefix}

    @property
    def both_texts(self) -> "Batch":
        """The texts of all pairs as a batch of twice as many sequences, in which those of a pair are neighbours.

        All tokens have the first type.
        """
        assert self.second is not None
        pairs = {"tokens": (self.tokens, self.second), "lengths": (self.lengths, self.second_lengths)}
        pairs |= {name: (part, part) for name, part in (("targets", self.targets), ("weights", self.weights))}
        if self.types is not None:
            pairs["types"] = (jnp.zeros_like(self.types),) * 2
        parts = {name: jnp.stack(pair, 1).reshape(-1, *pair[0].shape[1:]) for name, pair in pairs.items()}
        return Batch(**parts)


@dataclass(frozen=True)
class BatchSpec:
    """What a task's batches contain beside tokens, targets and weights.

    Attributes:
        segments: Whether they contain the document of each token.
        lengths: Whether they contain the lengths of sequences, which are padded.
        prefix: Whether they contain the lengths of prefixes, for the mask `prefix`.
        real_targets: Whether targets are real numbers. The objective must read them (`Objective.real_targets`).
        second: Whether they contain pairs of texts, with lengths, of which each is a sequence.
    """

    segments: bool = False
    lengths: bool = False
    real_targets: bool = False
    prefix: bool = False
    second: bool = False

    def shapes(self, interface: Interface, *lead: int) -> Batch:
        """Return the shapes of a batch, given the model's interface and the axes `(..., batch, seq)`."""

        def array(dtype: Any, shape: tuple[int, ...] = lead) -> Any:
            return jax.ShapeDtypeStruct(shape, dtype)

        features = interface.features
        return Batch(
            array(np.float32, (*lead, features)) if features else array(np.int32),
            array(np.float32 if self.real_targets else np.int32),
            array(np.float32),
            array(np.int32) if self.segments else None,
            array(np.int32) if interface.types > 1 else None,
            array(np.int32, lead[:-1]) if self.lengths else None,
            array(np.int32, lead[:-1]) if self.prefix else None,
            array(np.int32) if self.second else None,
            array(np.int32, lead[:-1]) if self.second else None,
        )


@dataclass(frozen=True)
class Split:
    """An evaluation set on the host.

    Args:
        tokens: Input tokens, int32 `(windows, seq)`; or real inputs, float32 `(windows, seq, features)`.
        targets: Targets, int32 `(windows, seq)`; float32 if they are real.
        weights: Weights, float32 `(windows, seq)`; 0 for positions that are not scored, such as padding.
        num_bytes: The denominator of bits per byte: the number of UTF-8 bytes in the split's text, including text that
            no token represents. None if the tokens are not text or do not determine the text.
        unpredicted_bits: The bits that bits per byte include in addition to the loss: the cost of the first token,
            which is not a target, and the cost of characters without a token (`Tokenizer.escape_bits`).
        segments: The document of each token, int32 `(windows, seq)`; None for tasks without segments.
        types: The type of each token, int32 `(windows, seq)`; None for tasks with one type.
        lengths: The number of tokens before the padding, int32 `(windows,)`; None for tasks without padding.
        prefix: The number of tokens of the prefix, int32 `(windows,)`; None for tasks without prefixes.
        second: The tokens of the second texts, int32 `(windows, seq)`; None for tasks without pairs of sequences.
        second_lengths: As `lengths`, of the second texts.
    """

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    num_bytes: int | None
    unpredicted_bits: float = 0.0
    segments: np.ndarray | None = None
    types: np.ndarray | None = None
    lengths: np.ndarray | None = None
    prefix: np.ndarray | None = None
    second: np.ndarray | None = None
    second_lengths: np.ndarray | None = None

    @property
    def batch(self) -> Batch:
        """The arrays as a batch of all windows, on the host."""
        return Batch(**{name: getattr(self, name) for name in Batch._fields})


class Source(ABC):
    """A prepared task."""

    vocab_size: int
    """The number of different tokens; 0 if inputs are real."""
    seq_len: int
    """The number of tokens in a sequence."""
    fingerprint: str
    """A SHA-256 digest of the training and evaluation tokens; part of a run's identity."""
    evaluated: str
    """A SHA-256 digest of the evaluation data before tokenization. Equal digests make losses comparable."""
    trained: str = ""
    """A digest of the training windows if the fingerprint depends on what is predicted in them, too."""
    unit: str
    """An identifier of the tokenization. Losses and accuracies per token are comparable only within one unit."""
    num_windows: int | None = None
    """The number of training windows in an epoch, or None if sequences are generated without end."""
    tokenizer: Tokenizer | None = None
    """The tokenizer; None if the tokens are not text."""
    mixture: "Mixture | None" = None
    """The sources that windows are drawn from with given shares; None if each window is read once in an epoch."""
    names: tuple[str, ...] = ()
    """The names of the tokens, which contain no spaces; empty if the tokens have none."""
    special_tokens: Mapping[str, int] = {}
    """Tokens that begin and end texts, as `bos_token_id` and `eos_token_id`; they are stored with a model."""
    can_gather: bool = False
    """Whether `gather` reads single windows. Otherwise, the feed is always resident."""

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that `batch` reads, on the host. They are copied to every device unless the feed is `host`."""
        return {}

    @property
    def interface(self) -> Interface:
        """The sizes of the model's inputs and outputs; by default, from tokens to their logits."""
        return Interface(self.vocab_size)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Facts for reports: sizes, the corpus' SHA-256 digest, and reference losses (nats per weighted target).

        `chance_loss` is the loss of a uniform guess over the vocabulary, and `constant_loss` that of a prediction that
        reads no input, which `constant` describes. `bayes_loss` is the lowest possible loss, or
        None if this loss is unknown. `decoy_loss` is a loss that can be reached without attention, and `decoy` says how
        it was computed. For synthetic tasks, the facts also contain these references as accuracies, such as
        `chance_accuracy`. For texts, the facts also contain, for each split, the number of `bytes`, the `escape_bits`
        (see `Tokenizer.escape_bits`) and the `overlap` with the training split (see `data.overlap`).
        """
        return {}

    @abstractmethod
    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """Return the window indices for `count` steps from step `start`: int32 `(count, batch_size)`, on the host."""

    @abstractmethod
    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """Return the batch for one step, gathered by `rows` (text) or generated from `key` (synthetic).

        The method is called inside `jax.jit`, and is vmapped over `rows` and `key` with shared `arrays`.
        """

    def gather(self, rows: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """Return the entries of `arrays` for windows, with a leading axis `(n,)`, without reading all of `arrays`.

        `batch(gather(rows), positions, key)` equals `batch(arrays, rows[positions], key)`. The method is called in
        another thread, if `can_gather` is set.
        """
        raise NotImplementedError

    @abstractmethod
    def evaluation(self, split: str) -> Split | None:
        """Return an evaluation set of `Task.evaluation_sets`, or None if the task does not have it."""

    def prompt(self) -> np.ndarray:
        """Return the prompt for generated samples: int32 `(n,)`, from 1 to `seq_len` tokens.

        Like `show`, it is called only if the model maps tokens to logits of the same tokens.
        """
        raise NotImplementedError

    def show(self, ids: Any) -> str:
        """Return tokens as readable text, by default their `names`."""
        return " ".join(self.names[i] for i in np.asarray(ids).tolist())

    def parse(self, text: str) -> np.ndarray:
        """Return the numbers of tokens that are written as their `names`, with or without spaces: int32 `(n,)`.

        Raises:
            UserError: If a part of the text is not the beginning of a name.
        """
        numbers = {name: number for number, name in enumerate(self.names)}
        ids, by_length = [], sorted(self.names, key=len, reverse=True)
        for word in text.split():
            rest = word
            while rest:
                name = next((name for name in by_length if rest.startswith(name)), None)
                if name is None:
                    remedy = f"Use {shorten(' '.join(self.names))}."
                    raise UserError(f"{rest!r} in {text!r} is not a token of the task", remedy=remedy)
                ids.append(numbers[name])
                rest = rest.removeprefix(name)
        return np.asarray(ids, np.int32)


class Task(Component):
    """Base of the kinds of slot `task`: the config of a task, before any data is read.

    Attributes:
        has_answers: Whether the scored positions of a sequence are the answer to a question, which is right or wrong.
        one_target: Whether one position of each sequence is scored.
        objective: The kind of slot `objective` with which the task is evaluated, and trained by default; `causal-lm`
            if it has no value. In tasks of texts, it is a field.
    """

    has_answers: ClassVar[bool] = False
    one_target: ClassVar[bool] = False
    objective: ClassVar[Any]  # no value, because pydantic rejects fields that replace one

    seq_len: Size
    """Number of tokens in a sequence."""
    eval_lengths: Annotated[tuple[Size, ...], Field(description="lengths of further evaluation sets, e.g. [256]")] = ()
    """Lengths N of further evaluation sets `val@N`: the validation data in sequences of N tokens."""

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        """The names of the evaluation sets: `val`, `test`, and `val@N` for each N in `eval_lengths`.

        A task whose splits may have no data leaves out those without.
        """
        return self.sets_of(val=True, test=True)

    def sets_of(self, *, val: Any, test: Any) -> tuple[str, ...]:
        """Return the names of the evaluation sets of a task with or without validation and test data."""
        splits = [name for name, has_data in (("val", val), ("test", test)) if has_data]
        return (*splits, *map(at_length, self.eval_lengths if val else ()))

    @property
    def metric_specs(self) -> dict[str, MetricSpec]:
        """What the metrics are that every evaluation of the task measures, by name: with real targets, the loss."""
        return {"loss": MetricSpec(mean_of=LOSS.mean_of)} if self.batch.real_targets else TOKEN_METRICS

    @property
    def batch(self) -> BatchSpec:
        """What batches contain beside tokens, targets and weights."""
        return BatchSpec()

    @property
    def sources(self) -> tuple[str, ...]:
        """The files, folders and patterns that the task names."""
        return ()

    def files(self, folder: Path) -> list[Path]:
        """Return the files that `prepare` reads, with which a study is copied to other machines.

        Raises:
            UserError: if a file does not exist.
        """
        return []

    def digests(self, folder: Path) -> dict[str, str]:
        """Return the digests of these files, by their paths from the folder of the study."""
        return {os.path.relpath(path, folder): digest_file(path) for path in self.files(folder)}

    @property
    @abstractmethod
    def causal(self) -> bool:
        """Whether a position may attend only to earlier positions."""

    @property
    def any_mask(self) -> bool:
        """Whether a position may attend to all positions or to earlier ones only, as the model decides."""
        return False

    @property
    def needs_later(self) -> bool:
        """Whether the scored position has to see later ones, which no model with causal layers only allows."""
        return False

    @property
    def eval_group(self) -> int | None:
        """The number of sequences that an evaluation computes together, because the loss of each depends on the others.

        None if losses of sequences do not depend on each other.
        """
        return None

    @abstractmethod
    def prepare(self, folder: Path) -> Source:
        """Read or generate the data, and return the prepared task.

        Args:
            folder: The study file's folder, to which paths are relative.

        Raises:
            UserError: if the data cannot be used. The error's path is relative to the task.
        """

    @field_validator("eval_lengths")
    @classmethod
    def _different(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        for i, length in enumerate(lengths):
            if length in lengths[:i]:
                raise UserError(f"the length {length} is listed twice", path=(i,), remedy="Remove the repetition.")
        return lengths


def array_shapes(source: Source) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of `source.arrays`. If the source can gather, only one window is read."""
    if not source.can_gather:
        return {name: jax.ShapeDtypeStruct(np.shape(a), a.dtype) for name, a in source.arrays.items()}
    windows = source.gather(np.zeros(1, np.int32))
    return {name: jax.ShapeDtypeStruct((source.num_windows, *a.shape[1:]), a.dtype) for name, a in windows.items()}


def read_windows(source: Source, rows: Int[np.ndarray, "..."]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return arrays that contain the windows `rows`, and the places of these windows in the arrays."""
    if not source.can_gather:
        return source.arrays, rows
    return source.gather(rows.ravel()), np.arange(rows.size, dtype=np.int32).reshape(rows.shape)


def at_length(length: int) -> str:
    """Return the name of the evaluation set with the validation data in sequences of a given length."""
    return f"val@{length}"


MOST_IN_MEMORY = 2**20
"""Number of windows up to which the order of an epoch is kept in memory; the order of more is memory-mapped."""
MOST_STORED = 2**24
"""Number of windows up to which the order of an epoch is stored. The order of more is computed place by place."""


@lru_cache(maxsize=32)
def permutation(seed: int, epoch: int, num_windows: int) -> np.ndarray:
    """Return the order of an epoch's windows: int32 `(num_windows,)`, read-only.

    Windows are sorted by raw Philox words. numpy guarantees the same words in every version, but not the same shuffles.
    """
    words = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(num_windows)
    order = np.argsort(words, kind="stable").astype(np.int32)
    order.setflags(write=False)
    return order if num_windows <= MOST_IN_MEMORY else _on_disk(order)


def _on_disk(order: np.ndarray) -> np.ndarray:
    """Return an array that is memory-mapped from a file without a name, or the array itself if the disk is full.

    A study with many seeds has as many orders, which would need gigabytes of memory.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(order.data)
            file.flush()
            return np.memmap(file, order.dtype, "r", shape=order.shape)
    except OSError:
        return order


def epoch_rows(
    seed: int, start: int, count: int, batch_size: int, num_windows: int, *, most_stored: int | None = None
) -> np.ndarray:
    """Return the window indices for `count` steps from step `start`: int32 `(count, batch_size)`.

    Every epoch has a different permutation, and a batch may span several epochs. For any batch size, every window is
    therefore read exactly once per epoch. Orders of more than `most_stored` windows (default: `MOST_STORED`) are
    computed place by place.
    """
    most_stored = MOST_STORED if most_stored is None else most_stored
    position = np.arange(start * batch_size, (start + count) * batch_size)
    epoch, place = np.divmod(position, num_windows)
    rows = np.empty(position.shape, np.int32)
    for number in np.unique(epoch):
        mask = epoch == number
        if num_windows > most_stored:
            rows[mask] = permuted(place[mask], seed, int(number), num_windows)
        else:
            rows[mask] = permutation(seed, int(number), num_windows)[place[mask]]
    return rows.reshape(count, batch_size)


@lru_cache(maxsize=32)
def evaluation_order(num_windows: int) -> np.ndarray:
    """Return the order in which a split's windows are sampled: int32 `(num_windows,)`, read-only.

    A sample is a prefix of the order. The first 2^k windows contain one random window from each of 2^k equal parts of
    the split. A sample therefore covers all documents in proportion to their length, contains every smaller sample, and
    has no fixed spacing that could coincide with a period of the text.

    Source: a base-2 van der Corput sequence with nested scrambling, Owen 1995.
    """
    bits = (num_windows - 1).bit_length()
    number, place = np.arange(2**bits), np.zeros(2**bits, np.int64)
    for level in range(bits):
        first = np.random.Philox(key=np.array([num_windows, level], np.uint64)).random_raw(2**level) & np.uint64(1)
        place = 2 * place + ((number >> level & 1) ^ first.astype(np.int64)[place])
    windows = place * num_windows >> bits
    _, first_places = np.unique(windows, return_index=True)
    order = windows[np.sort(first_places)].astype(np.int32)
    order.setflags(write=False)
    return order


def train_windows(stream: np.ndarray, seq_len: int) -> np.ndarray:
    """Return training windows, `(windows, seq_len + 1)`; window i has tokens i * seq_len to (i + 1) * seq_len.

    The last target of a window is also the first input of the next window, so that no target between windows is
    lost. An incomplete window at the end is dropped. The result is a view of the stream.
    """
    shape, (stride,) = (max((len(stream) - 1) // seq_len, 0), seq_len + 1), stream.strides
    return np.lib.stride_tricks.as_strided(stream, shape, (seq_len * stride, stride), writeable=False)


def evaluation_split(
    stream: np.ndarray,
    seq_len: int,
    vocab_size: int,
    num_bytes: int,
    escape_bits: float | None,
    documents: np.ndarray | None = None,
    *,
    starts: bool = False,
) -> Split:
    """Return a split with all targets in a stream, in windows as in training. The last window is padded with weight 0.

    The first token is not a target. In bits per byte, it costs `log2(vocab_size)` bits, as if it were drawn uniformly,
    or nothing if the tokenizer starts every text with it.

    Args:
        stream: Token numbers, `(n,)`.
        seq_len: The number of tokens in a window.
        vocab_size: The number of different tokens.
        num_bytes: The number of UTF-8 bytes in the text.
        escape_bits: The result of `Tokenizer.escape_bits` for the text.
        documents: The document of each token, `(n,)`, if the task has segments.
        starts: Whether the first token is one that the tokenizer adds to every text, such as `<s>`.
    """
    count = len(stream) - 1
    shape = (-(-count // seq_len), seq_len)
    missing = shape[0] * seq_len - count
    padded = np.pad(stream, (0, missing)).astype(np.int32)
    weights = (np.arange(shape[0] * seq_len) < count).astype(np.float32)
    return Split(
        tokens=padded[:-1].reshape(shape),
        targets=padded[1:].reshape(shape),
        weights=weights.reshape(shape),
        num_bytes=None if escape_bits is None else num_bytes,
        unpredicted_bits=(0.0 if starts else math.log2(vocab_size)) + (escape_bits or 0.0),
        segments=None if documents is None else np.pad(documents, (0, missing), "edge")[:-1].reshape(shape),
    )
