"""Tasks whose sequences are generated on the device from a key, without end."""

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from taetpu.core.config import Size, to_data
from taetpu.core.errors import UserError
from taetpu.core.jit_once import jit_once
from taetpu.core.keys import Key, named, root_key
from taetpu.core.model_interface import Interface
from taetpu.data.base import Batch, Source, Split, Task, at_length

Words = UInt32[Array, " words"]
MAX_EVAL = 2**24  # maximum number of tokens in an evaluation set, which is generated at once


class GeneratedTask(Task):
    """Base of the tasks that generate sequences. The scored positions of a sequence are an answer."""

    has_answers = True

    eval_size: Size = 512
    """Number of sequences in each evaluation split."""

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
        """Return the loss and the accuracy of the best function of a token and its position; None if not known."""
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
            try:
                if task.names != self.names:
                    problem = f"the vocabulary differs between sequences of {self.seq_len} and of {length} tokens"
                    raise UserError(problem, remedy="Remove the length, or set max_length.")
                if length > self.seq_len:
                    self.check_longer(task)
                sources[at_length(length)] = task.prepare(folder)
            except UserError as error:
                raise UserError(error.problem, path=("eval_lengths", i), remedy=error.remedy) from None
        return sources

    def check_longer(self, longer: Any) -> None:
        """Raise `UserError` if the task with a larger `seq_len` differs only in padding."""


class GeneratedSource(Source):
    """A prepared task that generates sequences; see `data.base.Source`. Its evaluation sets depend on no seed."""

    def __init__(self, task: GeneratedTask, at_lengths: Mapping[str, "GeneratedSource"]):
        self.seq_len = task.seq_len
        self.vocab_size = len(task.names)
        self._task, self._at_lengths = task, at_lengths
        self._val, test = self._evaluation_sets()
        longer = {name: source.evaluation("val") for name, source in at_lengths.items()}
        self._splits: dict[str, Split | None] = {"val": self._val, "test": test, **longer}
        self.fingerprint = self._fingerprint()
        self.evaluated = self._evaluated()
        self.unit = " ".join(task.names) or str(task.interface)

    @property
    def interface(self) -> Interface:
        """See `Source.interface`."""
        return self._task.interface

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """Return zeros, of which `batch` reads only the number. Sequences are generated from keys."""
        return np.zeros((count, batch_size), np.int32)

    def batch(self, arrays: Mapping[str, Array], rows: Int[Array, " batch"], key: Key) -> Batch:
        """See `Source.batch`."""
        # All words are generated at once, because each generator inside `draw` would be compiled separately (1 s).
        words = jax.random.bits(key, (rows.shape[0], self._task.num_words), jnp.uint32)
        return Batch(*jax.vmap(self._task.draw)(words))

    def evaluation(self, split: str) -> Split | None:
        """See `Source.evaluation`."""
        return self._splits.get(split)

    def prompt(self) -> np.ndarray:
        """Return a validation sequence up to its first scored position or, for an encoder, its whole question."""
        split = self._val
        scored = np.flatnonzero(split.weights[0])
        return split.tokens[0, : scored[0 if self._task.causal else -1] + 1]

    def show(self, ids: Any) -> str:
        """See `Source.show`."""
        names = self._task.names
        return " ".join(names[i] for i in np.asarray(ids).tolist())

    @cached_property
    def facts(self) -> dict[str, Any]:
        """See `Source.facts`."""
        others = {name: source.facts for name, source in self._at_lengths.items()}
        if self._task.batch.real_targets:
            return {"eval_size": self._task.eval_size, **others, **self._task.details}
        loss = accuracy = None
        policy = "not computed: the table for this seq_len and vocabulary would be too large"
        if (score := self._task.score_without_attention()) is not None:
            loss, accuracy = score
            policy = "the best function of the current token and its position, from their exact joint distribution"
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

    def _evaluation_sets(self) -> tuple[Split, Split]:
        """Generate `val` and `test` as one batch, from a key that training never uses."""
        size = self._task.eval_size
        batch = jit_once(self.batch)({}, jnp.zeros(2 * size, jnp.int32), named(root_key(0), "evaluation"))
        halves = (jax.tree.map(lambda a, h=half: np.asarray(a)[h], batch) for half in (slice(size), slice(size, None)))
        val, test = (Split(**half._asdict(), num_bytes=None) for half in halves)
        return val, test

    def _evaluated(self) -> str:
        digest = hashlib.sha256()
        for split in filter(None, self._splits.values()):
            for part in (split.tokens, split.targets, split.weights.astype(np.int32), *_declared(split)):
                digest.update(f"{part.shape}".encode() + _to_bytes(part))  # weights are 0 and 1
        return digest.hexdigest()

    def _fingerprint(self) -> str:
        # The validation set is generated by the same code as training batches, so it reflects changes to the generator.
        about = {name: value for name, value in to_data(self._task).items() if name != "eval_lengths"}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for part in (self._val.tokens, self._val.targets, *_declared(self._val)):
            digest.update(_to_bytes(part))
        return digest.hexdigest()


def _declared(split: Split) -> list[np.ndarray]:
    """Return the arrays of a split that its task declares in addition to tokens, targets, weights and segments."""
    return [part for part in (split.types, split.lengths) if part is not None]


def _to_bytes(part: np.ndarray) -> bytes:
    return part.astype("<f4" if part.dtype.kind == "f" else "<i4").tobytes()
