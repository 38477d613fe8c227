"""Tasks of RASP (Weiss, Goldberg and Yahav 2021): `copy`, `reverse`, `sort`, `histogram` and further ones."""

import math
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from pydantic import Field

from taetpu.core.registry import register
from taetpu.data.base import Batch
from taetpu.data.synthetic import attention_free_bound
from taetpu.data.synthetic.answers import AnswerTask
from taetpu.data.synthetic.generated import Words, happens


@register("task", "copy")
class Copy(AnswerTask):
    """y = x. With `form: encoder`, a model without attention can reach an accuracy of 1.

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of .999 on 24 tokens after
    1000 steps (1 seed).

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

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of .999 on 24 tokens after
    1000 steps (1 seed).

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

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an accuracy of .999 on 24 tokens after
    1000 steps (1 seed).

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

    Not learned in 1000 steps: two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had an
    accuracy of .740 on 24 tokens after them (1 seed).

    Source: Weiss et al. 2021, "Thinking Like Transformers", arXiv 2106.06981.
    """

    @property
    def num_answers(self) -> int:
        """The number of different answer tokens."""
        return self.longest

    @property
    def symbol_names(self) -> list[str]:
        """The symbols and the counts."""
        return [*super().symbol_names, *(str(count + 1) for count in range(self.num_answers))]

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


@register("task", "double-histogram")
class DoubleHistogram(Histogram):
    """y_i is the number of different symbols that occur in x as often as x_i, x_i included.

    Source: Weiss et al. 2021, "Thinking Like Transformers", arXiv 2106.06981.
    """

    @property
    def num_answers(self) -> int:
        """The number of different answer tokens."""
        return min(self.longest, self.symbols)

    def answer(self, x: Int[Array, " longest"], n: Int[Array, ""]) -> Int[Array, " longest"]:
        """See `AnswerTask.answer`."""
        inside = jnp.arange(self.longest) < n
        counts = ((x[:, None] == x[None, :]) & inside).sum(axis=1)
        same = (counts[:, None] == counts[None, :]) & inside
        return self.symbols - 1 + same.sum(axis=1) // counts.clip(1)

    def joint_distribution(self) -> None:
        """See `SyntheticTask.joint_distribution`. It is not known."""


@register("task", "masked-copy")
class MaskedCopy(Copy):
    """Copy in which a share of the sequences also scores the question, as in training on texts.

    Two layers (`dim` 64, 4 heads, AdamW, `lr` 2e-3, 64 sequences a step) had a loss .002 above the lowest possible
    one on 24 tokens after 1000 steps (1 seed).
    """

    form: Literal["causal"] = "causal"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Place of the answer: after the input."""
    question_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the sequences in which the tokens of the question are scored, too."""

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return 1 + super().num_words

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        batch = super().draw(words[1:])
        n = self.length(words[1])
        question = happens(self.question_share, words[0]) & (jnp.arange(self.seq_len) <= n)
        return batch._replace(weights=jnp.where(question, 1.0, batch.weights))

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the sizes of the task, and its best scores."""
        lengths = np.arange(self.min_length, self.longest + 1)
        answers = (lengths + 1).mean()
        nats = math.log(len(lengths)) + lengths.mean() * math.log(self.symbols)
        # After i tokens of a question that may end, <sep> has the probability 1 / (longest - i + 1).
        right = [self._best_guess(lengths, i) * (lengths >= i).mean() for i in range(self.longest + 1)]
        total = answers * (1 + self.question_share)
        best = {"bayes_loss": self.question_share * nats / total}
        best["bayes_accuracy"] = (answers + self.question_share * sum(right)) / total
        return {**super().details, **best}

    def _best_guess(self, lengths: np.ndarray, i: int) -> float:
        """Return the accuracy of the best guess of the token after i tokens of a question."""
        ends = (lengths == i).sum() / (lengths >= i).sum()
        return float(max(ends, (1 - ends) / self.symbols))

    def joint_distribution(self) -> None:
        """See `SyntheticTask.joint_distribution`. It is not computed, because questions are scored."""
