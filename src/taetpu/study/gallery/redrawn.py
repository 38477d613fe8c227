"""An init whose weights can be drawn again, for arms that differ from the baseline by chance alone."""

from typing import Annotated

import jax
import jax.numpy as jnp
from pydantic import NonNegativeInt

from taetpu.nn.init import ScaledFanIn
from taetpu.plugin import Dims, Key, Traced, register


@register("init", "redrawn")
class Redrawn(ScaledFanIn):
    """`scaled-fan-in`, the default, with draws that also depend on `draw_number`. All have the same distribution."""

    draw_number: Annotated[NonNegativeInt, Traced()] = 0
    """Number of the draw."""

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> jax.Array:
        """Draw a weight of the given role and shape."""
        number = jnp.asarray(self.draw_number).astype(jnp.uint32)
        return super().draw(dims, role, shape, key=jax.random.fold_in(key, number))
