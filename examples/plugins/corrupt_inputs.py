"""Inputs replaced by random tokens, targets left alone: `{train.hooks: [corrupt-inputs]}`."""

from typing import Annotated

import jax
import jax.numpy as jnp
from pydantic import Field
from taetpu.plugin import Hook, Traced, named, register


@register("hook", "corrupt-inputs")
class CorruptInputs(Hook):
    """Each input is, with probability `rate`, replaced by one drawn from the same batch."""

    rate: Annotated[float, Field(ge=0, le=1), Traced()] = 0.1

    def batch(self, batch, now):
        hit = jax.random.bernoulli(named(now.key, "hit"), self.rate, batch.tokens.shape)
        other = jax.random.permutation(named(now.key, "other"), batch.tokens, independent=True)
        return batch._replace(tokens=jnp.where(hit, other, batch.tokens))
