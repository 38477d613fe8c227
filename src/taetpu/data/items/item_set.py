"""Items as tokens: the sequences that a model scores, as padded arrays."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from taetpu.core.errors import DataWarning, UserError
from taetpu.core.model_interface import Interface
from taetpu.data.base import BatchSpec, Split
from taetpu.data.items.formats import ItemFile
from taetpu.data.tokenizers.base import Tokenizer


def special_numbers(special_tokens: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    """Return the special tokens with a name, such as `eos_token_id`, that are tokens of the model."""
    numbers = special_tokens.get(name)
    numbers = numbers if isinstance(numbers, list | tuple) else (numbers,)
    return tuple(number for number in numbers if number is not None and 0 <= number < vocab_size)


def prefix_token(special_tokens: Mapping[str, Any], vocab_size: int) -> int | None:
    """Return the token before texts that have no context: the one that begins texts, else one that ends them."""
    known = (special_numbers(special_tokens, name, vocab_size) for name in ("bos_token_id", "eos_token_id"))
    return next((number for numbers in known for number in numbers), None)


def encode_text(tokenizer: Tokenizer, text: str) -> Int[np.ndarray, " token"]:
    """Return the tokens of a text, after the tokens that the tokenizer adds before every text."""
    return np.concatenate([tokenizer.start_tokens, tokenizer.encode_plain(text)])


def encode_alone(tokenizer: Tokenizer, text: str, prefix: int | None) -> tuple[Int[np.ndarray, " token"], int]:
    """Return the tokens of a text without context, and the position of its first scored token.

    Args:
        tokenizer: The tokenizer.
        text: The text.
        prefix: The token before texts without context, if the tokenizer adds none.
    """
    ids, added = encode_text(tokenizer, text), len(tokenizer.start_tokens)
    if added or prefix is None or not len(ids):
        return ids, added
    return np.concatenate([[prefix], ids]).astype(np.int32), 1


def encode_pair(
    tokenizer: Tokenizer, context: str, continuation: str, prefix: int | None
) -> tuple[Int[np.ndarray, " token"], int]:
    """Return the tokens of a context and its continuation, and the position of the continuation's first token.

    Spaces at the end of the context belong to the continuation, and a continuation that forms one token with the end of
    its context is scored as this token, as in lm-evaluation-harness.
    """
    if not context.rstrip():
        ids, start = encode_alone(tokenizer, context + continuation, prefix)
        doubled = start == 1 and len(ids) > 1 and ids[0] == ids[1]  # the text begins with the token itself
        return (ids[1:] if doubled and not len(tokenizer.start_tokens) else ids), start
    whole, start = encode_text(tokenizer, context + continuation), len(encode_text(tokenizer, context.rstrip()))
    if continuation:
        start = max(min(start, len(whole) - 1), len(tokenizer.start_tokens))
    return whole, start


@dataclass(frozen=True)
class RowScores:
    """The scores of all choices of a file, in its order.

    Attributes:
        logp: The log-probability of each continuation, in nats.
        greedy: Whether each token of a continuation is the most likely one.
    """

    logp: Float[np.ndarray, " row"]
    greedy: Bool[np.ndarray, " row"]


@dataclass(frozen=True)
class ItemSet:
    """The items of a file as tokens. A row is a choice of an item.

    Attributes:
        file: The items.
        ids: The tokens of each row: of context and continuation, or of the prompt if answers are generated.
        starts: The position of the first scored token of each row. A token at position 0 has no context and is scored
            uniformly.
        tokenizer: The tokenizer.
        interface: The sizes of the model's inputs and outputs.
        end_tokens: The tokens that end a text.
    """

    file: ItemFile
    ids: tuple[np.ndarray, ...]
    starts: Int[np.ndarray, " row"]
    tokenizer: Tokenizer
    interface: Interface
    end_tokens: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.file.items)

    @cached_property
    def counts(self) -> Int[np.ndarray, " item"]:
        """The number of choices of each item."""
        return np.array([len(item.pairs) for item in self.file.items])

    @cached_property
    def labels(self) -> Int[np.ndarray, " item"]:
        """The place of the correct choice of each item."""
        return np.array([item.label for item in self.file.items])

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups in the order of the file; empty without groups."""
        return tuple(dict.fromkeys(item.group for item in self.file.items if item.group))

    @property
    def group_numbers(self) -> Int[np.ndarray, " item"]:
        """The place in `groups` of the group of each item."""
        places = {name: place for place, name in enumerate(self.groups)}
        return np.array([places[item.group] for item in self.file.items])

    @cached_property
    def num_tokens(self) -> Int[np.ndarray, " row"]:
        """The number of scored tokens of each row."""
        return np.array([len(ids) for ids in self.ids]) - self.starts

    def by_item(self, rows: np.ndarray) -> Float[np.ndarray, "item choice"]:
        """Return values of rows by item and choice, with -inf for choices that an item does not have."""
        table = np.full((len(self), self.counts.max()), -np.inf)
        table[np.arange(table.shape[1]) < self.counts[:, None]] = rows
        return table

    def lengths(self, size: Any) -> Int[np.ndarray, " row"]:
        """Return the size of the text of each choice, without the space before it."""
        texts = (text.removeprefix(" ") for item in self.file.items for _, text in item.pairs)
        return np.array([size(text) for text in texts])

    def row_scores(self, nll: Float[np.ndarray, " row"], correct: Float[np.ndarray, " row"]) -> RowScores:
        """Return the scores of rows.

        Args:
            nll: The sum over the continuation's tokens of -log p, without tokens at position 0.
            correct: The sum over the same tokens of whether a token is the most likely one.
        """
        alone = self.starts == 0
        logp = -np.asarray(nll, np.float64) - alone * math.log(self.interface.vocab_size)
        return RowScores(logp, ~alone & (correct >= self.num_tokens))

    def decode_after(self, row: int, ids: Int[np.ndarray, " token"]) -> str:
        """Return the text of tokens that follow a row, up to a token that ends texts."""
        ends = np.flatnonzero(np.isin(ids, self.end_tokens))
        ids = ids[: ends[0]] if len(ends) else ids
        before, whole = (self.tokenizer.decode(np.concatenate([self.ids[row], more])) for more in (ids[:0], ids))
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(ids)


def encode_items(
    file: ItemFile,
    tokenizer: Tokenizer,
    interface: Interface,
    seq_len: int,
    special_tokens: Mapping[str, Any],
    generated: int = 0,
) -> ItemSet:
    """Return the items of a file as tokens.

    Args:
        file: The items.
        tokenizer: The model's tokenizer.
        interface: The sizes of the model's inputs and outputs.
        seq_len: The largest number of tokens that the model reads.
        special_tokens: The tokens that begin and end texts, as `bos_token_id` and `eos_token_id`.
        generated: The number of tokens that are generated after a prompt; 0 to score continuations.

    Raises:
        UserError: If an item is too long, or has characters without a token.
    """
    prefix = prefix_token(special_tokens, interface.vocab_size)
    ids: list[np.ndarray] = []
    starts: list[int] = []
    for item in file.items:
        for choice, (context, continuation) in enumerate(item.pairs):
            place = f"row {item.row} of {file.path}"
            try:
                if generated:
                    row, start = encode_alone(tokenizer, context, prefix)[0], 0
                else:
                    row, start = encode_pair(tokenizer, context, continuation, prefix)
            except UserError as error:
                raise UserError(f"{place}: {error.problem}", path=("file",), remedy=error.remedy) from None
            inputs = len(row) + generated if generated else len(row) - 1
            if inputs > seq_len:
                more = f" and {generated} to generate" if generated else f" with choice {choice}"
                problem = f"{place} has {len(row)} tokens{more}, and the model reads {seq_len}"
                remedy = "Shorten or remove the row, or use a model with a larger task.seq_len."
                raise UserError(problem, path=("file",), remedy=remedy)
            if len(row) and (largest := int(row.max())) >= interface.vocab_size:
                problem = f"{place} has the token {largest}, and the model has {interface.vocab_size}"
                raise UserError(problem, path=("file",), remedy="Use the model's tokenizer.")
            ids.append(row.astype(np.int32))
            starts.append(min(start, len(row)))
    _warn_of_unknown(file, tokenizer)
    ends = special_numbers(special_tokens, "eos_token_id", interface.vocab_size)
    return ItemSet(file, tuple(ids), np.array(starts), tokenizer, interface, ends)


def pad_rows(rows: Sequence[tuple[np.ndarray, int]], length: int, batch: BatchSpec) -> Split:
    """Return rows as sequences of `length` inputs, padded on the right, in which the scored tokens have weight 1.

    Prefixes have one token, so that contexts are read causally, as in generation.

    Args:
        rows: The tokens of each row, and the position of its first scored token.
        length: The number of inputs, at least that of each row.
        batch: What the batches of the task contain.
    """
    shape = len(rows), length
    tokens, targets, weights = np.zeros(shape, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    for row, (ids, start) in enumerate(rows):
        end = max(len(ids) - 1, 0)
        tokens[row, :end], targets[row, :end] = ids[:-1], ids[1:]
        weights[row, max(start, 1) - 1 : end] = 1
    lengths = np.array([max(len(ids) - 1, 1) for ids, _ in rows], np.int32) if batch.lengths else None
    segments = np.zeros(shape, np.int32) if batch.segments else None
    prefix = np.ones(len(rows), np.int32) if batch.prefix else None
    return Split(tokens, targets, weights, None, segments=segments, lengths=lengths, prefix=prefix)


def _warn_of_unknown(file: ItemFile, tokenizer: Tokenizer) -> None:
    """Warn if items have characters without a token, which a model cannot tell from each other."""
    unknown = {item.row: tokenizer.find_unknown("".join(map("".join, item.pairs))) for item in file.items}
    rows = {row: characters for row, characters in unknown.items() if characters}
    if rows:
        row, characters = next(iter(rows.items()))
        problem = f"{len(rows)} of the {len(file.items)} items of {file.path} have characters that are not in the "
        problem += f"vocabulary, such as {characters[0]!r} in row {row}"
        warnings.warn(problem, DataWarning, stacklevel=3)


def pad_prompts(rows: Sequence[np.ndarray], generated: int) -> tuple[Int[np.ndarray, "row seq"], np.ndarray]:
    """Return prompts padded on the right with room for generated tokens, and their lengths."""
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), int(lengths.max()) + generated), np.int32)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    return tokens, lengths
