"""Masks of masked language models: which tokens are hidden, and where words begin."""

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from taetpu.core.keys import Key, named
from taetpu.data.tokenizers.base import Tokenizer

SPACES, BYTE_SPACES = frozenset(" \t\n\r\u2581"), frozenset("\u0120\u010a\u0109\u010d")
"""White space in vocabularies: unchanged or as in SentencePiece, and as in byte-level BPE."""
BYTES = frozenset({"<0x09>", "<0x0A>", "<0x0D>"})
"""White space that SentencePiece writes as bytes."""
Flags = Bool[Array, "batch seq"]


@dataclass(frozen=True)
class Words:
    """Where words begin, as two flags for each token, `(vocab_size,)`.

    Attributes:
        begins: Whether a token begins a word.
        ends: Whether the token after it begins a word.
    """

    begins: Bool[np.ndarray, " vocab"]
    ends: Bool[np.ndarray, " vocab"]

    def starts(self, tokens: Int[Array, "batch seq"]) -> Flags:
        """Return which tokens of sequences begin a word."""
        after = jnp.asarray(self.ends)[tokens][:, :-1]
        return jnp.asarray(self.begins)[tokens] | jnp.pad(after, ((0, 0), (1, 0)))


def find_words(tokenizer: Tokenizer, vocab_size: int) -> Words | None:
    """Return where words begin, as the entries of the vocabulary show it; None if no entry does.

    In WordPiece, all tokens begin words but those with the prefix of continuations, such as `##`. In other
    vocabularies, words are separated by white space, which is part of tokens.
    """
    names = [tokenizer.token(number) or "" for number in range(vocab_size)]
    stored = tokenizer.to_json()
    model = json.loads(stored)["model"]
    if model.get("type") == "WordPiece":
        prefix = model["continuing_subword_prefix"]
        begins = np.array([not name.startswith(prefix) for name in names])
        return None if begins.all() else Words(begins, np.zeros(vocab_size, bool))
    spaces = BYTE_SPACES if "ByteLevel" in stored else SPACES
    begins, ends = (np.array([name in BYTES or name[place:][:1] in spaces for name in names]) for place in (0, -1))
    return Words(begins, ends) if begins.any() or ends.any() else None


def draw_mask(
    key: Key, starts: Flags, apart: Flags, share: float, span: float | None
) -> tuple[Flags, Int[Array, "batch seq"]]:
    """Return which positions are masked, and the first position of the unit of each.

    Each position is masked with probability `share`. Without `span`, units are masked independently. With it, runs of
    masked units have a geometric length of mean `span`, as a Markov chain of two states that starts in its stationary
    distribution. The spans of SpanBERT are cut at 10 words and drawn until 15 % of the tokens are masked, so their
    share is not exact.

    Args:
        key: The key.
        starts: Which positions begin a unit: a token or a word.
        apart: Positions that are never masked, and at which spans end.
        share: The probability of a mask.
        span: The mean number of units of a span; None without spans.
    """
    positions = jnp.arange(starts.shape[1])
    starts = starts | apart | jnp.pad(apart[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    uniform = jax.random.uniform(key, starts.shape)
    first = jax.lax.cummax(jnp.where(starts, positions, 0), axis=1)
    alone = uniform < share
    if span is None:
        return jnp.take_along_axis(alone, first, 1) & ~apart, first
    begin = share / ((1 - share) * span)  # the probability that an unmasked unit is followed by a masked one
    restarts = apart | (positions == 0)
    after_unmasked = jnp.where(restarts, alone, starts & (uniform < begin))
    after_masked = jnp.where(restarts, alone, ~starts | (uniform < 1 - 1 / span))

    def compose(before: tuple[Flags, Flags], after: tuple[Flags, Flags]) -> tuple[Flags, Flags]:
        return tuple(jnp.where(state, after[1], after[0]) for state in before)  # pyright: ignore[reportReturnType]

    masked = jax.lax.associative_scan(compose, (after_unmasked, after_masked), axis=1)[0] & ~apart
    opens = masked & ~jnp.pad(masked[:, :-1], ((0, 0), (1, 0)))
    return masked, jax.lax.cummax(jnp.where(opens, positions, 0), axis=1)


def hide(
    key: Key, tokens: Int[Array, "batch seq"], masked: Flags, first: Int[Array, "batch seq"], mask_token: int,
    vocab_size: int, shares: tuple[float, float],
) -> Int[Array, "batch seq"]:  # fmt: skip
    """Return tokens in which masked ones are replaced by the mask token, replaced by a drawn token, or kept.

    Args:
        key: The key.
        tokens: The tokens.
        masked: Which of them are masked.
        first: The position whose draw decides: the first of a span, or that of the token.
        mask_token: The mask token.
        vocab_size: The number of different tokens, all of which are drawn with equal probability.
        shares: The shares of masked tokens that become the mask token, and a drawn one.
    """
    choice = jnp.take_along_axis(jax.random.uniform(named(key, "choice"), tokens.shape), first, 1)
    drawn = jax.random.randint(named(key, "drawn"), tokens.shape, 0, vocab_size, tokens.dtype)
    replaced = jnp.where(choice < shares[0], mask_token, jnp.where(choice < sum(shares), drawn, tokens))
    return jnp.where(masked, replaced, tokens).astype(tokens.dtype)


def fixed_mask(maskable: Bool[np.ndarray, "windows seq"], share: float, number: int) -> Bool[np.ndarray, "windows seq"]:
    """Return the mask of an evaluation set: `share` of the maskable tokens, at least one of them.

    It depends on the order of these tokens only, not on the length of windows.

    Args:
        maskable: Which tokens may be masked.
        share: The share of them to mask.
        number: The number of the text; different texts have unrelated masks.
    """
    count = int(maskable.sum())
    words = np.random.Philox(key=np.array([0x6D61736B, number], np.uint64)).random_raw(count)
    chosen = np.zeros(count, bool)
    chosen[np.argsort(words, kind="stable")[: max(1, round(share * count))]] = True
    masked = np.zeros_like(maskable)
    masked[maskable] = chosen
    return masked
