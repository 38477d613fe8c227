"""Pairs of pieces of documents: the second piece follows the first one, or is from another document."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.model_interface import Interface
from taetpu.data.base import Batch
from taetpu.data.example_source import ExampleSource
from taetpu.data.tokenizers.base import Tokenizer

CLS, SEP = "[CLS]", "[SEP]"
"""Names of the token before a pair and of the token after each piece, unless the study names others."""
Documents = tuple[np.ndarray, np.ndarray]
"""The tokens of documents, one after another, and the length of each document."""
Halves = tuple[np.ndarray, np.ndarray]
"""The two halves of a part of a document."""


class PairSource(ExampleSource):
    """Pairs `[CLS] a [SEP] b [SEP]` of pieces of documents, with types 0 and 1; see `data.base.Source`.

    The first position predicts whether b follows a: its target is the second special token if so, else the first one.
    Each document is cut into parts of at most `seq_len` - 3 tokens, whose halves are a and b. In training, the key of
    the step decides with equal probability whether b is the half that follows, or that of another document, which is
    fixed for each part. In evaluation sets, half of the pairs are of each class.

    Args:
        documents: The tokens of all documents of each split, and the length of each document.
        tokenizer: The tokenizer.
        ends: The numbers of the special tokens.
        seq_len: The number of tokens in a sequence.
        facts: Facts for reports.
        evaluated: See `Source.evaluated`.

    Raises:
        UserError: if a split has no two documents with two tokens each.
    """

    tokenizer: Tokenizer

    def __init__(
        self, documents: Mapping[str, Documents], tokenizer: Tokenizer, ends: tuple[int, int], seq_len: int,
        facts: dict[str, Any], evaluated: str,
    ):  # fmt: skip
        self.ends = ends
        halves = {name: _halves(*part, seq_len - 3, name) for name, part in documents.items() if len(part[0])}
        pairs = {name: self._lay_out(*part, seq_len, i) for i, (name, part) in enumerate(halves.items())}
        fixed = {name: self._fixed(arrays, i) for i, (name, arrays) in enumerate(pairs.items()) if name != "train"}
        vocab = tokenizer.vocab_size
        self.sampled, _ = documents["train"]
        references = {
            "chance_loss": math.log(vocab), "bayes_loss": None,
            "decoy_loss": math.log(2), "decoy": "equal probabilities of both classes of pairs",
        }  # fmt: skip
        parts = {"train": self._batch(pairs["train"], np.ones(len(pairs["train"]["firsts"]), bool)), **fixed}
        super().__init__(parts, [], {**facts, **references}, Interface(vocab, types=2), tokenizer)
        self._train = pairs["train"]
        self.evaluated = evaluated
        self.fingerprint = hashlib.sha256(f"{self.fingerprint} pairs 1".encode()).hexdigest()

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """See `Source.batch`."""
        follows = jax.random.bernoulli(named(key, "follows"), 0.5, rows.shape)
        return self._batch({name: array[rows] for name, array in arrays.items()}, follows)

    def _batch(self, arrays: Mapping[str, Any], follows: Any) -> Batch:
        """Return pairs of one class each: b follows a, or not."""
        tokens = jnp.where(follows[:, None], arrays["next"], arrays["other"])
        lengths = jnp.where(follows, arrays["next_lengths"], arrays["other_lengths"])
        place = jnp.arange(tokens.shape[1])
        types = (place >= arrays["firsts"][:, None]) & (place < lengths[:, None])
        targets = tokens.at[:, 0].set(jnp.where(follows, self.ends[1], self.ends[0]))
        weights = jnp.broadcast_to(place == 0, tokens.shape).astype(jnp.float32)
        return Batch(tokens, targets, weights, types=types.astype(jnp.int32), lengths=lengths)

    def _fixed(self, arrays: Mapping[str, np.ndarray], number: int) -> Any:
        """Return an evaluation set, half of whose pairs follow each other."""
        order = np.argsort(_words(number, 0, len(arrays["firsts"])), kind="stable")
        return [None if part is None else np.asarray(part) for part in self._batch(arrays, order % 2 == 0)]

    def _lay_out(self, halves: list[Halves], owners: np.ndarray, seq_len: int, number: int) -> dict[str, np.ndarray]:
        """Return the two pairs of each part: with the half that follows, and with one of another document."""
        first, last = (np.searchsorted(owners, owners, side) for side in ("left", "right"))
        others = (_words(number, 1, len(owners)) % (len(owners) - last + first).astype(np.uint64)).astype(np.int64)
        others += np.where(others >= first, last - first, 0)  # skips the parts of the same document
        both = {"next": np.arange(len(owners)), "other": others}
        laid_out: dict[str, np.ndarray] = {"firsts": np.array([len(a) + 2 for a, _ in halves], np.int32)}
        for name, seconds in both.items():
            rows = [[self.ends[0], *a, self.ends[1], *halves[i][1], self.ends[1]]
                    for (a, _), i in zip(halves, seconds, strict=True)]  # fmt: skip
            laid_out[f"{name}_lengths"] = np.array([*map(len, rows)], np.int32)
            laid_out[name] = np.array([row + [0] * (seq_len - len(row)) for row in rows], np.int32)
        return laid_out


def _halves(tokens: np.ndarray, lengths: np.ndarray, longest: int, split: str) -> tuple[list[Halves], np.ndarray]:
    """Return the halves of the parts of documents, and the number of the document of each part."""
    halves, owners = [], []
    for number, document in enumerate(np.split(tokens, np.cumsum(lengths)[:-1])):
        for start in range(0, len(document), max(longest, 1)):
            if longest >= 2 and len(part := document[start : start + longest]) >= 2:
                middle = (len(part) + 1) // 2
                halves.append((part[:middle], part[middle:]))
                owners.append(number)
    if len(set(owners)) < 2:
        problem = f"the {split} split has {len(set(owners))} documents whose pieces make pairs in {longest + 3} tokens"
        raise UserError(problem, path=("samples",), remedy="Use more documents, `per: line`, or a larger seq_len.")
    return halves, np.array(owners)


def _words(number: int, use: int, count: int) -> np.ndarray:
    """Return random words for a split, uint64 `(count,)`."""
    return np.random.Philox(key=np.array([0x70616972 + use, number], np.uint64)).random_raw(count)
