"""The documents on which effects are measured: inputs, targets and weights."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.data.base import Split
from taetpu.lens.activations import in_batches
from taetpu.lens.inputs import pad_left
from taetpu.lens.opened import OpenedModel


@dataclass(frozen=True)
class Documents:
    """Sequences whose losses are measured. Each is one observation of statistics.

    Attributes:
        inputs: The input tokens of each document.
        targets: The target of each input token.
        weights: The weight of each target, 0 for targets that are not scored.
        segments: The document within a window of each token, if windows contain several; else None.
        others: A wrong answer for each target. If given, the logit of the target minus that of the wrong answer is
            measured, in place of the loss.
        cut: The number of texts, if the documents are windows of texts that exceed the model's `seq_len`; else None.
    """

    __repr__ = short_repr

    inputs: list[Int[np.ndarray, " seq"]]
    targets: list[Int[np.ndarray, " seq"]]
    weights: list[Float[np.ndarray, " seq"]]
    segments: list[Int[np.ndarray, " seq"]] | None = None
    others: list[Int[np.ndarray, " seq"]] | None = None
    cut: int | None = None

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.inputs)

    @property
    def described(self) -> str:
        """What losses are measured over, such as `12 documents`."""
        count = f"{len(self):,}"
        if self.cut is None:
            return f"{count} document{'s' * (len(self) != 1)}"
        texts = "one text" if self.cut == 1 else f"{self.cut:,} texts"
        longest = max(map(len, self.inputs))
        return f"{count} windows of up to {longest:,} tokens of {texts} (intervals assume that they are independent)"

    @property
    def scored(self) -> Float[np.ndarray, " document"]:
        """The sum of the weights of each document."""
        return np.array([weights.sum(dtype=np.float64) for weights in self.weights])

    def last(self) -> "Documents":
        """Return the documents with the last scored target of each one only."""
        weights = []
        for document_weights in self.weights:
            kept = np.zeros_like(document_weights)
            kept[np.flatnonzero(document_weights)[-1:]] = 1
            weights.append(kept)
        return replace(self, weights=weights)

    def batches(self) -> Iterator["Batch"]:
        """Yield the documents in batches of `in_batches`, padded on the left."""
        for numbers, filled, tokens in in_batches(self.inputs):
            length = tokens.ids.shape[1]
            weights = np.zeros(tokens.ids.shape, np.float32)
            for place, i in enumerate(numbers):  # copies that fill a batch have the weight 0
                weights[place, length - len(self.weights[i]) :] = self.weights[i]
            targets = pad_left([self.targets[i] for i in filled]).ids
            lists = (self.segments, self.others)
            segments, others = (None if rows is None else pad_left([rows[i] for i in filled]).ids for rows in lists)
            yield Batch(numbers, filled, tokens.ids, tokens.padding, targets, weights, segments, others)


@dataclass(frozen=True)
class Batch:
    """Documents as arrays, padded on the left.

    Attributes:
        numbers: The number of each document that is in its batch for the first time.
        filled: The number of the document in each row.
        ids: The input tokens.
        padding: True for padding.
        targets: The targets.
        weights: The weights of the targets, 0 in padding and in copies that fill the batch.
        segments: See `Documents`.
        others: See `Documents`.
    """

    numbers: list[int]
    filled: list[int]
    ids: Int[np.ndarray, "batch seq"]
    padding: Bool[np.ndarray, "batch seq"]
    targets: Int[np.ndarray, "batch seq"]
    weights: Float[np.ndarray, "batch seq"]
    segments: Int[np.ndarray, "batch seq"] | None = None
    others: Int[np.ndarray, "batch seq"] | None = None

    @property
    def positions(self) -> Int[np.ndarray, "batch seq"]:
        """The position of each token in its document; 0 in padding."""
        return np.maximum(np.cumsum(~self.padding, -1) - 1, 0)


def read_documents(opened: OpenedModel, inputs: Any) -> Documents:
    """Return texts or token numbers as documents. Texts that exceed the model's `seq_len` are cut into windows.

    Args:
        opened: The model.
        inputs: See `OpenedModel.encode`.

    Raises:
        UserError: if an input cannot be read or has less than two tokens.
    """
    opened.check_predicts_next()
    rows = opened.as_sequences(inputs)
    if short := [number for number, row in enumerate(rows) if len(row) < 2]:
        problem = f"input {short[0]} has one token, and the first token of a text is not predicted"
        raise UserError(problem, remedy="Use texts with at least two tokens.")
    size = opened.seq_len
    opened.check_length(min(size, max(map(len, rows)) - 1))
    cut = [row[start : start + size + 1] for row in rows for start in range(0, len(row) - 1, size)]
    inputs, targets = [row[:-1] for row in cut], [row[1:] for row in cut]
    weights = [np.ones(len(row), np.float32) for row in targets]
    return Documents(inputs, targets, weights, cut=len(rows) if len(cut) > len(rows) else None)


def check_documents(split: Split) -> None:
    """Raise `UserError` if the windows of an evaluation set are not documents of tokens."""
    padded, real = split.lengths is not None, "f" in (split.tokens.dtype.kind, split.targets.dtype.kind)
    if real or padded or split.types is not None:
        have = "real inputs or targets" if real else "padding" if padded else "tokens of several types"
        problem = f"the windows of the task have {have}, which documents do not have"
        raise UserError(problem, remedy="Use a model of a task with tokens of one type and without padding.")


def split_documents(split: Split, most: int | None = None) -> Documents:
    """Return the windows of an evaluation set with scored targets as documents.

    Args:
        split: The evaluation set.
        most: The maximum number of windows; all by default.

    Raises:
        UserError: if the windows are not documents of tokens.
    """
    check_documents(split)
    rows = np.flatnonzero((split.weights > 0).any(-1))[:most]
    arrays = (split.tokens, split.targets, split.weights)
    inputs, targets, weights = ([array[row] for row in rows] for array in arrays)
    return Documents(
        inputs, targets, weights, None if split.segments is None else [split.segments[row] for row in rows]
    )
