"""Texts and token numbers as batches, padded on the left."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from taetpu.core.errors import UserError, shorten
from taetpu.core.short_repr import short_repr
from taetpu.data.base import Source
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.nn.lm import LMConfig

LENGTHS = 16
"""Lengths of batches are multiples of this number, so that texts of similar length share a compiled program."""
FORMS = "Pass a text, token numbers, or a list of these."
SHOWN = 60
"""Maximum number of characters of a value in a message."""
MAX_NUMBERS = 2**28
"""Maximum number of logits, or of attention weights of one layer, that are in memory at once."""
MAX_HEADS = 64
"""The number of heads in a layer up to which a text that needs little memory passes without a count of the heads."""


@dataclass(frozen=True)
class Tokens:
    """A batch of sequences, padded on the left.

    Attributes:
        ids: The token numbers; 0 in padding. Real inputs `(batch, seq, features)` for a model that reads them.
        padding: True for padding.
    """

    __repr__ = short_repr

    ids: Int[np.ndarray, "batch seq"] | Float[np.ndarray, "batch seq features"]
    padding: Bool[np.ndarray, "batch seq"]

    @property
    def lengths(self) -> Int[np.ndarray, " batch"]:
        """The number of tokens of each sequence."""
        return (~self.padding).sum(-1)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.ids)

    def of(self, sequence: int) -> Int[np.ndarray, " length"]:
        """Return the token numbers of a sequence, without padding."""
        return self.ids[sequence][~self.padding[sequence]]

    def strip(self, sequence: int, values: np.ndarray, axis: int = 0) -> np.ndarray:
        """Return values of the positions of a sequence, without those of padding.

        Args:
            sequence: The number of the sequence.
            values: Values of the sequence's positions.
            axis: The axis of positions.
        """
        return np.take(values, np.flatnonzero(~self.padding[sequence]), axis)


def as_sequences(inputs: Any, tokenizer: Tokenizer | Source | None, vocab_size: int) -> list[np.ndarray]:
    """Return the token numbers of each input.

    Args:
        inputs: A text, token numbers, or a list of these; an array `(seq,)` or `(batch, seq)`.
        tokenizer: The tokenizer of texts, or a task whose tokens have names; None if tokens are numbers only.
        vocab_size: The number of different tokens; 0 for a model that reads real inputs.

    Raises:
        UserError: if the model reads real inputs, the input is empty, a text cannot be encoded, or a number is not a
            token.
    """
    if not vocab_size:
        raise UserError("this model reads real inputs, not tokens", remedy="Pass (batch, seq, features) to the model.")
    if isinstance(inputs, str):
        inputs = [inputs]
    unordered = isinstance(inputs, (Mapping, Set, bytes))
    if unordered or not isinstance(inputs, Iterable) or getattr(inputs, "ndim", 1) == 0:
        shown = "a single number" if getattr(inputs, "ndim", 1) == 0 else shorten(repr(inputs), SHOWN)
        problem = f"the input is {shown} ({type(inputs).__name__}), expected a text or token numbers"
        raise UserError(problem, path=("input",), remedy=FORMS)
    rows = list(inputs)
    if rows and all(not isinstance(row, (str, Sequence)) and np.ndim(row) == 0 for row in rows):
        rows = [rows]
    if not rows:
        raise UserError("the input is empty", remedy=FORMS)
    return [_encode(row, number, tokenizer, vocab_size) for number, row in enumerate(rows)]


def as_real_inputs(inputs: Any, features: int) -> Tokens:
    """Return an array `(seq, features)` or `(batch, seq, features)` as a batch without padding.

    Raises:
        UserError: if the array has another shape, or a number is not finite.
    """
    array = np.asarray(inputs, np.float32)
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[-1] != features or not array.size:
        problem = f"the input has shape {array.shape}, expected (batch, seq, {features})"
        raise UserError(problem, path=("input",), remedy=f"Pass {features} numbers for each position.")
    if not np.isfinite(array).all():
        raise UserError("a number of the input is not finite", path=("input",), remedy="Pass finite numbers.")
    return Tokens(array, np.zeros(array.shape[:2], bool))


def _encode(row: Any, number: int, tokenizer: Tokenizer | Source | None, vocab_size: int) -> np.ndarray:
    if text := isinstance(row, str):
        if tokenizer is None:
            problem = "this model has no tokenizer, so it cannot read text"
            raise UserError(problem, remedy=f"Pass token numbers from 0 to {vocab_size - 1}.")
        try:
            ids = tokenizer.parse(row) if isinstance(tokenizer, Source) else tokenizer.encode(row)
        except UserError as error:
            remedy = error.remedy
            if error.path == ("unseen",):  # a setting of training
                remedy = "Remove it from the text, or use a model whose vocabulary contains it."
            raise UserError(error.problem, path=("input", number), remedy=remedy) from None
    else:
        ids = _as_array(row, number)
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        problem = f"input {number} has shape {ids.shape} and type {ids.dtype}, expected a list of token numbers"
        raise UserError(problem, remedy=FORMS)
    if not ids.size:
        raise UserError(f"input {number} contains no token", remedy="Pass a text with at least one token.")
    if (wrong := ids[(ids < 0) | (ids >= vocab_size)]).size:
        check_row(int(wrong[0]), vocab_size, tokenizer if isinstance(tokenizer, Tokenizer) and text else None)
    return ids.astype(np.int32)


def check_row(token: int, vocab_size: int, tokenizer: Tokenizer | None = None, *where: str | int) -> None:
    """Raise `UserError` unless a token has a row in the model's embedding.

    Args:
        token: The number of the token.
        vocab_size: The number of rows.
        tokenizer: The tokenizer, if the token is from a text. It may have more tokens than the model.
        where: The place of the token in the user's input.
    """
    if 0 <= token < vocab_size:
        return
    problem, remedy = f"{token} is not a token of this model", f"Use numbers from 0 to {vocab_size - 1}."
    if tokenizer is not None:
        problem = f"the text has token {tokenizer.token(token)!r} ({token}), but the model has {vocab_size} tokens only"
        remedy = "Remove it from the text, or use a model whose embedding has a row for it."
    raise UserError(problem, path=where, remedy=remedy)


def _as_array(row: Any, number: int) -> np.ndarray:
    try:
        return np.asarray(row)
    except ValueError:
        problem = f"input {number} consists of lists of different lengths, expected a list of token numbers"
        raise UserError(problem, remedy=FORMS) from None


def pad_left(rows: Sequence[np.ndarray], multiple: int = LENGTHS) -> Tokens:
    """Return sequences as a batch whose length is a multiple of a number, padded on the left."""
    length = -(-max(map(len, rows)) // multiple) * multiple
    ids = np.zeros((len(rows), length), np.int32)
    padding = np.ones((len(rows), length), bool)
    for number, row in enumerate(rows):
        ids[number, length - len(row) :], padding[number, length - len(row) :] = row, False
    return Tokens(ids, padding)


def longest(config: LMConfig, seq_len: int) -> tuple[int, str] | None:
    """Return the maximum length of a sequence and the kind of positions that limits it; None without a limit."""
    positions = (config.position, *(layer.position for layer in config.layers))
    return next(((seq_len, position.kind) for position in positions if not position.extrapolates), None)


def check_length(config: LMConfig, seq_len: int, tokens: int) -> None:
    """Raise `UserError` if the model has no positions for a number of tokens."""
    if (limit := longest(config, seq_len)) is not None and tokens > limit[0]:
        problem = f"{limit[1]!r} positions exist for {seq_len} tokens only, and the sequence has {tokens}"
        raise UserError(problem, remedy=f"Use at most {seq_len} tokens, those of the prompt included.")


def check_numbers(tokens: int, each: int, power: int, what: str) -> None:
    """Raise `UserError` if a text would need more than `MAX_NUMBERS` numbers in memory.

    Args:
        tokens: The number of tokens of the text.
        each: The quantity of numbers for a text of one token.
        power: The power of the number of tokens to which the quantity is proportional.
        what: What the numbers are.
    """
    if each and each * tokens**power > MAX_NUMBERS:
        problem = f"a text of {tokens:,} tokens has {each * tokens**power:,} {what}, and at most {MAX_NUMBERS:,} fit"
        most = int((MAX_NUMBERS / each) ** (1 / power))
        raise UserError(problem, path=("input",), remedy=f"Use at most {most:,} tokens at once, or fewer texts.")
