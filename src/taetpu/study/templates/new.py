"""A plug-in: kinds of your own for the study beside it, which names this file under `plugins`.

    python -m taetpu.testing NAME.py         tries each kind in tiny models: shapes, causality, gradients and more
    taetpu catalog ffn --plugin NAME.py      shows it beside the kinds that come with the package

A kind is a config class, whose fields a study sets, and an equinox module, which `init` builds for each layer.
"""

from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from pydantic import Field

from taetpu.plugin import Component, Fixed, Traced, named, project, register, site


@register("ffn", "squared-relu")  # a slot, and the name of a new kind for it; `taetpu catalog` lists the slots
class SquaredReLUConfig(Component):
    """max(h, slope h)^2 W_down of h = x W_up. So et al. 2021 (Primer), whose slope below zero is 0."""

    mult: float = 4.0  # inner size over dim: a setting of the structure, each value is compiled anew
    # A traced setting is an input of the program: arms and seeds that differ in it alone are trained together.
    slope: Annotated[float, Field(ge=0, le=1), Traced()] = 0.0

    def init(self, dims, *, key):
        hidden = round(self.mult * dims.dim)
        return SquaredReLU(
            # Drawn from a key of its own name, so that adding a weight later leaves the others as they are.
            up=dims.weight(named(key, "up"), dims.dim, hidden),
            down=dims.weight(named(key, "down"), hidden, dims.dim, role="out"),  # writes to the residual stream
            slope=Fixed(self.slope),  # a number that the model holds but does not train
        )


class SquaredReLU(eqx.Module):
    up: jax.Array  # (dim, hidden)
    down: jax.Array  # (hidden, dim)
    slope: Fixed

    def __call__(self, x, ctx):
        """x: (batch, seq, dim), float32 or bfloat16; the result is alike. `ctx` knows tokens, positions and layer."""
        h = project(x, self.up)  # x @ up
        h = jnp.maximum(h, self.slope.value.astype(x.dtype) * h) ** 2
        return project(site("ffn.hidden", h), self.down)  # a site: metrics can read it
