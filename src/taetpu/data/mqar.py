"""Task `mqar`: multi-query associative recall. Arora et al. 2023 (Zoology, arXiv 2312.04927).

A sequence starts with K pairs of a key and a value, all different. Then each key occurs once more, as a query, and the
target of the query is the value of the key. All other positions contain the token 0. Only queries are scored.

    tokens   k1 v1 k2 v2 .. kK vK  0 0 k2 0 0 0 k1 0 ..    targets   v2 at the query k2, v1 at the query k1

The token after a query is also 0, so answers are not part of the input. Queries are at even positions. The distance of
a query from the last pair, in steps of two positions, is drawn without replacement from k = 1, 2, .. with probability
proportional to k^(power - 1), so most queries follow soon after the pairs.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field, PositiveFloat

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.data.base import Batch
from taetpu.data.generated import GeneratedSource, GeneratedTask, Words
from taetpu.data.synthetic import MAX_SYMBOLS


@register("task", "mqar")
class MQAR(GeneratedTask):
    """Recall the values of several keys (multi-query associative recall). Arora et al. 2023 (Zoology).

    Of the tokens 0 to `symbols` - 1, the first half are the filler 0 and keys, and the second half are values.

    Source: Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models", arXiv 2312.04927.
    """

    symbols: int = Field(default=32, ge=4, le=MAX_SYMBOLS)
    """Number of different tokens: the filler, keys and values."""
    pairs: Size = 4
    """Number of pairs of a key and a value, and of queries."""
    power: PositiveFloat = 0.01
    """Exponent a of the distribution of gaps, which is proportional to k^(a - 1)."""

    @property
    def causal(self) -> bool:
        """Whether a position may attend only to earlier positions."""
        return True

    @property
    def num_keys(self) -> int:
        """The number of different keys."""
        return self.symbols // 2 - 1

    @property
    def num_values(self) -> int:
        """The number of different values."""
        return self.symbols - self.symbols // 2

    @property
    def num_gaps(self) -> int:
        """The number of places for a query."""
        return (self.seq_len - 2 * self.pairs) // 2

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [".", *(f"k{i}" for i in range(self.num_keys)), *(f"v{i}" for i in range(self.num_values))]

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.num_keys + self.num_values + self.num_gaps

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the sizes of the task."""
        return {"symbols": self.symbols, "pairs": self.pairs}

    def prepare(self, folder: Any) -> GeneratedSource:
        """See `Task.prepare`."""
        room = min(self.num_keys, self.seq_len // 4)
        if self.pairs > room:
            raise UserError(
                f"{self.pairs} pairs do not fit: {self.symbols} symbols contain {self.num_keys} keys, and pairs and "
                f"queries need 4 tokens each in sequences of {self.seq_len} tokens",
                path=("pairs",),
                remedy=f"Use at most {room}." if room else "Raise seq_len to at least 4.",
            )
        return super().prepare(folder)

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        of_keys, of_values, of_gaps = jnp.split(words, np.cumsum([self.num_keys, self.num_values]))
        keys = 1 + jnp.argsort(of_keys)[: self.pairs]
        values = self.symbols // 2 + jnp.argsort(of_values)[: self.pairs]
        # The largest sums of log-probability and Gumbel noise are a draw without replacement (Kool et al. 2019).
        gumbel = -jnp.log(-jnp.log((of_gaps.astype(jnp.float32) + 0.5) / 2.0**32))
        likely = (self.power - 1) * jnp.log(jnp.arange(1.0, self.num_gaps + 1))
        queries = 2 * self.pairs + 2 * jax.lax.top_k(likely + gumbel, self.pairs)[1]
        pairs = jnp.stack([keys, values], 1).ravel()
        blank = jnp.zeros(self.seq_len, jnp.int32)
        tokens = blank.at[: 2 * self.pairs].set(pairs).at[queries].set(keys)
        return Batch(tokens, blank.at[queries].set(values), blank.astype(jnp.float32).at[queries].set(1.0))

    def score_without_attention(self) -> tuple[float, float]:
        """Return the scores of a uniform guess among the values, because a query says nothing about its value."""
        return math.log(self.num_values), 1 / self.num_values
