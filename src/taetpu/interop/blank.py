"""Models whose parameters are about to be replaced: nothing is drawn, and the parameters take no memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from taetpu.core.config import Component
from taetpu.core.jit import jit_once
from taetpu.core.keys import Key, root_key
from taetpu.core.model_interface import Interface
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.nn.common import Dims, combine_trainable, partition_trainable
from taetpu.nn.lm import LM, LMConfig


class Zeros(Component):
    """An init that draws no random numbers."""

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Return zeros."""
        return jnp.zeros(shape)


def blank_model(config: LMConfig, sizes: Interface | int, seq_len: int) -> LM:
    """Return a model with its constants, such as scales and masks, and with zeros as parameters.

    The parameters are numpy arrays that share one number each.

    Raises:
        UserError: If a component cannot be built at these sizes.
    """
    config.check(sizes, seq_len)
    bound: Any = bind(*split(config.model_copy(update={"init": Zeros()}), promoted_fields(config)))

    def build() -> tuple[LM, LM]:
        return partition_trainable(bound.build(sizes, seq_len, key=root_key(0)))

    shapes = jax.eval_shape(lambda: build()[0])
    constants = jit_once(lambda: build()[1])()
    params = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), shapes)
    return combine_trainable(params, constants)
