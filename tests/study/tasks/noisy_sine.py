"""A regression task with real inputs: y = sin(pi x) + noise at each position."""

import math
from typing import ClassVar

import jax.numpy as jnp

from taetpu.plugin import Batch, BatchSpec, GeneratedTask, Interface, MetricSpec, register


@register("task", "noisy-sine")
class NoisySine(GeneratedTask):
    """Predict sin(pi x) for a number x from -1 to 1, given targets with uniform noise of variance noise^2."""

    names: ClassVar = []
    interface: ClassVar = Interface(features=1, outputs=1)
    batch: ClassVar = BatchSpec(real_targets=True)
    causal: ClassVar = True
    objective: ClassVar = "test-squared-error"
    metric_specs: ClassVar = {"loss": MetricSpec(bounds=(0, math.inf), unit="squared error", mean_of=("nll", "weight"))}

    seq_len: int = 8
    noise: float = 0.1

    @property
    def details(self):
        return {"bayes_loss": self.noise**2}

    @property
    def num_words(self):
        return 2 * self.seq_len

    def draw(self, words):
        x, drawn = 2.0 * (words >> 8).astype(jnp.float32).reshape(2, -1) / 2**24 - 1
        return Batch(x[:, None], jnp.sin(jnp.pi * x) + 3**0.5 * self.noise * drawn, jnp.ones(x.shape))
