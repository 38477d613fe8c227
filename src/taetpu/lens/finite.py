"""Models whose numbers are NaN or infinite: every view refuses them in `OpenedModel.program`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from taetpu.core.errors import UserError
from taetpu.nn.lm import LM
from taetpu.nn.named_arrays import named_constants, named_parameters


class NotFinite(UserError):
    """A model computes numbers that are not finite. The CLI exits with status 3, as for other negative results.

    Args:
        name: The name of the model.
        model: The model, whose parameters that are not finite are named.
    """

    exit_code = 3

    def __init__(self, name: str, model: LM):
        parameters = {**named_parameters(model), **named_constants(model)}
        wrong = [name for name, array in parameters.items() if not np.isfinite(np.asarray(array, np.float32)).all()]
        cause = "all parameters are finite, so activations exceed the range of float32"
        if wrong:
            cause = f"{len(wrong)} of {len(parameters)} arrays have NaN or infinite values, such as {wrong[0]}"
        problem = f"{name or 'the model'} computes numbers that are not finite: {cause}"
        remedy = "Use another model or step. `taetpu lens norms` shows the layers that are not finite."
        super().__init__(problem, remedy=remedy)


def with_finiteness(fn: Callable[..., Any]) -> Callable[..., tuple[Any, Bool[Array, ""]]]:
    """Return the function that returns `fn(*args)`, and whether all floating-point numbers in it are finite."""

    def checked(*args: Any) -> tuple[Any, Bool[Array, ""]]:
        out = fn(*args)
        leaves = [leaf for leaf in jax.tree.leaves(out) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
        finite = jnp.array(True)
        for leaf in leaves:
            finite &= jnp.isfinite(leaf).all()
        return out, finite

    return checked
