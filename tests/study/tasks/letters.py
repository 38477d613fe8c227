"""A language of letters, for models that classify them later."""

from typing import ClassVar

import jax.numpy as jnp

from taetpu.plugin import Batch, GeneratedTask, register


@register("task", "letters")
class Letters(GeneratedTask):
    """Predict the next letter: each is the one after the letter before, or a random one."""

    names: ClassVar = list("abcdefghijkl")
    causal: ClassVar = True
    details: ClassVar = {"letters": 12}

    seq_len: int = 16

    @property
    def num_words(self):
        return 1 + self.seq_len

    def draw(self, words):
        drawn = (words % 12).astype(jnp.int32)
        tokens = jnp.where(words // 12 % 4 > 0, (drawn[0] + jnp.arange(self.seq_len + 1)) % 12, drawn)
        return Batch(tokens[:-1], tokens[1:], jnp.ones(self.seq_len))
