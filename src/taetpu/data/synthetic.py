"""Tasks `copy`, `reverse`, `sort`, `histogram` and `induction`: sequences generated on the device from a key.

The first four are tasks from RASP (Weiss, Goldberg and Yahav 2021). A question x consists of n uniformly drawn
symbols, and n is drawn for each sequence. The vocabulary contains the symbols, the counts (histogram only) and
`SPECIALS`, in this order.

    causal   tokens   <bos> x1 .. xn <sep> y1 .. yn <eos> <pad> ..   weight 1 if the next token is a y or <eos>
    encoder  tokens   <bos> x1 .. xn <pad> ..                        weight 1 at each x, whose target is its y
"""

from abc import abstractmethod
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32
from pydantic import Field

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.data import attention_free_bound
from taetpu.data.base import Batch
from taetpu.data.generated import GeneratedSource, GeneratedTask, Words

SPECIALS = ("<bos>", "<sep>", "<eos>", "<pad>")
MAX_SYMBOLS = 2**16
DECOY_CELLS = 2**26  # maximum size of a joint distribution (positions x tokens x targets): 0.5 GB


def uniform_below(bound: int, words: UInt32[Array, "..."]) -> Int[Array, "..."]:
    """Map random words to integers from 0 to bound - 1, uniformly up to a relative error of bound / 2^32."""
    return (words % jnp.uint32(bound)).astype(jnp.int32)


class SyntheticTask(GeneratedTask):
    """Base of the tasks with symbols. The length of an input is drawn from `min_length` to `max_length`."""

    symbols: int = Field(default=16, ge=2, le=MAX_SYMBOLS)
    """Number of different symbols."""
    min_length: Size = 1
    """Shortest input, in symbols."""
    max_length: Size | None = None
    """Longest input, in symbols; `none`: the longest input that fits into `seq_len`."""

    @property
    @abstractmethod
    def room(self) -> int:
        """The maximum length that fits into `seq_len`."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers, with `SPECIALS` last."""
        return [*self.symbol_names(), *SPECIALS]

    @abstractmethod
    def joint_distribution(self) -> attention_free_bound.Joint:
        """Return the exact joint distribution of position, token and target."""

    @property
    def longest(self) -> int:
        """The maximum length of a question."""
        return self.max_length or self.room

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the sizes of the task."""
        return {"symbols": self.symbols, "lengths": [self.min_length, self.longest]}

    def score_without_attention(self) -> tuple[float, float] | None:
        """See `GeneratedTask.score_without_attention`."""
        if self.seq_len * len(self.names) ** 2 > DECOY_CELLS:
            return None
        return attention_free_bound.score_best_policy(self.joint_distribution())

    def prepare(self, folder: Path) -> GeneratedSource:
        """See `Task.prepare`."""
        if not self.min_length <= self.longest <= self.room:
            raise UserError(
                f"lengths from {self.min_length} to {self.longest} do not fit: {self.kind} with seq_len {self.seq_len} "
                f"and {self.symbols} symbols has room for {self.room}",
                path=("max_length" if self.max_length else "min_length",),
                remedy=f"Choose min_length <= max_length <= {self.room}, or raise seq_len.",
            )
        return super().prepare(folder)

    def check_longer(self, longer: Any) -> None:
        """See `GeneratedTask.check_longer`."""
        if longer.longest == self.longest:
            problem = (
                f"inputs have at most {self.longest} symbols, so sequences of {longer.seq_len} tokens are not longer"
            )
            raise UserError(problem, remedy="Remove the length, or change max_length and symbols.")

    def special(self, name: str) -> int:
        """Return the token number of one of `SPECIALS`."""
        return len(self.names) - len(SPECIALS) + SPECIALS.index(name)

    def symbol_names(self) -> list[str]:
        """Return the names of the symbols."""
        return [chr(ord("a") + i) if self.symbols <= 26 else f"s{i}" for i in range(self.symbols)]

    def length(self, word: UInt32[Array, ""]) -> Int[Array, ""]:
        """Map a random word to a length."""
        return self.min_length + uniform_below(self.longest - self.min_length + 1, word)


# --- answers to a question -------------------------------------------------------------------------------------------


class AnswerTask(SyntheticTask):
    """Base of the tasks with a question x of n symbols and an answer y of n tokens."""

    form: Literal["causal", "encoder"] = "causal"
    """Place of the answer: after the input (`causal`), or at the positions of the input (`encoder`)."""

    @abstractmethod
    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        """Return the answer to x[:n] as token numbers. Elements from index n on are ignored."""

    def successive(self, n: int) -> attention_free_bound.Successive:
        """Return the distribution of successive answers, for `form: causal`. By default, answers are independent."""
        return attention_free_bound.independent_answers(n, self.symbols)

    @abstractmethod
    def aligned(self, n: int) -> np.ndarray:
        """Return P(x_i, y_i) for every i, `(n, symbols, answers)`, for `form: encoder`."""

    @property
    def causal(self) -> bool:
        """Whether a position may attend only to earlier positions."""
        return self.form == "causal"

    @property
    def room(self) -> int:
        """The maximum length that fits into `seq_len`."""
        return (self.seq_len - 2) // 2 if self.causal else self.seq_len - 1

    @property
    def num_answers(self) -> int:
        """The number of different answer tokens."""
        return self.symbols

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return 1 + self.longest

    def draw(self, words: Words) -> Batch:
        """See `SyntheticTask.draw`."""
        n, x = self.length(words[0]), uniform_below(self.symbols, words[1:])
        y = self.answer(x, n)
        bos, sep, eos, pad = (self.special(name) for name in SPECIALS)
        place = jnp.arange(self.seq_len + 1)
        question = jnp.where(place == 0, bos, jnp.where(place <= n, x[jnp.clip(place - 1, 0, self.longest - 1)], pad))
        if not self.causal:
            scored = (place >= 1) & (place <= n)
            targets = jnp.where(scored, y[jnp.clip(place - 1, 0, self.longest - 1)], pad)
            return Batch(question[:-1], targets[:-1], scored[:-1].astype(jnp.float32))
        answer = y[jnp.clip(place - n - 2, 0, self.longest - 1)]
        cases = [place <= n, place == n + 1, place <= 2 * n + 1, place == 2 * n + 2]
        whole = jnp.select(cases, [question, jnp.full_like(place, sep), answer, jnp.full_like(place, eos)], pad)
        scored = (place >= n + 2) & (place <= 2 * n + 2)
        return Batch(whole[:-1], whole[1:], scored[1:].astype(jnp.float32))

    def joint_distribution(self) -> attention_free_bound.Joint:
        """See `SyntheticTask.joint_distribution`."""
        lengths = range(self.min_length, self.longest + 1)
        if self.causal:
            successive = ((n, self.successive(n)) for n in lengths)
            return attention_free_bound.causal_joint(successive, self.seq_len, self.num_answers)
        aligned = ((n, self.aligned(n)) for n in lengths)
        return attention_free_bound.encoder_joint(aligned, self.seq_len, self.symbols, self.num_answers)


@register("task", "copy")
class Copy(AnswerTask):
    """y = x. With `form: encoder`, a model without attention can reach an accuracy of 1.

    Source: Weiss et al. 2021, "Thinking Like Transformers", arXiv 2106.06981.
    """

    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        """See `AnswerTask.answer`."""
        return x

    def aligned(self, n: int) -> np.ndarray:
        """See `AnswerTask.aligned`."""
        return np.broadcast_to(np.eye(self.symbols) / self.symbols, (n, self.symbols, self.symbols))


@register("task", "reverse")
class Reverse(AnswerTask):
    """y is x in reverse order.

    Source: Weiss et al. 2021, "Thinking Like Transformers", arXiv 2106.06981.
    """

    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        """See `AnswerTask.answer`."""
        return x[jnp.clip(n - 1 - jnp.arange(self.longest), 0, self.longest - 1)]

    def aligned(self, n: int) -> np.ndarray:
        """See `AnswerTask.aligned`."""
        joint = np.full((n, self.symbols, self.symbols), self.symbols**-2.0)
        if n % 2:  # the middle symbol keeps its position
            joint[n // 2] = np.eye(self.symbols) / self.symbols
        return joint


@register("task", "sort")
class Sort(AnswerTask):
    """y is x in ascending order.

    Source: Weiss et al. 2021, "Thinking Like Transformers", arXiv 2106.06981.
    """

    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        """See `AnswerTask.answer`."""
        return jnp.sort(jnp.where(jnp.arange(self.longest) < n, x, self.symbols))

    def successive(self, n: int) -> attention_free_bound.Successive:
        """See `AnswerTask.successive`."""
        return attention_free_bound.sorted_answers(n, self.symbols)

    def aligned(self, n: int) -> np.ndarray:
        """See `AnswerTask.aligned`."""
        return attention_free_bound.sort_joint(n, self.symbols)


@register("task", "histogram")
class Histogram(AnswerTask):
    """y_i is the number of occurrences of x_i in x. The counts 1, 2, .. are separate tokens after the symbols.

    Source: Weiss et al. 2021, "Thinking Like Transformers", arXiv 2106.06981.
    """

    @property
    def names(self) -> list[str]:
        """The vocabulary: symbols, counts and `SPECIALS`."""
        return [*self.symbol_names(), *(str(count + 1) for count in range(self.longest)), *SPECIALS]

    @property
    def num_answers(self) -> int:
        """The number of different answer tokens."""
        return self.longest

    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        """See `AnswerTask.answer`."""
        same = (x[:, None] == x[None, :]) & (jnp.arange(self.longest) < n)
        return self.symbols - 1 + same.sum(axis=1)

    def successive(self, n: int) -> attention_free_bound.Successive:
        """See `AnswerTask.successive`."""
        return attention_free_bound.histogram_answers(n, self.symbols, self.longest)

    def aligned(self, n: int) -> np.ndarray:
        """See `AnswerTask.aligned`."""
        chance = attention_free_bound.count_distribution(n, self.symbols, self.longest)
        return np.broadcast_to(chance / self.symbols, (n, self.symbols, self.longest))


# --- induction -------------------------------------------------------------------------------------------------------


@register("task", "induction")
class Induction(SyntheticTask):
    """`<bos> p1 .. pP p1 .. pP <pad> ..`: P different symbols in random order, twice, with the second pass scored.

    P (the length) is drawn per sequence. With a fixed P, a single layer could solve the task without induction, by
    attending to a fixed offset. The first token of the second pass is not scored, because a model cannot know where the
    first pass ends.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv 2209.11895.
    """

    min_length: int = Field(default=2, ge=2)
    """Shortest pass, in symbols."""

    @property
    def causal(self) -> bool:
        """Whether a position may attend only to earlier positions."""
        return True

    @property
    def room(self) -> int:
        """The maximum length that fits into `seq_len`."""
        return min(self.seq_len // 2, self.symbols)

    def prepare(self, folder: Path) -> GeneratedSource:
        """See `Task.prepare`."""
        if self.min_length == self.longest:
            raise UserError(
                f"every induction sequence would have length {self.longest}, so a fixed offset would solve the task",
                path=("min_length",),
                remedy="Choose min_length below max_length, symbols and seq_len / 2.",
            )
        return super().prepare(folder)

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return 1 + self.symbols

    def draw(self, words: Words) -> Batch:
        """See `SyntheticTask.draw`."""
        n, order = self.length(words[0]), jnp.argsort(words[1:])
        place = jnp.arange(self.seq_len + 1)
        bos, pad = self.special("<bos>"), self.special("<pad>")
        whole = jnp.select([place == 0, place <= 2 * n], [jnp.full_like(place, bos), order[(place - 1) % n]], pad)
        scored = (place >= n + 2) & (place <= 2 * n)
        return Batch(whole[:-1], whole[1:], scored[1:].astype(jnp.float32))

    def joint_distribution(self) -> attention_free_bound.Joint:
        """See `SyntheticTask.joint_distribution`."""
        different = (1 - np.eye(self.symbols)) / (self.symbols * (self.symbols - 1))
        joint = np.zeros((self.seq_len, self.symbols, self.symbols))
        for n in range(self.min_length, self.longest + 1):
            joint[n + 1 : 2 * n] += different
        return joint
