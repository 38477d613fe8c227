"""Attention scores times a number: `{model.mixer.scores: {kind: times, factor: 2.0}}`."""

import equinox as eqx
from taetpu.plugin import Component, Fixed, Number, register


@register("scores", "times")
class TimesConfig(Component):
    """Scores times `factor`, which is traced: arms with other factors are trained in the same program."""

    factor: Number = 2.0

    def init(self, dims, *, key):
        return Times(Fixed(self.factor))


class Times(eqx.Module):
    factor: Fixed

    def __call__(self, scores, ctx):
        return scores * self.factor.value
