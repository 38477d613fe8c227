"""Classes of sequences of letters, predicted from the first position."""

from typing import ClassVar

import jax.numpy as jnp

from taetpu.plugin import Batch, GeneratedTask, Interface, register


@register("task", "first-group")
class FirstGroup(GeneratedTask):
    """Name the group of the last letter, at the first one."""

    names: ClassVar = list("abcdefghijkl")
    causal: ClassVar = False
    details: ClassVar = {"letters": 12}
    interface: ClassVar = Interface(12, outputs=3)

    seq_len: int = 16

    @property
    def num_words(self):
        return self.seq_len

    def draw(self, words):
        tokens = (words % 12).astype(jnp.int32)
        first = jnp.arange(self.seq_len) == 0
        return Batch(tokens, jnp.full(self.seq_len, tokens[-1] // 4), first.astype(jnp.float32))
