"""Tasks `markov` and `grammar`: texts whose entropy is known, so that no loss can be lower than `bayes_loss`."""

import math
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from pydantic import Field, PositiveFloat

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.data.base import Batch
from taetpu.data.synthetic.generated import BuiltinTask, Words, uniform_below

MOST_STATES = 4096


class TextTask(BuiltinTask):
    """Base of the tasks that generate texts, in which every token is scored."""

    has_answers = False

    table_seed: int = Field(default=0, ge=0)
    """Seed of the probabilities or rules, which are the same for all runs of a study."""


@register("task", "markov")
class Markov(TextTask):
    """A Markov chain: the next token depends on the `order` tokens before it. `bayes_loss` is its entropy rate.

    The transition probabilities are drawn. A sequence starts with a state of the chain's stationary distribution, so
    that each token from the `order`-th on is predicted with the entropy rate as the lowest possible loss.

    Source: Cover and Thomas 2006, "Elements of Information Theory", section 4.2.
    """

    symbols: int = Field(default=8, ge=2, le=256)
    """Number of different tokens."""
    order: int = Field(default=1, ge=1)
    """Number of tokens before a token on which it depends."""
    sharpness: PositiveFloat = 1.0
    """Exponent of the probabilities before they are divided by their sum. Lower entropies need larger exponents."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [chr(ord("a") + i) if self.symbols <= 26 else f"s{i}" for i in range(self.symbols)]

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return 2 + self.seq_len - self.order

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the task: its sizes, its entropy rate, and the best accuracy."""
        table, stationary = self._probabilities()
        entropy = -(table * np.log(table, where=table > 0, out=np.zeros_like(table))).sum(-1)
        best = {"bayes_loss": float(stationary @ entropy), "bayes_accuracy": float(stationary @ table.max(-1))}
        return {"symbols": self.symbols, "order": self.order, **best}

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        if self.symbols**self.order > MOST_STATES:
            problem = f"a chain of order {self.order} of {self.symbols} symbols has {self.symbols**self.order:,} states"
            raise UserError(problem, path=("order",), remedy=f"Lower order or symbols: at most {MOST_STATES:,} states.")
        if self.seq_len < self.order:
            problem = f"seq_len {self.seq_len} is shorter than the order {self.order}"
            raise UserError(problem, path=("seq_len",), remedy=f"Use at least {self.order}.")

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        table, stationary = self._probabilities()
        steps, starts = (jnp.asarray(_thresholds(part)) for part in (table, stationary))
        states = len(stationary)
        first = (words[0] >= starts).sum()

        def advance(state: Array, word: Array) -> tuple[Array, Array]:
            token = (word >= steps[state]).sum()
            return (state * self.symbols + token) % states, token

        _, later = jax.lax.scan(advance, first, words[1:])
        before = first // self.symbols ** jnp.arange(self.order - 1, -1, -1) % self.symbols
        whole = jnp.concatenate([before, later]).astype(jnp.int32)
        return Batch(whole[:-1], whole[1:], (jnp.arange(self.seq_len) >= self.order - 1).astype(jnp.float32))

    def _probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the transition probabilities, `(states, symbols)`, and the stationary distribution, `(states,)`."""
        return _chain(self.symbols, self.order, self.sharpness, self.table_seed)


@lru_cache(maxsize=8)
def _chain(symbols: int, order: int, sharpness: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    states = symbols**order
    words = np.random.Philox(key=np.array([seed, order], np.uint64)).random_raw(states * symbols)
    table = (-np.log((words.astype(np.float64) + 0.5) / 2.0**64)).reshape(states, symbols) ** sharpness
    table /= table.sum(-1, keepdims=True)
    table = np.diff(np.concatenate([np.zeros((states, 1)), _thresholds(table), np.full((states, 1), 2.0**32)], 1))
    table /= 2.0**32  # the probabilities with which integers below 2^32 are drawn
    following = (np.arange(states)[:, None] * symbols + np.arange(symbols)) % states
    stationary = np.full(states, 1 / states)
    for _ in range(100_000):
        moved = np.bincount(following.ravel(), (stationary[:, None] * table).ravel(), states)
        if np.abs(moved - stationary).sum() < 1e-14:
            break
        stationary = moved
    return table, stationary / stationary.sum()


def _thresholds(chances: np.ndarray) -> np.ndarray:
    """Return integers t such that the number of t that a random word reaches is drawn with given chances, uint32."""
    sums = np.cumsum(chances, -1)[..., :-1]
    return np.minimum(np.round(sums * 2.0**32), 2**32 - 1).astype(np.uint32)


@register("task", "grammar")
class Grammar(TextTask):
    """Sentences of a random grammar. `bayes_loss` is the entropy of a sentence divided by its number of tokens.

    A sentence starts with one of `symbols` symbols. On each of `depth` levels, a symbol becomes one of `rules` pairs of
    the next level's symbols, all with the same probability. No pair belongs to two rules of a level, so that a sentence
    has one derivation, and its entropy is that of the choices. Sentences of 2^depth tokens fill a sequence.

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had a loss .09 above the entropy on 64
    tokens after 1000 steps (1 seed).

    Source: the random hierarchy model of Cagnetta et al. 2023, arXiv 2307.02129.
    """

    symbols: int = Field(default=8, ge=2, le=256)
    """Number of different symbols of each level, and of tokens."""
    rules: int = Field(default=2, ge=1)
    """Number of pairs that a symbol may become."""
    depth: int = Field(default=3, ge=1, le=12)
    """Number of levels."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [*(chr(ord("a") + i) if self.symbols <= 26 else f"s{i}" for i in range(self.symbols)), "<bos>"]

    @property
    def sentence(self) -> Size:
        """The number of tokens in a sentence."""
        return 2**self.depth

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.seq_len

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the task: its sizes, and its entropy."""
        entropy = math.log(self.symbols) + (self.sentence - 1) * math.log(self.rules)
        sizes = {"symbols": self.symbols, "rules": self.rules, "depth": self.depth}
        return {**sizes, "bayes_loss": entropy / self.sentence, "bayes_accuracy": None}

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        if self.rules > self.symbols:
            problem = f"{self.symbols} symbols have {self.symbols**2} pairs, too few for {self.rules} rules each"
            raise UserError(problem, path=("rules",), remedy=f"Use at most {self.symbols}.")
        if self.seq_len % self.sentence:
            problem = f"sentences of {self.sentence} tokens do not fill {self.seq_len} tokens"
            raise UserError(problem, path=("seq_len",), remedy=f"Use a multiple of {self.sentence}.")

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        of_sentences = words.reshape(-1, self.sentence)
        level = uniform_below(self.symbols, of_sentences[:, :1])
        for i in range(self.depth):
            rule = uniform_below(self.rules, of_sentences[:, 2**i : 2 ** (i + 1)])
            level = jnp.asarray(self._pairs(i))[level, rule].reshape(len(level), -1)
        whole = jnp.insert(level.ravel(), 0, self.symbols)
        return Batch(whole[:-1], whole[1:], jnp.ones(self.seq_len))

    def _pairs(self, level: int) -> np.ndarray:
        """Return the pairs of a level's symbols by rule: `(symbols, rules, 2)`."""
        words = np.random.Philox(key=np.array([self.table_seed, level], np.uint64)).random_raw(self.symbols**2)
        chosen = np.argsort(words, kind="stable")[: self.symbols * self.rules]
        return np.stack(np.divmod(chosen, self.symbols), -1).reshape(self.symbols, self.rules, 2).astype(np.int32)
