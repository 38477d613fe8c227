"""Tasks of numbers that are written in digits: `long-addition` and `number-sort`; and `modular-addition`."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from pydantic import Field

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.data.base import Batch, Task
from taetpu.data.example_source import ExampleSource
from taetpu.data.synthetic.answers import LengthTask
from taetpu.data.synthetic.generated import Words, score_parts, uniform_below

DIGITS = "0123456789"


@register("task", "long-addition")
class LongAddition(LengthTask):
    """`<bos> a + b = c <eos> <pad> ..`: the sum of two numbers in decimal digits, of which c and `<eos>` are scored.

    The number of digits of a and that of b are drawn. Numbers have no leading zeros. `eval_lengths` measure the
    accuracy on longer numbers than those of training. Two layers of attention learned sums of up to 4 digits with
    `lowest_first: true`, and one layer did not (docs/tasks.md).
    """

    lowest_first: bool = False
    """Whether all numbers start with their lowest digit, so that carries are known when they are needed."""

    @property
    def room(self) -> int:
        """The largest number of digits that fits into `seq_len`."""
        return (self.seq_len - 4) // 3

    @property
    def symbol_names(self) -> list[str]:
        """The digits and signs."""
        return [*DIGITS, "+", "="]

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return 2 + 2 * self.longest

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        n, m = self.length(words[0]), self.length(words[1])
        a, b = (self._number(part, size) for part, size in zip(jnp.split(words[2:], 2), (n, m), strict=True))

        def add(carry: Array, pair: Array) -> tuple[Array, Array]:
            total = carry + pair.sum()
            return total // 10, total % 10

        last, digits = jax.lax.scan(add, jnp.int32(0), jnp.stack([a, b], 1))
        digits, longer = jnp.append(digits, last), jnp.maximum(n, m)
        size = longer + (digits[longer] > 0)
        plus, equal = 10, 11
        written = [(self._written(x, count), count) for x, count in ((a, n), (b, m), (digits, size))]
        parts = [(self.special("<bos>"), 1), written[0], (plus, 1), written[1], (equal, 1), written[2],
                 (self.special("<eos>"), 1)]  # fmt: skip
        return score_parts(parts, self.seq_len, self.special("<pad>"), [5, 6])

    def _number(self, words: Words, size: Array) -> Int[Array, " longest"]:
        """Return the digits of a number with `size` digits, the lowest first, and zeros after them."""
        place = jnp.arange(self.longest)
        leading = (place == size - 1) & (size > 1)
        digits = jnp.where(leading, 1 + uniform_below(9, words), uniform_below(10, words))
        return jnp.where(place < size, digits, 0)

    def _written(self, digits: Array, size: Array) -> Array:
        """Return digits in the order in which they are written."""
        return digits if self.lowest_first else digits[jnp.clip(size - 1 - jnp.arange(len(digits)), 0)]


@register("task", "number-sort")
class NumberSort(LengthTask):
    """Sort numbers that are written in decimal digits: `<bos> 012,870,005 <sep> 005,012,870 <eos> <pad> ..`.

    A length is a number of numbers. The second list and `<eos>` are scored. Two layers of attention learned to sort up
    to 6 numbers of 2 digits, and one layer did not (docs/tasks.md).
    """

    sizes = ("digits",)

    digits: int = Field(default=3, ge=1, le=9)
    """Number of digits of each number."""

    @property
    def room(self) -> int:
        """The largest number of numbers that fits into `seq_len`."""
        return self.seq_len // (2 * (self.digits + 1))

    @property
    def symbol_names(self) -> list[str]:
        """The digits and the comma."""
        return [*DIGITS, ","]

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        n, numbers = self.length(words[0]), uniform_below(10**self.digits, words[1:])
        ordered = jnp.sort(jnp.where(jnp.arange(self.longest) < n, numbers, 10**self.digits))
        size = n * (self.digits + 1) - 1
        bos, sep, eos = (self.special(name) for name in ("<bos>", "<sep>", "<eos>"))
        parts = [(bos, 1), (self._written(numbers), size), (sep, 1), (self._written(ordered), size), (eos, 1)]
        return score_parts(parts, self.seq_len, self.special("<pad>"), [3, 4])

    def _written(self, numbers: Int[Array, " longest"]) -> Array:
        """Return the digits of numbers, each followed by a comma."""
        powers = 10 ** np.arange(self.digits - 1, -1, -1)
        digits = numbers[:, None] // powers % 10
        return jnp.concatenate([digits, jnp.full((len(numbers), 1), 10)], 1).ravel()


@register("task", "modular-addition")
class ModularAddition(Task):
    """`a b =`, at which the target is (a + b) mod `modulus`. A share of all pairs is trained, and the rest evaluated.

    The pairs are divided at random, independently of a run's seed: half of the rest is for validation and half for
    testing. Long training with weight decay makes the validation accuracy rise late (grokking).

    Not learned in 1000 steps: two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an
    accuracy of .066 on held-out pairs after them (`modulus: 59`, half of the pairs), and of .551 with `gpt2-scaled`
    (1 seed).

    Source: Power et al. 2022, "Grokking", arXiv 2201.02177; Nanda et al. 2023, "Progress Measures for Grokking via
    Mechanistic Interpretability", arXiv 2301.05217.
    """

    has_answers = True

    seq_len: Size = 3
    """Number of tokens in a sequence, which is 3."""
    modulus: int = Field(default=113, ge=3, le=2048)
    """Number of different summands."""
    train_share: float = Field(default=0.3, gt=0, lt=1)
    """Share of the pairs that are trained."""

    @property
    def causal(self) -> bool:
        """Whether a position may attend only to earlier positions."""
        return True

    def prepare(self, folder: Path) -> ExampleSource:
        """See `Task.prepare`."""
        if self.seq_len != 3 or self.eval_lengths:
            name = "seq_len" if self.seq_len != 3 else "eval_lengths"
            raise UserError("sequences of modular-addition have 3 tokens", path=(name,), remedy="Remove the field.")
        count = self.modulus**2
        order = np.argsort(np.random.Philox(key=np.zeros(2, np.uint64)).random_raw(count), kind="stable")
        a, b = np.divmod(order.astype(np.int32), self.modulus)
        tokens = np.stack([a, b, np.full_like(a, self.modulus)], 1)
        targets = np.stack([0 * a, 0 * a, (a + b) % self.modulus], 1)
        weights = np.broadcast_to(np.array([0, 0, 1], np.float32), tokens.shape)
        train = max(1, min(round(self.train_share * count), count - 2))
        ends = train, train + (count - train) // 2, count
        cuts = zip(("train", "val", "test"), (0, *ends), ends, strict=False)
        parts = {name: (tokens[i:j], targets[i:j], weights[i:j]) for name, i, j in cuts}
        chance = {"chance_loss": math.log(self.modulus), "chance_accuracy": 1 / self.modulus}
        without = {"decoy_loss": math.log(self.modulus), "decoy_accuracy": 1 / self.modulus, "decoy": "a guess"}
        facts = {"modulus": self.modulus, **chance, "bayes_loss": 0.0, "bayes_accuracy": 1.0, **without}
        names = [*map(str, range(self.modulus)), "="]
        return ExampleSource(parts, names, facts)
