"""The feed-forward's output, squared: `{model.ffn.kind: squared-swiglu}`."""

from taetpu.nn.ffn import GLU, SwiGLUConfig
from taetpu.plugin import register


@register("ffn", "squared-swiglu")
class SquaredConfig(SwiGLUConfig):
    """SwiGLU whose output is squared element by element. Its weights start as SwiGLU's do."""

    def init(self, dims, *, key):
        return Squared(**vars(super().init(dims, key=key)))


class Squared(GLU):
    def __call__(self, x, ctx):
        return super().__call__(x, ctx) ** 2
