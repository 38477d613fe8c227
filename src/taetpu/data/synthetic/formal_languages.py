"""Tasks of formal languages: `parity`, `dyck`, `shuffle-dyck` and `flip-flop`."""

import math
from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from pydantic import Field

from taetpu.core.model_interface import Interface
from taetpu.core.registry import register
from taetpu.data.base import Batch
from taetpu.data.synthetic.answers import LengthTask
from taetpu.data.synthetic.generated import BuiltinTask, Words, happens, score_parts, uniform_below

OPEN = "([{<abcdefghijklmnopqrstuvwxyz"
CLOSED = ")]}>ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@register("task", "parity")
class Parity(LengthTask):
    """`<bos> b1 .. bn <sep> p <pad> ..`: whether the number of ones among the bits is odd.

    Two layers of attention learned it for up to 24 bits, and one layer did not in as many steps (docs/tasks.md).

    Source: Bhattamishra et al. 2020, "On the Ability and Limitations of Transformers to Recognize Formal Languages",
    arXiv 2009.11264.
    """

    @property
    def room(self) -> int:
        """The maximum length that fits into `seq_len`."""
        return self.seq_len - 2

    @property
    def symbol_names(self) -> list[str]:
        """The bits."""
        return ["0", "1"]

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        n, bits = self.length(words[0]), uniform_below(2, words[1:])
        odd = jnp.where(jnp.arange(self.longest) < n, bits, 0).sum() % 2
        parts = [(self.special("<bos>"), 1), (bits, n), (self.special("<sep>"), 1), (odd, 1)]
        return score_parts(parts, self.seq_len, self.special("<pad>"), [3])

    def score_without_attention(self) -> tuple[float, float]:
        """Return the scores of a guess, because the current token is always `<sep>`."""
        return math.log(2), 0.5


class BracketTask(BuiltinTask):
    """Base of the tasks of brackets: after every prefix, the set of all tokens that may follow is predicted.

    The sets are numbered, and their numbers are the classes that the model predicts.
    """

    sizes = ("brackets",)

    brackets: int = Field(default=2, ge=1, le=len(OPEN))
    """Number of kinds of brackets."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return [*OPEN[: self.brackets], *CLOSED[: self.brackets], "<bos>"]

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return 2 * (self.seq_len - 1)

    @property
    @abstractmethod
    def num_sets(self) -> int:
        """The number of different sets of tokens that may follow."""

    @property
    def interface(self) -> Interface:
        """See `Source.interface`."""
        return Interface(len(self.names), outputs=self.num_sets)

    @abstractmethod
    def start(self) -> Any:
        """Return the state before the first bracket."""

    @abstractmethod
    def step(self, state: Any, words: Words) -> tuple[Any, Array]:
        """Return the next state and the next bracket, given two random words."""

    @abstractmethod
    def set_number(self, state: Any) -> Array:
        """Return the number of the set of tokens that may follow."""

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""

        def advance(state: Any, words: Words) -> tuple[Any, tuple[Array, Array]]:
            state, bracket = self.step(state, words)
            return state, (bracket, self.set_number(state))

        first = self.start()
        _, (brackets, sets) = jax.lax.scan(advance, first, words.reshape(-1, 2))
        tokens = jnp.insert(brackets, 0, 2 * self.brackets)
        return Batch(tokens, jnp.insert(sets, 0, self.set_number(first)), jnp.ones(self.seq_len))


@register("task", "dyck")
class Dyck(BracketTask):
    """Nested brackets of several kinds: after every prefix, predict which tokens may follow.

    Any bracket may be opened up to `max_depth`, and only the bracket that was opened last may be closed.

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of 1.000 on 48 tokens
    after 1000 steps (1 seed).

    Source: Bhattamishra et al. 2020, "On the Ability and Limitations of Transformers to Recognize Formal Languages",
    arXiv 2009.11264.
    """

    sizes = ("brackets", "max_depth")

    max_depth: int = Field(default=8, ge=1)
    """Largest number of brackets that are open."""

    @property
    def num_sets(self) -> int:
        """See `BracketTask.num_sets`. Each kind is last or not, with the largest depth or a smaller one."""
        return 1 + 2 * self.brackets

    def start(self) -> tuple[Array, Array]:
        """Return an empty stack: the kinds of the open brackets, and their number."""
        return jnp.zeros(self.max_depth, jnp.int32), jnp.int32(0)

    def step(self, state: tuple[Array, Array], words: Words) -> tuple[tuple[Array, Array], Array]:
        """See `BracketTask.step`."""
        stack, depth = state
        opens = (happens(0.5, words[0]) | (depth == 0)) & (depth < self.max_depth)
        kind = jnp.where(opens, uniform_below(self.brackets, words[1]), stack[depth - 1])
        stack = jnp.where(opens & (jnp.arange(self.max_depth) == depth), kind, stack)
        return (stack, depth + jnp.where(opens, 1, -1)), jnp.where(opens, kind, self.brackets + kind)

    def set_number(self, state: tuple[Array, Array]) -> Array:
        """See `BracketTask.set_number`."""
        stack, depth = state
        last = stack[depth - 1] + jnp.where(depth == self.max_depth, self.brackets, 0)
        return jnp.where(depth == 0, 0, 1 + last)


@register("task", "shuffle-dyck")
class ShuffleDyck(BracketTask):
    """Brackets of several kinds, each nested apart from the others: predict which tokens may follow.

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of 1.000 on 48 tokens
    after 1000 steps (1 seed).

    Source: Suzgun et al. 2019, "LSTM Networks Can Perform Dynamic Counting", arXiv 1906.03648.
    """

    brackets: int = Field(default=2, ge=1, le=8)
    """Number of kinds of brackets."""

    @property
    def num_sets(self) -> int:
        """See `BracketTask.num_sets`. Each kind may be closed or not."""
        return 2**self.brackets

    def start(self) -> Int[Array, " brackets"]:
        """Return the number of open brackets of each kind."""
        return jnp.zeros(self.brackets, jnp.int32)

    def step(self, state: Int[Array, " brackets"], words: Words) -> tuple[Int[Array, " brackets"], Array]:
        """See `BracketTask.step`."""
        kind = uniform_below(self.brackets, words[1])
        opens = happens(0.5, words[0]) | (state[kind] == 0)
        return state.at[kind].add(jnp.where(opens, 1, -1)), jnp.where(opens, kind, self.brackets + kind)

    def set_number(self, state: Int[Array, " brackets"]) -> Array:
        """See `BracketTask.set_number`."""
        return jnp.where(state > 0, 2 ** jnp.arange(self.brackets), 0).sum()


@register("task", "flip-flop")
class FlipFlop(BuiltinTask):
    """Pairs of an instruction (`w`, `r` or `i`) and a bit: the bit after `r` is that after the last `w`.

    The first instruction is `w` and the last `r`. Bits after `w` and `i` are drawn. Only bits after `r` are scored.

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of 1.000 on 64 tokens
    after 1000 steps (1 seed).

    Source: Liu et al. 2023, "Exposing Attention Glitches with Flip-Flop Language Modeling", arXiv 2306.00946.
    """

    ignored: float = Field(default=0.8, ge=0, lt=1)
    """Share of `i` among the other instructions; `w` and `r` are equally frequent."""

    @property
    def names(self) -> list[str]:
        """The vocabulary in the order of token numbers."""
        return ["0", "1", "w", "r", "i"]

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.seq_len

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the sizes of the task."""
        return {"ignored": self.ignored, "chance_loss": math.log(2), "chance_accuracy": 0.5}

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        self.check_pairs("pairs of an instruction and a bit", 4)

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        of_instructions, of_bits = jnp.split(words, 2)
        pairs = jnp.arange(self.seq_len // 2)
        other = jnp.where(happens(0.5, of_instructions << 16), 2, 3)
        instruction = jnp.where(happens(self.ignored, of_instructions & np.uint32(0xFFFF0000)), 4, other)
        instruction = instruction.at[0].set(2).at[-1].set(3)
        written = jax.lax.cummax(jnp.where(instruction == 2, pairs, 0))
        bits = uniform_below(2, of_bits)
        bits = jnp.where(instruction == 3, bits[written], bits)
        tokens = jnp.stack([instruction, bits], 1).ravel()
        scored = jnp.stack([instruction == 3, jnp.zeros(len(pairs), bool)], 1).ravel()
        return Batch(tokens, jnp.roll(tokens, -1), scored.astype(jnp.float32))

    def score_without_attention(self) -> tuple[float, float]:
        """Return the scores of a guess, because the current token is always `r`."""
        return math.log(2), 0.5
