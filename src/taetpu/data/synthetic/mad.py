"""The six tasks of mechanistic architecture design. Poli et al. 2024 (MAD, arXiv 2403.17844).

Sizes are those of the paper. Differences from its code: every sequence of `mad-selective-copy` may also have blanks
after the last symbol, only what is asked for is scored in training too, and training and validation sequences of
`mad-fuzzy-recall` have keys of all lengths.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from pydantic import Field

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.core.registry import register
from taetpu.data.base import Batch
from taetpu.data.synthetic.generated import BuiltinTask, Words, happens, numbered, uniform_below


class MadTask(BuiltinTask):
    """Base of the tasks of MAD."""

    seq_len: Size = 128
    """Number of tokens in a sequence."""


@register("task", "mad-recall")
class MadRecall(MadTask):
    """Pairs of a key and a value, in which each key always has the same value. Repeated keys are scored.

    The keys are half of the symbols, and the values the other half.

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of 1.000 on 64 tokens
    after 1000 steps with the default init, and of .324 with `gpt2-scaled` (1 seed).

    Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844.
    """

    sizes = ("symbols", "noise")

    symbols: int = Field(default=16, ge=4)
    """Number of different keys and values."""
    noise: float = Field(default=0.0, ge=0, lt=1)
    """Share of the pairs that are replaced by two noise tokens."""
    noise_symbols: int = Field(default=0, ge=0)
    """Number of different noise tokens."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return numbered(k=self.symbols // 2, v=self.symbols - self.symbols // 2, n=self.noise_symbols)

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.symbols // 2 * 2 + 4 * (self.seq_len // 2)

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        self.check_pairs("pairs of tokens", 4)
        if self.noise and not self.noise_symbols:
            raise UserError("noise needs symbols", path=("noise_symbols",), remedy="Set noise_symbols, e.g. to 16.")

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        keys, pairs = self.symbols // 2, self.seq_len // 2
        sizes = np.cumsum([keys, keys, pairs, pairs])
        of_values, of_last, of_keys, of_noise, of_tokens = jnp.split(words, sizes)
        value_of = keys + uniform_below(self.symbols - keys, of_values)
        key = uniform_below(keys, of_keys)
        # The last pair repeats a key, and the pair with the largest random word is not noise.
        noisy = happens(self.noise, of_noise) & (jnp.arange(pairs) != jnp.argmax(of_noise[:-1])).at[-1].set(False)
        same = (key[:, None] == jnp.arange(keys)) & ~noisy[:, None]
        known = same[:-1].any(0)
        key = key.at[-1].set(jnp.argmax(jnp.where(known, of_last >> 2, 0).astype(jnp.int32) + known))
        seen = jnp.cumsum(same, 0)[jnp.arange(pairs), key] - same[jnp.arange(pairs), key] > 0
        noise = self.symbols + uniform_below(max(1, self.noise_symbols), of_tokens).reshape(pairs, 2)
        both = jnp.where(noisy[:, None], noise, jnp.stack([key, value_of[key]], 1)).ravel()
        scored = jnp.stack([seen & ~noisy, jnp.zeros(pairs, bool)], 1).ravel()
        return Batch(both, jnp.roll(both, -1), scored.astype(jnp.float32))


@register("task", "mad-noisy-recall")
class MadNoisyRecall(MadRecall):
    """`mad-recall` with a share of noise between the pairs.

    Not learned in 1000 steps: two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an
    accuracy of .334 on 64 tokens after them (1 seed).

    Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844.
    """

    noise: float = Field(default=0.2, ge=0, lt=1)
    """Share of the pairs that are replaced by two noise tokens."""
    noise_symbols: int = Field(default=16, ge=0)
    """Number of different noise tokens."""


@register("task", "mad-fuzzy-recall")
class MadFuzzyRecall(MadTask):
    """Pairs of a key and a value, each of one to `longest` different tokens. The values of repeated keys are scored.

    Not learned in 1000 steps: two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an
    accuracy of .532 on 64 tokens after them (1 seed).

    Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844.
    """

    sizes = ("symbols", "longest")

    symbols: int = Field(default=15, ge=4)
    """Number of different tokens of keys and values."""
    longest: int = Field(default=3, ge=1)
    """Largest number of tokens of a key, and of a value."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [*numbered(k=self.symbols // 2, v=self.symbols - self.symbols // 2), "<pad>"]

    @property
    def num_pairs(self) -> int:
        """The largest number of pairs."""
        return self.seq_len // 2

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return 1 + self.num_pairs * (2 + self.symbols)

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        if self.longest > self.symbols // 2:
            problem = f"keys of {self.longest} different tokens need more than {self.symbols} symbols"
            raise UserError(problem, path=("longest",), remedy=f"Use at most {self.symbols // 2}, or more symbols.")
        if self.seq_len < 4 * self.longest:
            problem = f"two pairs of up to {2 * self.longest} tokens do not fit into {self.seq_len} tokens"
            raise UserError(problem, path=("seq_len",), remedy=f"Use at least {4 * self.longest}.")

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        count, keys, most = self.num_pairs, self.symbols // 2, self.longest
        of_probe, rest = words[0], words[1:].reshape(count, -1)
        key_size, value_size = 1 + uniform_below(most, rest[:, 0]), 1 + uniform_below(most, rest[:, 1])
        place = jnp.arange(most)
        key = jnp.argsort(rest[:, 2 : 2 + keys], 1)[:, :most]
        value = keys + jnp.argsort(rest[:, 2 + keys :], 1)[:, :most]
        same = ((key[:, None] == key[None, :]) | (place >= key_size[:, None, None])).all(-1)
        same &= key_size[:, None] == key_size[None, :]
        first = jnp.argmax(same, axis=1)  # the first pair with the same key, whose value is that of all of them
        value, value_size = value[first], value_size[first]
        # As many pairs as fit before a last pair of any size. The last pair repeats an earlier one.
        last = (jnp.cumsum(key_size + value_size) <= self.seq_len - 2 * most).sum()
        source = jnp.where(jnp.arange(count) == last, of_probe % last, jnp.arange(count))
        parts = ((key, key_size), (value, value_size))
        tokens = jnp.concatenate([jnp.where(place < size[:, None], part, -1)[source] for part, size in parts], 1)
        repeated = (first[source] < jnp.arange(count)) & (jnp.arange(count) <= last)
        scored = jnp.concatenate([jnp.zeros((count, most), bool), jnp.repeat(repeated[:, None], most, 1)], 1)
        return self._align_right(tokens, scored, (tokens >= 0) & (jnp.arange(count) <= last)[:, None])

    def _align_right(self, pairs: Any, scored: Any, present: Any) -> Batch:
        """Return the present tokens, one after another, at the end of a sequence."""
        pairs, scored, present = pairs.ravel(), scored.ravel(), present.ravel()
        place = jnp.where(present, self.seq_len + 1 - present.sum() + jnp.cumsum(present) - 1, self.seq_len + 1)
        whole = jnp.full(self.seq_len + 1, self.symbols, jnp.int32).at[place].set(pairs, mode="drop")
        weights = jnp.zeros(self.seq_len + 1).at[place].set(scored.astype(jnp.float32), mode="drop")
        return Batch(whole[:-1], whole[1:], weights[1:])


@register("task", "mad-selective-copy")
class MadSelectiveCopy(MadTask):
    """Symbols at random places between blanks, which are copied in order after the token `copy`.

    The symbols and the tokens `.` and `copy` are the vocabulary of 16 in the paper.

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of .943 with `copied: 8`
    on 64 tokens after 1000 steps with the default init, and of .682 with `gpt2-scaled` (1 seed).

    Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844.
    """

    sizes = ("symbols", "copied")

    seq_len: Size = 256
    """Number of tokens in a sequence."""
    symbols: int = Field(default=14, ge=2)
    """Number of different symbols."""
    copied: Size = 16
    """Number of symbols in a sequence."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [*numbered(s=self.symbols), ".", "copy"]

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.seq_len - 1

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        if self.seq_len < 2 * self.copied + 1:
            problem = f"{self.copied} symbols, `copy` and the copies do not fit into {self.seq_len} tokens"
            raise UserError(problem, path=("copied",), remedy=f"Use at most {(self.seq_len - 1) // 2}.")

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        room = self.seq_len - 1 - self.copied
        symbols = uniform_below(self.symbols, words[room:])
        places = jnp.sort(jnp.argsort(words[:room])[: self.copied])
        tokens = jnp.full(self.seq_len, self.symbols, jnp.int32).at[places].set(symbols).at[room].set(self.symbols + 1)
        targets = jnp.zeros(self.seq_len, jnp.int32).at[room + 1 :].set(symbols)
        return Batch(tokens, targets, (jnp.arange(self.seq_len) > room).astype(jnp.float32))

    def score_without_attention(self) -> tuple[float, float]:
        """Return the scores of a uniform guess among the symbols, because the current token is always a blank."""
        return math.log(self.symbols), 1 / self.symbols


@register("task", "mad-memorization")
class MadMemorization(MadTask):
    """Keys whose values are the same in all sequences, so that a model has to store them in its parameters.

    A key is followed by the token `?`, at which its value is the target. Values are never part of the input. The paper
    trains on 256 sequences (`examples: 256`).

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of 1.000 on 32 tokens
    after 1000 steps (1 seed).

    Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844.
    """

    sizes = ("symbols",)

    seq_len: Size = 32
    """Number of tokens in a sequence."""
    symbols: int = Field(default=255, ge=4)
    """Number of different keys and values."""
    table_seed: int = Field(default=0, ge=0)
    """Seed of the table of values."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [*numbered(k=self.symbols // 2, v=self.symbols - self.symbols // 2), "?"]

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.seq_len // 2

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        self.check_pairs("pairs of tokens")

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        keys = self.symbols // 2
        order = np.random.Philox(key=np.array([self.table_seed, 0], np.uint64)).random_raw(self.symbols - keys)
        table = jnp.asarray(keys + np.argsort(order, kind="stable")[:keys], jnp.int32)
        key = uniform_below(keys, words)
        asked = jnp.full_like(key, self.symbols)
        targets = jnp.stack([jnp.zeros_like(key), table[key]], 1).ravel()
        weights = jnp.stack([jnp.zeros(len(key)), jnp.ones(len(key))], 1).ravel()
        return Batch(jnp.stack([key, asked], 1).ravel(), targets, weights)


@register("task", "mad-compression")
class MadCompression(MadTask):
    """Reconstruct all tokens of a sequence from the output of its last position, which reads the token `<c>`.

    The outputs of the last position are the logits of every token (objective `reconstruction`). In the paper, a
    network of two layers decodes them from the last position and the number of the token.

    Not learned in 1000 steps: two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an
    accuracy of .607 on 16 tokens after them, and of .649 with `gpt2-scaled` (1 seed).

    Source: Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures", arXiv 2403.17844.
    """

    objective = "reconstruction"

    seq_len: Size = 32
    """Number of tokens in a sequence."""
    symbols: int = Field(default=15, ge=2)
    """Number of different symbols."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [*numbered(s=self.symbols), "<c>"]

    @property
    def interface(self) -> Interface:
        """See `Source.interface`."""
        return Interface(len(self.names), outputs=self.symbols * self.seq_len)

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.seq_len - 1

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the sizes of the task."""
        return {
            "symbols": self.symbols, "chance_loss": math.log(self.symbols), "chance_accuracy": 1 / self.symbols,
        }  # fmt: skip

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        symbols = uniform_below(self.symbols, words)
        tokens = jnp.append(symbols, self.symbols)
        return Batch(tokens, jnp.append(symbols, 0), (jnp.arange(self.seq_len) < self.seq_len - 1).astype(jnp.float32))

    def score_without_attention(self) -> tuple[float, float]:
        """Return the scores of a uniform guess, because the last token is always `<c>`."""
        return math.log(self.symbols), 1 / self.symbols
