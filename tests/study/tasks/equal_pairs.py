"""A task with two texts in a sequence: whether they are equal."""

from typing import ClassVar

import jax.numpy as jnp

from taetpu.plugin import Batch, BatchSpec, GeneratedTask, Interface, register


@register("task", "equal-pairs")
class EqualPairs(GeneratedTask):
    """Tell at the first token whether two texts of four letters are equal. They are, or differ in one letter."""

    names: ClassVar = list("abcde")
    interface: ClassVar = Interface(5, outputs=2, types=2)
    batch: ClassVar = BatchSpec(lengths=True)
    causal: ClassVar = False
    details: ClassVar = {"texts": 2}

    seq_len: int = 10  # two positions of padding
    num_words: ClassVar = 7

    def draw(self, words):
        first, place = (words[:4] % 5).astype(jnp.int32), jnp.arange(self.seq_len)
        equal, where = (words[4] % 2).astype(jnp.int32), words[5] % 4
        other = (first[where] + 1 + (words[6] % 4).astype(jnp.int32)) % 5
        second = jnp.where((jnp.arange(4) == where) & (equal == 0), other, first)
        tokens = jnp.concatenate([first, second, jnp.zeros(self.seq_len - 8, jnp.int32)])
        types = (place >= 4).astype(jnp.int32)
        weights = (place == 0).astype(jnp.float32)
        return Batch(tokens, jnp.full(self.seq_len, equal), weights, types=types, lengths=jnp.int32(8))
