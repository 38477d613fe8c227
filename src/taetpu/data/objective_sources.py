"""Texts whose batches an objective changes: masked tokens, or prefixes that are not predicted."""

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from taetpu.core.config import Component, to_data
from taetpu.core.errors import UserError
from taetpu.core.identity import canonical_json
from taetpu.core.keys import Key, named
from taetpu.core.model_interface import Interface
from taetpu.data.base import Batch, Source, Split
from taetpu.data.bigrams import pair_loss, unigram_loss
from taetpu.data.masking import draw_mask, find_words, fixed_mask, hide
from taetpu.data.tokenizers.base import Tokenizer
from taetpu.data.tokenizers.bordered import with_tokens

EVALUATED_SHARE = 0.15
"""The share of tokens that are masked in evaluation sets, whatever is masked in training."""
MASK_NAMES = ("[MASK]", "<mask>", "<|mask|>")
TEXTS = ("val", "test")


class ChangedSource(Source):
    """The base of sources whose batches are those of another one, changed.

    Args:
        inner: The prepared text.
        objective: The objective that changes it.
    """

    objective: Any
    evaluated_as: str
    """What makes losses on the evaluation sets incomparable with those of other objectives."""

    def __init__(self, inner: Any, objective: Component):
        self.inner, self.objective = inner, objective
        self.trained = inner.fingerprint
        self.vocab_size, self.seq_len, self.unit = inner.vocab_size, inner.seq_len, inner.unit
        self.num_windows, self.tokenizer, self.mixture = inner.num_windows, inner.tokenizer, inner.mixture
        self.names, self.special_tokens, self.can_gather = inner.names, inner.special_tokens, inner.can_gather
        self.evaluated = hashlib.sha256(f"{inner.evaluated} {self.evaluated_as}".encode()).hexdigest()
        about = f"{inner.fingerprint} {canonical_json(to_data(objective))}"
        self.fingerprint = hashlib.sha256(about.encode()).hexdigest()
        self._splits: dict[str, Split | None] = {}

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """See `Source.arrays`."""
        return self.inner.arrays

    @property
    def interface(self) -> Interface:
        """See `Source.interface`."""
        return replace(self.inner.interface, vocab_size=self.vocab_size)

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """See `Source.rows`."""
        return self.inner.rows(seed, start, count, batch_size)

    def gather(self, rows: Int[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """See `Source.gather`."""
        return self.inner.gather(rows)

    def evaluation(self, split: str) -> Split | None:
        """See `Source.evaluation`."""
        if split not in self._splits:
            inner = self.inner.evaluation(split)
            self._splits[split] = None if inner is None else self._changed(inner, split)
        return self._splits[split]

    def _changed(self, split: Split, name: str) -> Split:
        """Return an evaluation set as the objective scores it."""
        raise NotImplementedError

    def prompt(self) -> np.ndarray:
        """See `Source.prompt`."""
        return self.inner.prompt()

    def show(self, ids: Any) -> str:
        """See `Source.show`."""
        return self.inner.show(ids) if self.tokenizer is None else self.tokenizer.decode(ids)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """See `Source.facts`. Texts are not coded, so bits per byte have no facts."""
        inner = {name: value for name, value in self.inner.facts.items() if name != "escape_bits"}
        return {**inner, "vocab_size": self.vocab_size, "chance_loss": math.log(self.vocab_size), **self.references()}

    def references(self) -> dict[str, Any]:
        """Return the reference losses over scored targets; see `Source.facts`."""
        raise NotImplementedError


class PrefixSource(ChangedSource):
    """A text in whose sequences a prefix of drawn length is not predicted: 1 token to all but the last target."""

    evaluated_as = "prefix 1"

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """See `Source.batch`."""
        batch = self.inner.batch(arrays, rows, named(key, "inner"))
        longest = batch.weights.astype(jnp.int32).sum(-1)
        prefix = jax.random.randint(named(key, "prefix"), longest.shape, 1, jnp.maximum(longest, 1) + 1)
        after = jnp.arange(self.seq_len) >= prefix[:, None] - 1  # the last token of a prefix predicts the next one
        return batch._replace(weights=batch.weights * after, prefix=prefix)

    def _changed(self, split: Split, name: str) -> Split:
        longest = np.maximum(split.weights.sum(-1).astype(np.int64), 1)
        words = np.random.Philox(key=np.array([0x707265, TEXTS.index(name.partition("@")[0])], np.uint64))
        prefix = (words.random_raw(len(longest)) % longest.astype(np.uint64)).astype(np.int32) + 1
        after = np.arange(split.weights.shape[1]) >= prefix[:, None] - 1
        weights = (split.weights * after).astype(np.float32)
        return replace(split, weights=weights, prefix=prefix, num_bytes=None, unpredicted_bits=0.0)

    def references(self) -> dict[str, Any]:
        """See `ChangedSource.references`. The loss of bigrams is that of targets after the prefix."""
        val = self.evaluation("val")
        if val is None:
            return {"decoy_loss": None}
        scored = val.weights > 0
        loss = pair_loss(self.inner.pairs, (val.tokens[scored], val.targets[scored]), self.vocab_size)
        return {"decoy_loss": loss}


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a masked text.

    Attributes:
        size: The number of different tokens, the mask token included.
        mask: The mask token.
        special: Which tokens are never masked, `(size,)`.
        tokenizer: The tokenizer with the mask token; None if the tokens are not text.
        added: Whether the mask token was added to the vocabulary.
    """

    size: int
    mask: int
    special: Bool[np.ndarray, " size"]
    tokenizer: Tokenizer | None
    added: bool


class MaskedSource(ChangedSource):
    """A text whose masked tokens are predicted.

    Masks of training are drawn from the key of the step. Those of evaluation sets are fixed: single tokens, all of
    them replaced by the mask token, so that losses of arms with different masks are comparable, and no prediction can
    be copied from the input.

    Args:
        inner: The prepared text.
        objective: The objective, with the fields of `masked-lm`.
        special: Further tokens that are never masked.

    Raises:
        UserError: if the mask token does not exist, if words are masked and the vocabulary does not show where they
            begin, or if no token of an evaluation set can be masked. Paths are relative to the objective.
    """

    evaluated_as = f"masked 1, {EVALUATED_SHARE}"

    def __init__(self, inner: Any, objective: Any, special: Collection[int]):
        super().__init__(inner, objective)
        self.vocabulary = find_vocabulary(inner, objective.mask_token, special)
        self.vocab_size, self.tokenizer = self.vocabulary.size, self.vocabulary.tokenizer
        if self.vocabulary.added:
            self.unit = f"{self.vocab_size} tokens, numbered" if self.tokenizer is None else self.tokenizer.unit
        self.words = None
        if objective.unit == "word":
            self.words = None if self.tokenizer is None else find_words(self.tokenizer, self.vocab_size)
            if self.words is None:
                what = "tokens without a tokenizer" if self.tokenizer is None else "the vocabulary of the tokenizer"
                problem = f"unit is 'word', but {what} does not show where words begin"
                raise UserError(problem, path=("unit",), remedy="Use `unit: token`, or another tokenizer.")

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """See `Source.batch`."""
        batch, objective = self.inner.batch(arrays, rows, named(key, "inner")), self.objective
        tokens = batch.tokens
        apart = jnp.asarray(self.vocabulary.special)[tokens] | ~_real(batch)
        starts = jnp.ones(tokens.shape, bool) if self.words is None else self.words.starts(tokens)
        masked, first = draw_mask(named(key, "mask"), starts, apart, objective.share, objective.span)
        together = first if objective.span is not None else jnp.broadcast_to(jnp.arange(self.seq_len), tokens.shape)
        shares = objective.mask, objective.random
        hidden = hide(named(key, "hide"), tokens, masked, together, self.vocabulary.mask, self.vocab_size, shares)
        weights = masked.astype(jnp.float32)
        if objective.next_sentence:  # as much as the masked tokens of a full sequence
            weights = weights.at[:, 0].set(objective.next_sentence * objective.share * self.seq_len)
        return batch._replace(tokens=hidden, targets=self._targets(batch), weights=weights)

    def _targets(self, batch: Any) -> Any:
        """Return the tokens as targets. In pairs, the first target remains the class of the pair."""
        if batch.types is None:
            return batch.tokens
        return jnp.concatenate([batch.targets[:, :1], batch.tokens[:, 1:]], 1)

    def _changed(self, split: Split, name: str) -> Split:
        maskable = _real(split) & ~self.vocabulary.special[split.tokens]
        if not maskable.any():
            problem = f"no token of the {name} split can be masked, because all are special tokens"
            raise UserError(problem, remedy="Use more evaluation text.")
        masked = fixed_mask(maskable, EVALUATED_SHARE, TEXTS.index(name.partition("@")[0]))
        return replace(
            split,
            tokens=np.where(masked, self.vocabulary.mask, split.tokens).astype(np.int32),
            targets=np.asarray(self._targets(split), np.int32),
            weights=masked.astype(np.float32),
            num_bytes=None,
            unpredicted_bits=0.0,
        )

    def show(self, ids: Any) -> str:
        """See `Source.show`. The mask token is visible also if the tokens are numbers."""
        if self.tokenizer is not None:
            return self.tokenizer.decode(ids)
        return " ".join(MASK_NAMES[0] if i == self.vocabulary.mask else str(i) for i in np.asarray(ids).tolist())

    def references(self) -> dict[str, Any]:
        """See `ChangedSource.references`. Without attention, all masked tokens of a sequence look alike."""
        val, train = self.evaluation("val"), self.inner.sampled
        train = train[~self.vocabulary.special[train]]
        loss = None if val is None else unigram_loss(train, val.targets[val.weights > 0], self.vocab_size)
        return {
            "decoy_loss": loss,
            "decoy": f"unigrams counted on {len(train):,} training tokens, one added to each, scored on masked tokens",
            "scored": {name: int((split.weights > 0).sum()) for name in TEXTS if (split := self.evaluation(name))},
        }


def find_vocabulary(inner: Any, mask_token: str | int | None, special: Collection[int]) -> Vocabulary:
    """Return the tokens of a masked text.

    Args:
        inner: The prepared text.
        mask_token: The name or number of the mask token; None for the first of `MASK_NAMES` that the tokenizer has, or
            a token that is added.
        special: Tokens that are never masked, beside the mask token and the special tokens of the tokenizer.

    Raises:
        UserError: if there is no such token.
    """
    tokenizer, size = inner.tokenizer, inner.vocab_size
    names = MASK_NAMES if mask_token is None else (mask_token,)
    number = mask_token if isinstance(mask_token, int) else None
    if number is None and tokenizer is not None:
        number = next((known for name in names if (known := tokenizer.number(name)) is not None), None)
    if mask_token is not None and (number is None or number >= size):
        problem = f"mask_token {mask_token!r} is not one of the {size:,} tokens"
        remedy = "Use a token of the tokenizer, its number, or none for a token that is added."
        raise UserError(problem, path=("mask_token",), remedy=remedy)
    if added := number is None:
        number, size = size, size + 1
        if tokenizer is not None:
            tokenizer = with_tokens(tokenizer, MASK_NAMES[:1])
            number, size = tokenizer.number(MASK_NAMES[0]), tokenizer.vocab_size
    assert number is not None
    flags = np.zeros(size, bool)
    flags[[number, *special, *(() if tokenizer is None else tokenizer.special_numbers)]] = True
    return Vocabulary(size, number, flags, tokenizer, added)


def _real(batch: Any) -> Any:
    """Return which positions of a batch, or of an evaluation set, are not padding."""
    if batch.lengths is None:
        return batch.weights > 0
    return np.arange(batch.tokens.shape[-1]) < batch.lengths[..., None]
