"""Task `in-context-regression`: learn a linear function from the examples in the context."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from pydantic import Field

from taetpu.core.model_interface import Interface
from taetpu.core.registry import register
from taetpu.data.base import Batch, BatchSpec
from taetpu.data.synthetic.generated import BuiltinTask, Words

MEAN, DEVIATION = 510, float(np.sqrt(4 * (256**2 - 1) / 12))  # of the sum of four bytes


@register("task", "in-context-regression")
class InContextRegression(BuiltinTask):
    """x1 y1 x2 y2 ..: predict y_i = w x_i at each x_i, for a vector w that is drawn for each sequence.

    An input has `dims` + 1 numbers: an x with 0, or zeros with a y. The elements of x have variance 1, and those of w
    variance 1 / `dims`, so that y has variance 1. Both are sums of four uniform integers, which are nearly normal. All
    sums are exact, and so the data are the same on every machine. The mean squared error is the loss.

    The reference `bayes_loss` is the expected error of least squares with minimal norm on the examples before, for
    which 1 - (i - 1) / `dims` is expected at x_i, and 0 from i = `dims` + 1 on.

    Source: Garg et al. 2022, "What Can Transformers Learn In-Context?", arXiv 2208.01066.
    """

    objective = "squared-error"

    dims: int = Field(default=8, ge=1, le=4096)
    """Number of elements of an x."""

    @property
    def names(self) -> list[str]:
        """See `GeneratedTask.names`."""
        return []

    @property
    def interface(self) -> Interface:
        """See `Source.interface`."""
        return Interface(features=self.dims + 1, outputs=1)

    @property
    def batch(self) -> BatchSpec:
        """See `Task.batch`."""
        return BatchSpec(real_targets=True)

    @property
    def num_words(self) -> int:
        """The number of random words per sequence."""
        return self.dims * (1 + self.seq_len // 2)

    @property
    def details(self) -> dict[str, Any]:
        """Facts about the task: its sizes, and the losses of least squares and of the prediction 0."""
        places = np.arange(self.seq_len // 2)
        least_squares = np.maximum(0.0, 1 - places / self.dims)
        return {
            "dims": self.dims, "chance_loss": 1.0, "bayes_loss": float(least_squares.mean()), "decoy_loss": 1.0,
            "decoy": "the prediction 0, because an x says nothing about its y",
        }  # fmt: skip

    def check_sizes(self) -> None:
        """See `BuiltinTask.check_sizes`."""
        self.check_pairs("pairs of x and y")

    def draw(self, words: Words) -> Batch:
        """See `GeneratedTask.draw`."""
        parts = words[:, None] >> jnp.uint32([0, 8, 16, 24]) & jnp.uint32(255)
        numbers = parts.astype(jnp.int32).sum(-1) - MEAN
        w, x = numbers[: self.dims], numbers[self.dims :].reshape(-1, self.dims)
        y: Float[Array, " pairs"] = (x * w).sum(-1).astype(jnp.float32) * np.float32(1 / DEVIATION**2 / self.dims**0.5)
        inputs = jnp.pad(x.astype(jnp.float32) * np.float32(1 / DEVIATION), ((0, 0), (0, 1)))
        answers = jnp.pad(y[:, None], ((0, 0), (self.dims, 0)))
        tokens = jnp.stack([inputs, answers], 1).reshape(-1, self.dims + 1)
        scored = jnp.tile(jnp.float32([1, 0]), len(x))
        return Batch(tokens, jnp.repeat(y, 2) * scored, scored)
