"""A plug-in: your own kinds, for a study that names this file under `plugins`.

    python -m taetpu.testing NAME.py         checks each kind in tiny models: shapes, causality, gradients and more
    taetpu catalog ffn --plugin NAME.py      lists the new kind together with the built-in kinds

A kind consists of a config class and an equinox module. A study sets the fields of the config class. The config's
method `init` builds the module for each layer.
"""

from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from pydantic import Field

from taetpu.plugin import Component, Fixed, Traced, named, project, register, site


@register("ffn", "squared-relu")  # a slot and the name of the new kind; `taetpu catalog` lists the slots
class SquaredReLUConfig(Component):
    """max(h, slope h)^2 W_down of h = x W_up. So et al. 2021 (Primer), whose slope below zero is 0."""

    mult: float = 4.0  # inner size over dim: a structural setting, so each value is compiled separately
    # A traced setting is an input of the program: arms and seeds that differ only in it train together.
    slope: Annotated[float, Field(ge=0, le=1), Traced()] = 0.0

    def init(self, dims, *, key):
        """Draw the weights and return the module."""
        hidden = round(self.mult * dims.dim)
        return SquaredReLU(
            # The key depends on the name, so that adding a weight later does not change the others.
            up=dims.weight(named(key, "up"), dims.dim, hidden),
            down=dims.weight(named(key, "down"), hidden, dims.dim, role="out"),  # writes to the residual stream
            slope=Fixed(self.slope),  # a number that is stored in the model and not trained
        )


class SquaredReLU(eqx.Module):
    """The module that `SquaredReLUConfig` builds."""

    up: jax.Array  # (dim, hidden)
    down: jax.Array  # (hidden, dim)
    slope: Fixed

    def __call__(self, x, ctx):
        """Map x `(batch, seq, dim)` to the same shape and type, float32 or bfloat16; `ctx` has tokens and positions."""
        h = project(x, self.up)  # x @ up
        h = jnp.maximum(h, self.slope.value.astype(x.dtype) * h) ** 2
        return project(site("ffn.hidden", h), self.down)  # a site: metrics can read it
