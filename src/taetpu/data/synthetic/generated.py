"""Tasks whose sequences are generated on the device from a key."""

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from taetpu.core.config import Size, to_data
from taetpu.core.errors import UserError, errors_at
from taetpu.core.jit import jit_once
from taetpu.core.keys import Key, named, root_key
from taetpu.core.model_interface import Interface
from taetpu.data.base import Batch, Source, Split, Task, at_length, epoch_rows
from taetpu.data.example_source import digest_arrays
from taetpu.data.synthetic.attention_free_bound import score_counted_policies

Words = UInt32[Array, " words"]
MAX_EVAL = 2**24  # maximum number of tokens in an evaluation set, which is generated at once
COUNTED = 2**20  # number of tokens from which policies without attention are counted
LATER_FIELDS = ("examples",)  # fields that did not exist when the first runs were stored


def uniform_below(bound: int, words: UInt32[Array, "..."]) -> Int[Array, "..."]:
    """Map random words to integers from 0 to bound - 1, uniformly up to a relative error of bound / 2^32."""
    return (words % jnp.uint32(bound)).astype(jnp.int32)


def numbered(**counts: int) -> list[str]:
    """Return names of tokens: each letter with the numbers from 0, such as k0, k1, v0."""
    return [f"{letter}{i}" for letter, count in counts.items() for i in range(count)]


def happens(chance: float, words: UInt32[Array, "..."]) -> Any:
    """Map random words to booleans that are true with a probability."""
    return words < jnp.uint32(min(round(chance * 2**32), 2**32 - 1)) if chance < 1 else words >= jnp.uint32(0)


def concatenate(parts: Sequence[tuple[Array, Any]], size: int, fill: int) -> tuple[Int[Array, " size"], Array]:
    """Return the first n elements of each part, one part after another, and the number of the part of each element.

    Args:
        parts: Pairs of token numbers, `(longest,)` or one, and their number n.
        size: The number of elements. Elements after `size` are dropped.
        fill: The element after the last part. Its part has the number `len(parts)`.
    """
    place, start = jnp.arange(size), 0
    whole, number = jnp.full(size, fill, jnp.int32), jnp.full(size, len(parts), jnp.int32)
    for i, (tokens, n) in enumerate(parts):
        tokens, inside = jnp.atleast_1d(jnp.asarray(tokens)), (place >= start) & (place < start + n)
        whole = jnp.where(inside, tokens[jnp.clip(place - start, 0, len(tokens) - 1)], whole)
        number, start = jnp.where(inside, i, number), start + n
    return whole, number


def score_parts(parts: Sequence[tuple[Array, Any]], seq_len: int, pad: int, scored: Sequence[int]) -> Batch:
    """Return a sequence made of parts, in which the tokens of some parts are predicted.

    Args:
        parts: See `concatenate`.
        seq_len: The number of tokens in the sequence.
        pad: The token after the last part.
        scored: The numbers of the parts whose tokens are scored.
    """
    whole, number = concatenate(parts, seq_len + 1, pad)
    weights: Float[Array, " seq"] = jnp.isin(number[1:], jnp.asarray(scored)).astype(jnp.float32)
    return Batch(whole[:-1], whole[1:], weights)


class GeneratedTask(Task):
    """Base of the tasks that generate sequences. The scored positions of a sequence are an answer."""

    has_answers = True

    eval_size: Size = 512
    """Number of sequences in each evaluation split."""
    examples: Size | None = None
    """Number of different training sequences; `none`: they are generated without end."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers; empty if inputs are real."""

    @property
    def interface(self) -> Interface:
        """See `Source.interface`."""
        return Interface(len(self.names))

    @property
    @abstractmethod
    def num_words(self) -> int:
        """The number of random words per sequence."""

    @property
    @abstractmethod
    def details(self) -> dict[str, Any]:
        """Facts about the task, which replace those of `Source.facts` that have the same name."""

    @abstractmethod
    def draw(self, words: Words) -> Batch:
        """Generate one sequence, without a batch axis, from random words."""

    def score_without_attention(self) -> tuple[float, float] | None:
        """Return the loss and the accuracy of the best function of a token and its position; None if not known.

        If they are not known, they are estimated (see `attention_free_bound.score_counted_policies`).
        """
        return None

    def prepare(self, folder: Path) -> "GeneratedSource":
        """See `Task.prepare`."""
        if self.eval_size * self.seq_len > MAX_EVAL:
            problem = f"{self.eval_size} sequences of {self.seq_len} tokens exceed the limit of {MAX_EVAL} tokens"
            raise UserError(problem, path=("eval_size",), remedy=f"Use {max(1, MAX_EVAL // self.seq_len)} or less.")
        return GeneratedSource(self, self._at_eval_lengths(folder))

    def _at_eval_lengths(self, folder: Path) -> dict[str, "GeneratedSource"]:
        """Return the same task with sequences of each length in `eval_lengths`, by the name of the evaluation set."""
        sources = {}
        for i, length in enumerate(self.eval_lengths):
            task = self.model_copy(update={"seq_len": length, "eval_lengths": ()})
            with errors_at("eval_lengths", i):
                if task.names != self.names:
                    problem = f"the vocabulary differs between sequences of {self.seq_len} and of {length} tokens"
                    raise UserError(problem, remedy="Remove the length, or set max_length.")
                if length > self.seq_len:
                    self.check_longer(task)
                sources[at_length(length)] = task.prepare(folder)
        return sources

    def check_longer(self, longer: Any) -> None:
        """Raise `UserError` if the task with a larger `seq_len` differs only in padding."""


class BuiltinTask(GeneratedTask):
    """Base of the built-in tasks that generate sequences. A position may attend only to earlier positions."""

    sizes: ClassVar[tuple[str, ...]] = ()  # the fields that are shown in `details`

    @property
    def causal(self) -> bool:
        """Whether a position may attend only to earlier positions."""
        return True

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the sizes of the task."""
        return {name: getattr(self, name) for name in self.sizes}

    def check_sizes(self) -> None:
        """Raise `UserError` if the fields do not fit together."""

    def check_pairs(self, pairs: str, least: int = 2) -> None:
        """Raise `UserError` if `seq_len` is odd or below the least length."""
        if self.seq_len % 2 or self.seq_len < least:
            problem = f"{pairs} do not fill {self.seq_len} {'inputs' if self.interface.features else 'tokens'}"
            remedy = f"Use an even number{f' from {least}' if least > 2 else ''}."
            raise UserError(problem, path=("seq_len",), remedy=remedy)

    def prepare(self, folder: Path) -> "GeneratedSource":
        """See `Task.prepare`."""
        self.check_sizes()
        return super().prepare(folder)


class GeneratedSource(Source):
    """A prepared task that generates sequences; see `data.base.Source`. Its evaluation sets depend on no seed."""

    def __init__(self, task: GeneratedTask, at_lengths: Mapping[str, "GeneratedSource"]):
        self.seq_len = task.seq_len
        self.names, self.vocab_size = tuple(task.names), len(task.names)
        self._task, self._at_lengths = task, at_lengths
        self.num_windows = task.examples
        self._val, test = self._evaluation_sets()
        longer = {name: source.evaluation("val") for name, source in at_lengths.items()}
        self._splits: dict[str, Split | None] = {"val": self._val, "test": test, **longer}
        self.fingerprint = self._fingerprint()
        self.evaluated = self._evaluated()
        self.unit = " ".join(self.names) or str(task.interface)

    @property
    def interface(self) -> Interface:
        """See `Source.interface`."""
        return self._task.interface

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """Return the numbers of examples. If there is no end of them, the numbers are zeros, which are not read."""
        if self.num_windows is None:
            return np.zeros((count, batch_size), np.int32)
        return epoch_rows(seed, start, count, batch_size, self.num_windows)

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """See `Source.batch`."""
        if self.num_windows is None:
            return self._generate(key, rows.shape[0])
        # An example depends on its number only, not on the run's seed.
        keys = jax.vmap(lambda row: named(root_key(0), "examples", row))(rows)
        words = jax.vmap(lambda k: jax.random.bits(k, (self._task.num_words,), jnp.uint32))(keys)
        return Batch(*jax.vmap(self._task.draw)(words))

    def _generate(self, key: Key, count: int) -> Batch:
        # All words are generated at once, because each generator inside `draw` would be compiled separately (1 s).
        words = jax.random.bits(key, (count, self._task.num_words), jnp.uint32)
        return Batch(*jax.vmap(self._task.draw)(words))

    def evaluation(self, split: str) -> Split | None:
        """See `Source.evaluation`."""
        return self._splits.get(split)

    def prompt(self) -> np.ndarray:
        """Return a validation sequence up to its first scored position or, for an encoder, its whole question."""
        split = self._val
        scored = np.flatnonzero(split.weights[0])
        return split.tokens[0, : scored[0 if self._task.causal else -1] + 1]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """See `Source.facts`."""
        others = {name: source.facts for name, source in self._at_lengths.items()}
        if self._task.batch.real_targets:
            return {"eval_size": self._task.eval_size, **others, **self._task.details}
        policy = "the best function of the current token and its position, from their exact joint distribution"
        if (score := self._task.score_without_attention()) is None:
            score, policy = self._count_policies()
        loss, accuracy = score
        return {
            "vocab_size": self.vocab_size,
            **self._task.details,
            "eval_size": self._task.eval_size,
            "chance_loss": math.log(self.interface.output_size),
            "chance_accuracy": 1 / self.interface.output_size,
            "bayes_loss": 0.0,
            "bayes_accuracy": 1.0,
            "decoy_loss": loss,
            "decoy_accuracy": accuracy,
            "decoy": policy,
            **others,
        } | self._task.details

    def _count_policies(self) -> tuple[tuple[float, float], str]:
        """Return the scores of functions of token and position that are counted on generated sequences, and a name."""
        count = max(1, COUNTED // self.seq_len)
        batch = jit_once(lambda key: self._generate(key, 2 * count))(named(root_key(0), "counted"))
        halves = [np.asarray(part).reshape(2, count, -1) for part in batch[:3]]
        counted, scored = ((tokens, targets, weights) for tokens, targets, weights in zip(*halves, strict=True))
        score = score_counted_policies(counted, scored, self.interface.output_size)
        policy = f"the best of the tables of token, position and both, counted on {count:,} sequences"
        return score, f"{policy} and scored on as many others"

    def _evaluation_sets(self) -> tuple[Split, Split]:
        """Generate `val` and `test` as one batch, from a key that training never uses."""
        size = self._task.eval_size
        batch = jit_once(lambda key: self._generate(key, 2 * size))(named(root_key(0), "evaluation"))
        halves = (jax.tree.map(lambda a, h=half: np.asarray(a)[h], batch) for half in (slice(size), slice(size, None)))
        val, test = (Split(**half._asdict(), num_bytes=None) for half in halves)
        return val, test

    def _evaluated(self) -> str:
        splits = filter(None, self._splits.values())  # weights are 0 and 1
        return digest_arrays((s.tokens, s.targets, s.weights.astype(np.int32), *_declared(s)) for s in splits)

    def _fingerprint(self) -> str:
        # The validation set is generated by the same code as training batches, so it reflects changes to the generator.
        about = {name: value for name, value in to_data(self._task).items() if name != "eval_lengths"}
        for name in LATER_FIELDS:
            if getattr(self._task, name) == type(self._task).model_fields[name].default:
                about.pop(name, None)
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for part in (self._val.tokens, self._val.targets, *_declared(self._val)):
            digest.update(part.astype("<f4" if part.dtype.kind == "f" else "<i4").tobytes())
        return digest.hexdigest()


def _declared(split: Split) -> list[np.ndarray]:
    """Return the arrays of a split that its task declares in addition to tokens, targets, weights and segments."""
    return [part for part in (split.types, split.lengths) if part is not None]
