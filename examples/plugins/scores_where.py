"""Attention scores times a number where a token has occurred: `{model.mixer.scores: {kind: times-where, token: 3}}`."""

import equinox as eqx
import jax.numpy as jnp
from taetpu.plugin import Component, Fixed, Number, register


@register("scores", "times-where")
class TimesWhereConfig(Component):
    """Scores times `factor` from the first occurrence of `token` on: a look at later ones would not be causal."""

    token: Number
    factor: Number = 2.0

    def init(self, dims, *, key):
        return TimesWhere(Fixed([self.token, self.factor]))


class TimesWhere(eqx.Module):
    numbers: Fixed  # token, factor

    def __call__(self, scores, ctx):
        occurred = jnp.cumsum(ctx.tokens == self.numbers.value[0], -1) > 0
        return scores * jnp.where(occurred[:, None, :, None], self.numbers.value[1], 1)
