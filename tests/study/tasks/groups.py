"""Classes of sequences of letters."""

from typing import ClassVar

import jax.numpy as jnp

from taetpu.plugin import Batch, GeneratedTask, Interface, register


class Groups(GeneratedTask):
    """Name the group of the first letter, at the last letter."""

    names: ClassVar = list("abcdefghijkl")
    causal: ClassVar = True
    details: ClassVar = {"letters": 12}

    seq_len: int = 16

    @property
    def num_words(self):
        return self.seq_len

    def draw(self, words):
        tokens = (words % 12).astype(jnp.int32)
        groups = tokens[0] * self.interface.outputs // 12
        last = jnp.arange(self.seq_len) == self.seq_len - 1
        return Batch(tokens, jnp.full(self.seq_len, groups), last.astype(jnp.float32))


@register("task", "three-groups")
class ThreeGroups(Groups):
    """Three classes."""

    interface: ClassVar = Interface(12, outputs=3)


@register("task", "twelve-groups")
class TwelveGroups(Groups):
    """As many classes as letters."""

    interface: ClassVar = Interface(12, outputs=12)
