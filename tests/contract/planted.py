"""A plug-in with kinds that keep the arm contract and kinds that break it."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from taetpu.nn.attention import AttentionConfig
from taetpu.nn.ffn.dense import GLU, SwiGLUConfig
from taetpu.nn.init import FanIn
from taetpu.plugin import register


@register("ffn", "copied")
class Copied(SwiGLUConfig):
    """SwiGLU under another name."""


@register("ffn", "honest")
class Honest(SwiGLUConfig):
    """SwiGLU's parameters with another function; `weight` is a constant of its program."""

    weight: float = 2.0

    def init(self, dims, *, key):
        return Weighted(**vars(super().init(dims, key=key)), weights=(1.0,) * (dims.dim - 1) + (self.weight,))


class Weighted(GLU):
    weights: tuple = eqx.field(static=True)

    def __call__(self, x, ctx):
        return super().__call__(x, ctx) * np.asarray(self.weights, x.dtype)


@register("mixer", "meddling")
class Meddling(AttentionConfig):
    """Changes the initialisation of the components that the layer builds after it."""

    def init(self, dims, position, *, key):
        made = super().init(dims, position, key=key)
        object.__setattr__(dims, "init", FanIn())
        return made


@register("mixer", "biasing")
class Biasing(AttentionConfig):
    """Adds biases to the components that the layer builds after it."""

    def init(self, dims, position, *, key):
        made = super().init(dims, position, key=key)
        object.__setattr__(dims, "bias", True)
        return made


@register("mixer", "louder")
class Louder(AttentionConfig):
    """Attention whose queries start at another scale."""

    factor: float = 2.0

    def init(self, dims, position, *, key):
        return eqx.tree_at(lambda m: m.wq, made := super().init(dims, position, key=key), self.factor * made.wq)


@register("mixer", "louder-and-says-so")
class LouderAndSaysSo(Louder):
    own_init = True


@register("ffn", "hindsight")
class Hindsight(SwiGLUConfig):
    """Adds the next position, scaled by a parameter that starts at zero."""

    def init(self, dims, *, key):
        return Leaking(super().init(dims, key=key), jnp.zeros(()))


class Leaking(eqx.Module):
    inner: GLU
    share: Array

    def __call__(self, x, ctx):
        return self.inner(x, ctx) + self.share.astype(x.dtype) * jnp.roll(x, -1, axis=1)
