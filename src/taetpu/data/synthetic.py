"""Tasks `copy`, `reverse`, `sort`, `histogram` and `induction`: sequences drawn on the device from a key.

The first four are those of RASP (Weiss, Goldberg and Yahav 2021). A question x is n symbols drawn uniformly, n itself
drawn per sequence. The vocabulary is the symbols, the counts (histogram only), then `SPECIALS`.

    causal   tokens   <bos> x1 .. xn <sep> y1 .. yn <eos> <pad> ..   weight 1 where the next token is a y or <eos>
    encoder  tokens   <bos> x1 .. xn <pad> ..                        weight 1 at each x, whose target is its y
"""

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32
from pydantic import Field

from taetpu.core.config import Size, to_data
from taetpu.core.errors import UserError, suggest
from taetpu.core.jit import jit_once
from taetpu.core.keys import Key, named, root_key
from taetpu.core.registry import register
from taetpu.data import attention_free_bound
from taetpu.data.batches import Batch, Split, Task

SPECIALS = ("<bos>", "<sep>", "<eos>", "<pad>")
Words = UInt32[Array, " words"]
MAX_SYMBOLS = 2**16
MAX_EVAL = 2**24  # tokens of an evaluation set, which are drawn at once
DECOY_CELLS = 2**26  # positions x tokens x targets that the exact decoy score may tabulate: half a gigabyte


class Sequence(NamedTuple):
    """One drawn sequence; a batch is a vmap of it."""

    tokens: Int[Array, " seq"]
    targets: Int[Array, " seq"]
    weights: Float[Array, " seq"]


def below(bound: int, words: UInt32[Array, "..."]) -> Int[Array, "..."]:
    """Uniform over 0 .. bound - 1; no value is preferred by more than a share of bound / 2^32."""
    return (words % jnp.uint32(bound)).astype(jnp.int32)


class SyntheticTask(Task):
    """What the synthetic tasks share. Lengths run from `min_length` to `max_length`, by default whatever fits."""

    symbols: int = Field(default=16, ge=2, le=MAX_SYMBOLS)
    """Size of the alphabet."""
    min_length: Size = 1
    """Shortest input, in symbols."""
    max_length: Size | None = None
    """Longest input, in symbols; `none`: the longest that fits."""
    eval_size: Size = 512
    """Sequences of each evaluation split."""

    @property
    @abstractmethod
    def room(self) -> int:
        """The largest length that the task has room for."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The vocabulary, in the order of the token numbers, `SPECIALS` last."""

    @property
    @abstractmethod
    def num_words(self) -> int:
        """Random words that one sequence takes."""

    @abstractmethod
    def draw(self, words: Words) -> Sequence:
        """The sequence that random words stand for; its length is in the first of them."""

    @abstractmethod
    def decoy(self) -> attention_free_bound.Joint:
        """How often each target follows each token at each position, exactly."""

    @property
    def longest(self) -> int:
        return self.max_length or self.room

    def prepare(self, folder: Path) -> "SyntheticSource":
        if self.room < self.min_length:
            raise UserError(
                f"seq_len {self.seq_len} has no room for a {self.kind} sequence of min_length {self.min_length}",
                path=("seq_len",),
                remedy="raise seq_len or lower min_length",
            )
        if self.longest > self.room:
            raise UserError(
                f"max_length {self.max_length} does not fit: {self.kind} with seq_len {self.seq_len} and "
                f"{self.symbols} symbols has room for {self.room}",
                path=("max_length",),
                remedy=f"at most {self.room}, or leave it out",
            )
        if self.min_length > self.longest:
            raise UserError(
                f"min_length {self.min_length} is above max_length {self.longest}",
                path=("min_length",),
                remedy=f"at most {self.longest}",
            )
        if self.eval_size * self.seq_len > MAX_EVAL:
            problem = f"{self.eval_size} sequences of {self.seq_len} tokens are too many to evaluate on"
            raise UserError(problem, path=("eval_size",), remedy=f"at most {max(1, MAX_EVAL // self.seq_len)}")
        return SyntheticSource(self)

    def special(self, name: str) -> int:
        return len(self.names) - len(SPECIALS) + SPECIALS.index(name)

    def symbol_names(self) -> list[str]:
        return [chr(ord("a") + i) if self.symbols <= 26 else f"s{i}" for i in range(self.symbols)]

    def length(self, word: UInt32[Array, ""]) -> Int[Array, ""]:
        return self.min_length + below(self.longest - self.min_length + 1, word)


class SyntheticSource:
    """A synthetic task, set up. The evaluation sets are fixed: no seed changes them. See `batches.Source`."""

    arrays: dict[str, np.ndarray]
    num_windows: int | None = None
    tokenizer = None

    def __init__(self, task: SyntheticTask):
        self.arrays = {}
        self.seq_len = task.seq_len
        self.vocab_size = len(task.names)
        self._task = task
        self._splits = self._evaluation_sets()
        self.fingerprint = self._fingerprint()
        self.evaluated = self._evaluated()
        self.unit = " ".join(task.names)

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """Zeros: there are no windows, only the batch size is read."""
        return np.zeros((count, batch_size), np.int32)

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        # All words at once: generators inside draw would each be compiled anew, for about a second in all.
        words = jax.random.bits(key, (rows.shape[0], self._task.num_words), jnp.uint32)
        return Batch(*jax.vmap(self._task.draw)(words))

    def evaluation(self, split: str) -> Split | None:
        if split not in self._splits:
            raise UserError(f"no evaluation split {split!r}", remedy=suggest(split, self._splits))
        return self._splits[split]

    def prompt(self) -> np.ndarray:
        """A validation sequence up to the token whose successor is scored first; all of an encoder's question."""
        split = self._splits["val"]
        scored = np.flatnonzero(split.weights[0])
        return split.tokens[0, : scored[0 if self._task.causal else -1] + 1]

    def show(self, ids: Any) -> str:
        names = self._task.names
        return " ".join(names[i] for i in np.asarray(ids).tolist())

    @cached_property
    def facts(self) -> dict[str, Any]:
        known = self.seq_len * self.vocab_size**2 <= DECOY_CELLS
        loss, accuracy = attention_free_bound.score_best_policy(self._task.decoy()) if known else (None, None)
        policy = "the best function of the current token and its position, from their exact joint distribution"
        return {
            "vocab_size": self.vocab_size,
            "symbols": self._task.symbols,
            "lengths": [self._task.min_length, self._task.longest],
            "eval_size": self._task.eval_size,
            "chance_loss": math.log(self.vocab_size),
            "chance_accuracy": 1 / self.vocab_size,
            "bayes_loss": 0.0,
            "bayes_accuracy": 1.0,
            "decoy_loss": loss,
            "decoy_accuracy": accuracy,
            "decoy": policy if known else "not worked out: seq_len and vocabulary are too large for its table",
        }

    def _evaluation_sets(self) -> dict[str, Split]:
        """Both are drawn as one batch, from a name that no training key has."""
        size = self._task.eval_size
        batch = jit_once(self.batch)({}, jnp.zeros(2 * size, jnp.int32), named(root_key(0), "evaluation"))
        val, test = (
            Split(*(np.asarray(part)[half] for part in batch), num_bytes=None)
            for half in (slice(size), slice(size, None))
        )
        return {"val": val, "test": test}

    def _evaluated(self) -> str:
        digest = hashlib.sha256()
        for split in self._splits.values():
            for part in (split.tokens, split.targets, split.weights):
                digest.update(f"{part.shape}".encode())
                digest.update(part.astype("<i4").tobytes())  # weights are 0 and 1
        return digest.hexdigest()

    def _fingerprint(self) -> str:
        # The validation set is drawn by the code that draws training batches: a changed generator changes both.
        digest = hashlib.sha256(json.dumps(to_data(self._task), sort_keys=True).encode())
        for part in (self._splits["val"].tokens, self._splits["val"].targets):
            digest.update(part.astype("<i4").tobytes())
        return digest.hexdigest()


# --- answers to a question -------------------------------------------------------------------------------------------


class AnswerTask(SyntheticTask):
    """x is n symbols, y is n answers, one for each."""

    form: Literal["causal", "encoder"] = "causal"
    """Whether the answer follows the input (`causal`) or stands at its positions (`encoder`)."""

    @abstractmethod
    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        """The answers to x[:n], as token numbers; what stands from n on is ignored."""

    @abstractmethod
    def successive(self, n: int) -> attention_free_bound.Successive:
        """Distribution of one answer after another, for `form: causal`."""

    @abstractmethod
    def aligned(self, n: int) -> np.ndarray:
        """P(x_i, y_i) for every i, `(n, symbols, answers)`, for `form: encoder`."""

    @property
    def causal(self) -> bool:
        return self.form == "causal"

    @property
    def room(self) -> int:
        return (self.seq_len - 2) // 2 if self.causal else self.seq_len - 1

    @property
    def names(self) -> list[str]:
        return [*self.symbol_names(), *SPECIALS]

    @property
    def num_answers(self) -> int:
        """How many different tokens an answer can be."""
        return self.symbols

    @property
    def num_words(self) -> int:
        return 1 + self.longest

    def draw(self, words: Words) -> Sequence:
        n, x = self.length(words[0]), below(self.symbols, words[1:])
        y = self.answer(x, n)
        bos, sep, eos, pad = (self.special(name) for name in SPECIALS)
        place = jnp.arange(self.seq_len + 1)
        question = jnp.where(place == 0, bos, jnp.where(place <= n, x[jnp.clip(place - 1, 0, self.longest - 1)], pad))
        if not self.causal:
            scored = (place >= 1) & (place <= n)
            targets = jnp.where(scored, y[jnp.clip(place - 1, 0, self.longest - 1)], pad)
            return Sequence(question[:-1], targets[:-1], scored[:-1].astype(jnp.float32))
        answer = y[jnp.clip(place - n - 2, 0, self.longest - 1)]
        cases = [place <= n, place == n + 1, place <= 2 * n + 1, place == 2 * n + 2]
        whole = jnp.select(cases, [question, jnp.full_like(place, sep), answer, jnp.full_like(place, eos)], pad)
        scored = (place >= n + 2) & (place <= 2 * n + 2)
        return Sequence(whole[:-1], whole[1:], scored[1:].astype(jnp.float32))

    def decoy(self) -> attention_free_bound.Joint:
        lengths = range(self.min_length, self.longest + 1)
        if self.causal:
            return attention_free_bound.causal_joint(
                ((n, self.successive(n)) for n in lengths), self.seq_len, self.num_answers
            )
        return attention_free_bound.encoder_joint(
            ((n, self.aligned(n)) for n in lengths), self.seq_len, self.symbols, self.num_answers
        )


@register("task", "copy")
class Copy(AnswerTask):
    """y = x. As an encoder it needs no attention at all, which its decoy score of 1 says."""

    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        return x

    def successive(self, n: int) -> attention_free_bound.Successive:
        return attention_free_bound.independent_answers(n, self.symbols)

    def aligned(self, n: int) -> np.ndarray:
        return np.broadcast_to(np.eye(self.symbols) / self.symbols, (n, self.symbols, self.symbols))


@register("task", "reverse")
class Reverse(AnswerTask):
    """y is x from its end."""

    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        return x[jnp.clip(n - 1 - jnp.arange(self.longest), 0, self.longest - 1)]

    def successive(self, n: int) -> attention_free_bound.Successive:
        return attention_free_bound.independent_answers(n, self.symbols)

    def aligned(self, n: int) -> np.ndarray:
        joint = np.full((n, self.symbols, self.symbols), self.symbols**-2.0)
        if n % 2:  # the symbol in the middle stays where it is
            joint[n // 2] = np.eye(self.symbols) / self.symbols
        return joint


@register("task", "sort")
class Sort(AnswerTask):
    """y is x in ascending order."""

    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        return jnp.sort(jnp.where(jnp.arange(self.longest) < n, x, self.symbols))

    def successive(self, n: int) -> attention_free_bound.Successive:
        return attention_free_bound.sorted_answers(n, self.symbols)

    def aligned(self, n: int) -> np.ndarray:
        return attention_free_bound.sort_joint(n, self.symbols)


@register("task", "histogram")
class Histogram(AnswerTask):
    """y_i is how often x_i occurs in x. The counts 1, 2, .. are tokens of their own, after the symbols."""

    @property
    def names(self) -> list[str]:
        return [*self.symbol_names(), *(str(count + 1) for count in range(self.longest)), *SPECIALS]

    @property
    def num_answers(self) -> int:
        return self.longest

    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        same = (x[:, None] == x[None, :]) & (jnp.arange(self.longest) < n)
        return self.symbols - 1 + same.sum(axis=1)

    def successive(self, n: int) -> attention_free_bound.Successive:
        return attention_free_bound.histogram_answers(n, self.symbols, self.longest)

    def aligned(self, n: int) -> np.ndarray:
        chance = attention_free_bound.count_distribution(n, self.symbols, self.longest)
        return np.broadcast_to(chance / self.symbols, (n, self.symbols, self.longest))


# --- induction -------------------------------------------------------------------------------------------------------


@register("task", "induction")
class Induction(SyntheticTask):
    """`<bos> p1 .. pP p1 .. pP <pad> ..`: P different symbols in random order, twice; the second pass is scored.

    P (the length) is drawn per sequence, because with a fixed one a single layer succeeds by looking back P - 1
    places, with no induction. The first token of the second pass is not scored: nothing says where the first ends.
    """

    min_length: int = Field(default=2, ge=2)
    """Fewest symbols of a pass."""

    @property
    def causal(self) -> bool:
        return True

    @property
    def room(self) -> int:
        return min(self.seq_len // 2, self.symbols)

    @property
    def names(self) -> list[str]:
        return [*self.symbol_names(), *SPECIALS]

    def prepare(self, folder: Path) -> SyntheticSource:
        if self.min_length == self.longest:
            raise UserError(
                f"every induction sequence would have length {self.longest}, and a fixed offset would solve them",
                path=("min_length",),
                remedy="let min_length be below max_length, symbols and seq_len / 2",
            )
        return super().prepare(folder)

    @property
    def num_words(self) -> int:
        return 1 + self.symbols

    def draw(self, words: Words) -> Sequence:
        n, order = self.length(words[0]), jnp.argsort(words[1:])
        place = jnp.arange(self.seq_len + 1)
        bos, pad = self.special("<bos>"), self.special("<pad>")
        whole = jnp.select([place == 0, place <= 2 * n], [jnp.full_like(place, bos), order[(place - 1) % n]], pad)
        scored = (place >= n + 2) & (place <= 2 * n)
        return Sequence(whole[:-1], whole[1:], scored[1:].astype(jnp.float32))

    def decoy(self) -> attention_free_bound.Joint:
        different = (1 - np.eye(self.symbols)) / (self.symbols * (self.symbols - 1))
        joint = np.zeros((self.seq_len, self.symbols, self.symbols))
        for n in range(self.min_length, self.longest + 1):
            joint[n + 1 : 2 * n] += different
        return joint
