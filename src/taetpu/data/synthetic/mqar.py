"""Multi-query associative recall. Arora et al. 2023 (Zoology, arXiv 2312.04927).

A sequence starts with K pairs of a key and a value, all different. Then each key occurs once more, as a query, and the
target of the query is the value of the key. All other positions contain the token 0. Only queries are scored.

    tokens   k1 v1 k2 v2 .. kK vK  0 0 k2 0 0 0 k1 0 ..    targets   v2 at the query k2, v1 at the query k1

The token after a query is also 0, so answers are not part of the input. Queries are at even positions. The distance of
a query from the last pair, in steps of two positions, is drawn without replacement from k = 1, 2, .. with probability
proportional to k^(power - 1), so most queries follow soon after the pairs. The distances are drawn in the order of the
pairs, as in Zoology, so early queries are more often of early pairs, and the place of a query says something about its
value.

`mqar-forgetting` and `mqar-compositional` are its variants in the code of Zoology, here with the filler 0.
"""

import math
from abc import abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from pydantic import Field, PositiveFloat

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.data.base import Batch
from taetpu.data.synthetic.answers import MAX_SYMBOLS
from taetpu.data.synthetic.generated import BuiltinTask, Words, numbered, uniform_below


class Recall(BuiltinTask):
    """Base of the variants of associative recall. Of the tokens, the first is the filler 0, and the last are values.

    Attributes:
        step: The number of tokens of a query, with the one after it.
    """

    sizes = ("symbols", "pairs")
    step: ClassVar[int] = 2

    symbols: int = Field(default=32, ge=4, le=MAX_SYMBOLS)
    """Number of different tokens: the filler, keys and values."""
    pairs: Size = 4
    """Number of pairs of a key and a value, and of queries."""
    power: PositiveFloat = 0.01
    """Exponent a of the distribution of gaps, which is proportional to k^(a - 1)."""

    @property
    def num_keys(self) -> int:
        """The number of different keys."""
        return self.symbols // 2 - 1

    @property
    def num_values(self) -> int:
        """The number of different values."""
        return self.symbols - self.symbols // 2

    @property
    @abstractmethod
    def context(self) -> int:
        """The number of tokens before the queries."""

    @property
    def num_gaps(self) -> int:
        """The number of places for a query."""
        return (self.seq_len - self.context) // self.step

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [".", *numbered(k=self.num_keys, v=self.num_values)]

    def query_places(self, words: Words) -> Int[Array, " pairs"]:
        """Return the places of the queries, given `num_gaps` random words."""
        # The largest sums of log-probability and Gumbel noise are a draw without replacement (Kool et al. 2019).
        gumbel = -jnp.log(-jnp.log((words.astype(jnp.float32) + 0.5) / 2.0**32))
        likely = (self.power - 1) * jnp.log(jnp.arange(1.0, self.num_gaps + 1))
        return self.context + self.step * jax.lax.top_k(likely + gumbel, self.pairs)[1]

    def fill(self, context: Array, places: Array, queries: tuple[Array, ...], values: Array) -> Batch:
        """Return a sequence of the context and the queries, with the values as targets of the queries' last tokens."""
        tokens = targets = jnp.zeros(self.seq_len, jnp.int32)
        tokens = tokens.at[: self.context].set(context)
        for i, part in enumerate(queries):
            tokens = tokens.at[places + i].set(part)
        last = places + len(queries) - 1
        return Batch(tokens, targets.at[last].set(values), targets.astype(jnp.float32).at[last].set(1.0))

    def score_without_attention(self) -> tuple[float, float]:
        """Return the scores of a uniform guess among the values, because a query says nothing about its value."""
        return math.log(self.num_values), 1 / self.num_values


@register("task", "mqar")
class MQAR(Recall):
    """Recall the values of several keys (multi-query associative recall). Arora et al. 2023 (Zoology).

    Of the tokens 0 to `symbols` - 1, the first half are the filler 0 and keys, and the second half are values. Use
    an init with large embeddings, such as the default or `fan-in`: two layers of attention reached an exact match above
    .9 after 1500 steps with `fan-in`, and of .07 with `gpt2-scaled` (16 symbols, 3 pairs, 16 tokens). With the settings
    of studies/known/mqar.yaml, the accuracy after 500 steps was 1.000 with `fan-in` and .999 with the default (1 seed).

    Source: Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models", arXiv 2312.04927.
    """

    @property
    def context(self) -> int:
        """The number of tokens before the queries."""
        return 2 * self.pairs

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.num_keys + self.num_values + self.num_gaps

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        room = min(self.num_keys, self.seq_len // 4)
        if self.pairs > room:
            raise UserError(
                f"{self.pairs} pairs do not fit: {self.symbols} symbols contain {self.num_keys} keys, and pairs and "
                f"queries need 4 tokens each in sequences of {self.seq_len} tokens",
                path=("pairs",),
                remedy=f"Use at most {room}." if room else "Raise seq_len to at least 4.",
            )

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        of_keys, of_values, of_gaps = jnp.split(words, np.cumsum([self.num_keys, self.num_values]))
        keys = 1 + jnp.argsort(of_keys)[: self.pairs]
        values = self.symbols // 2 + jnp.argsort(of_values)[: self.pairs]
        return self.fill(jnp.stack([keys, values], 1).ravel(), self.query_places(of_gaps), (keys,), values)


@register("task", "mqar-forgetting")
class ForgettingMQAR(Recall):
    """MQAR in which some keys get another value after all pairs, and the last value of a key is its answer.

    Settings that learn it are not known here: two and three layers (`dim` 64, 2 heads, init `fan-in`, AdamW, `lr`
    2e-3, 64 sequences a step) had accuracies of .32 and .33 on 32 tokens after 2500 steps (1 seed), as by a guess
    among the values of the sequence.

    Source: the code of Arora et al. 2023 (Zoology, arXiv 2312.04927), `forgetting_mqar`.
    """

    sizes = ("symbols", "pairs", "updates")

    updates: Size = 2
    """Number of keys that get another value."""

    @property
    def context(self) -> int:
        """The number of tokens before the queries."""
        return 2 * (self.pairs + self.updates)

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.num_keys + self.num_values + self.pairs + self.updates + self.num_gaps

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        most = min(self.num_keys, (self.seq_len - 2 * self.updates) // 4)
        if not self.updates <= self.pairs <= most:
            problem = (
                f"{self.pairs} pairs and {self.updates} updates do not fit: {self.symbols} symbols contain "
                f"{self.num_keys} keys, pairs with their queries need 4 tokens each, and updates 2, of {self.seq_len}"
            )
            remedy = (
                f"Use at most {most} pairs and as many updates." if most > 0 else "Raise seq_len, or lower updates."
            )
            raise UserError(problem, path=("pairs",), remedy=remedy)

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        sizes = [self.num_keys, self.num_values, self.pairs, self.updates]
        of_keys, of_values, of_updated, of_new, of_gaps = jnp.split(words, np.cumsum(sizes))
        keys, values = 1 + jnp.argsort(of_keys)[: self.pairs], jnp.argsort(of_values)[: self.pairs]
        updated = jnp.argsort(of_updated)[: self.updates]
        new = (values[updated] + 1 + uniform_below(self.num_values - 1, of_new)) % self.num_values
        first = self.symbols // 2
        pairs = jnp.stack([keys, first + values], 1).ravel()
        updates = jnp.stack([keys[updated], first + new], 1).ravel()
        last = first + values.at[updated].set(new)
        return self.fill(jnp.concatenate([pairs, updates]), self.query_places(of_gaps), (keys,), last)


@register("task", "mqar-compositional")
class CompositionalMQAR(Recall):
    """MQAR whose keys consist of two tokens, neither of which determines the value.

    The keys are all combinations of `grid` first tokens with `grid` second tokens, so that `pairs` is `grid` squared.
    A third of the tokens each are first tokens, second tokens and values.

    Two layers (`dim` 64, 2 heads, init `fan-in`, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of .991 on
    32 tokens after 2500 steps, and three layers of .324; with 4 heads and the default init, two had .330 after 2000
    steps (1 seed).

    Source: the code of Arora et al. 2023 (Zoology, arXiv 2312.04927), `compositional_mqar`.
    """

    step = 3

    symbols: int = Field(default=33, ge=6, le=MAX_SYMBOLS)
    """Number of different tokens: the filler, first and second tokens of keys, and values."""

    @property
    def grid(self) -> int:
        """The number of first tokens, and of second tokens."""
        return math.isqrt(self.pairs)

    @property
    def context(self) -> int:
        """The number of tokens before the queries."""
        return 3 * self.pairs

    @property
    def num_keys(self) -> int:
        """The number of different first tokens, and of second tokens."""
        return (self.symbols - 1) // 3

    @property
    def num_values(self) -> int:
        """The number of different values."""
        return self.symbols - 1 - 2 * self.num_keys

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [".", *numbered(a=self.num_keys, b=self.num_keys, v=self.num_values)]

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return 2 * self.num_keys + self.num_values + self.pairs + self.num_gaps

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        if self.grid**2 != self.pairs:
            remedy = f"Use {self.grid**2} or {(self.grid + 1) ** 2}."
            raise UserError(f"{self.pairs} pairs are not the square of a number", path=("pairs",), remedy=remedy)
        if self.grid > self.num_keys or self.pairs > self.num_values or 6 * self.pairs > self.seq_len:
            problem = (
                f"{self.pairs} pairs do not fit: {self.symbols} symbols contain {self.num_keys} first and second "
                f"tokens and {self.num_values} values, and pairs need 6 tokens each of {self.seq_len}"
            )
            raise UserError(problem, path=("pairs",), remedy="Lower pairs, or raise symbols or seq_len.")

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        sizes = [self.num_keys, self.num_keys, self.num_values, self.pairs]
        of_first, of_second, of_values, of_order, of_gaps = jnp.split(words, np.cumsum(sizes))
        order = jnp.argsort(of_order)
        first = (1 + jnp.argsort(of_first)[: self.grid])[order // self.grid]
        second = (1 + self.num_keys + jnp.argsort(of_second)[: self.grid])[order % self.grid]
        values = 1 + 2 * self.num_keys + jnp.argsort(of_values)[: self.pairs]
        context = jnp.stack([first, second, values], 1).ravel()
        return self.fill(context, self.query_places(of_gaps), (first, second), values)
