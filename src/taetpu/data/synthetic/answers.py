"""Bases of tasks with questions of varying length.

The length n of a question is drawn for each sequence. The vocabulary ends with `SPECIALS`. In a task with answers, the
question x consists of n uniformly drawn symbols:

    causal   tokens   <bos> x1 .. xn <sep> y1 .. yn <eos> <pad> ..   weight 1 if the next token is a y or <eos>
    encoder  tokens   <bos> x1 .. xn <pad> ..                        weight 1 at each x, whose target is its y
"""

from abc import abstractmethod
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32
from pydantic import Field

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.data.base import Batch
from taetpu.data.synthetic import attention_free_bound
from taetpu.data.synthetic.generated import BuiltinTask, Words, uniform_below

SPECIALS = ("<bos>", "<sep>", "<eos>", "<pad>")
MAX_SYMBOLS = 2**16
DECOY_CELLS = 2**26  # maximum size of a joint distribution (positions x tokens x targets): 0.5 GB


class LengthTask(BuiltinTask):
    """Base of the tasks whose questions have a length, drawn from `min_length` to `max_length`."""

    min_length: Size = 1
    """Shortest input, in symbols."""
    max_length: Size | None = None
    """Longest input, in symbols; `none`: the longest input that fits into `seq_len`."""

    @property
    @abstractmethod
    def room(self) -> int:
        """The maximum length that fits into `seq_len`."""

    @property
    @abstractmethod
    def symbol_names(self) -> list[str]:
        """The names of the tokens without `SPECIALS`, in the order of token numbers."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers, with `SPECIALS` last."""
        return [*self.symbol_names, *SPECIALS]

    @property
    def longest(self) -> int:
        """The maximum length of a question."""
        return self.max_length or self.room

    @property
    def num_words(self) -> int:
        """The number of random words per sequence, by default one for the length and one for each symbol."""
        return 1 + self.longest

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the sizes of the task."""
        return {"lengths": [self.min_length, self.longest], **super().details}

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        if not self.min_length <= self.longest <= self.room:
            raise UserError(
                f"lengths from {self.min_length} to {self.longest} do not fit: {self._size} has room for {self.room}",
                path=("max_length" if self.max_length else "min_length",),
                remedy=f"Choose min_length <= max_length <= {self.room}, or raise seq_len.",
            )

    @property
    def _size(self) -> str:
        """What the room for a question depends on, for errors."""
        return f"{self.kind} with seq_len {self.seq_len}"

    def check_longer(self, longer: Any) -> None:
        """See `GeneratedTask.check_longer`."""
        if longer.longest == self.longest:
            problem = (
                f"inputs have at most {self.longest} symbols, so sequences of {longer.seq_len} tokens are not longer"
            )
            raise UserError(problem, remedy="Remove the length, or change what limits the inputs.")

    def special(self, name: str) -> int:
        """Return the token number of one of `SPECIALS`."""
        return len(self.names) - len(SPECIALS) + SPECIALS.index(name)

    def length(self, word: UInt32[Array, ""]) -> Int[Array, ""]:
        """Map a random word to a length."""
        return self.min_length + uniform_below(self.longest - self.min_length + 1, word)


class SyntheticTask(LengthTask):
    """Base of the tasks with symbols."""

    symbols: int = Field(default=16, ge=2, le=MAX_SYMBOLS)
    """Number of different symbols."""

    @property
    def symbol_names(self) -> list[str]:
        """The names of the symbols."""
        return [chr(ord("a") + i) if self.symbols <= 26 else f"s{i}" for i in range(self.symbols)]

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the sizes of the task."""
        return {"symbols": self.symbols, **super().details}

    @property
    def _size(self) -> str:
        return f"{super()._size} and {self.symbols} symbols"

    def joint_distribution(self) -> attention_free_bound.Joint | None:
        """Return the exact joint distribution of position, token and target; None if it is not known."""
        return None

    def score_without_attention(self) -> tuple[float, float] | None:
        """See `GeneratedTask.score_without_attention`."""
        if self.seq_len * len(self.names) ** 2 > DECOY_CELLS or (joint := self.joint_distribution()) is None:
            return None
        return attention_free_bound.score_best_policy(joint)


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

    def aligned(self, n: int) -> np.ndarray | None:
        """Return P(x_i, y_i) for every i, `(n, symbols, answers)`, for `form: encoder`; None if it is not known."""
        return None

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

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
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

    def joint_distribution(self) -> attention_free_bound.Joint | None:
        """See `SyntheticTask.joint_distribution`."""
        lengths = range(self.min_length, self.longest + 1)
        if self.causal:
            successive = ((n, self.successive(n)) for n in lengths)
            return attention_free_bound.causal_joint(successive, self.seq_len, self.num_answers)
        aligned = [(n, known) for n in lengths if (known := self.aligned(n)) is not None]
        if len(aligned) < len(lengths):
            return None
        return attention_free_bound.encoder_joint(aligned, self.seq_len, self.symbols, self.num_answers)
