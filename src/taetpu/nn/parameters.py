"""The trained arrays of a model as optimizers see them: by name, role and the axes of their matrix products.

The roles are recorded where weights are drawn (`nn.common.Dims.weight`), while the model is traced.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import jax
from jax.extend.core import Literal

from taetpu.core.keys import root_key
from taetpu.core.model_interface import Interface
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.core.tree import leaves_by_path
from taetpu.nn.common import Drawn, partition_trainable
from taetpu.nn.init import ROLES, TABLES
from taetpu.nn.lm import LM, LMConfig
from taetpu.nn.named_arrays import logical_names, mask_matrices

VECTOR, OTHER = "vector", "other"
"""The roles of arrays that are not drawn by `Dims.weight`: with at most one axis, such as biases, and with more."""
PARAMETER_ROLES = (*ROLES, VECTOR, OTHER)
NOT_HIDDEN = (*TABLES, "unembedding", VECTOR, OTHER)
"""The roles of parameters that are not matrices between layers, whose fan-in grows with the width of the model."""


@dataclass(frozen=True)
class Parameter:
    """A trained array of a model.

    Attributes:
        names: The logical name (see `nn.named_arrays`); for an array of a stack, the name in each layer.
        shape: The shape of the array, with the layer axis of a stack.
        role: One of `PARAMETER_ROLES`.
        is_matrix: Whether the array has at least two axes, not counting the layer axis.
        in_axes: The axes that a product with the array contracts; empty if unknown.
        out_axes: The axes that such a product adds to its result; empty if unknown. All other axes, such as the layer
            axis, count independent matrices.
        dim: The width of the model's residual stream.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    role: str
    is_matrix: bool
    in_axes: tuple[int, ...]
    out_axes: tuple[int, ...]
    dim: int

    @property
    def hidden(self) -> bool:
        """Whether the array consists of matrices between layers."""
        return self.role not in NOT_HIDDEN and bool(self.in_axes)

    @property
    def fan_in(self) -> int | None:
        """The number of inputs that each output sums over; None if unknown."""
        return prod(self.shape[i] for i in self.in_axes) if self.in_axes else None

    @property
    def fan_out(self) -> int | None:
        """The number of outputs of a product with the array; None if unknown."""
        return prod(self.shape[i] for i in self.out_axes) if self.out_axes else None


class Parameters:
    """The trained parameters of a model, described for an optimizer.

    Args:
        params: The parameters, or a tree like them.
        config: The config of the model.
        sizes: The sizes of inputs and outputs, or the number of different tokens.
        seq_len: The maximum length of a sequence.
    """

    def __init__(self, params: LM, config: LMConfig, sizes: Interface | int, seq_len: int):
        self.params, self.config, self.sizes = params, config, (sizes, seq_len)

    @cached_property
    def decayed(self) -> LM:
        """A tree like the parameters, with True for those that weight decay applies to: matrices."""
        return mask_matrices(self.params)

    @cached_property
    def described(self) -> LM:
        """A tree like the parameters, with a `Parameter` for each array."""
        drawn, dim = drawn_weights(self.config, *self.sizes), self.config.dim

        def describe(path: Any, leaf: Any, is_matrix: bool) -> Parameter:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            names = logical_names(self.params, name)
            weight = drawn.get(names[0], Drawn(OTHER if is_matrix else VECTOR, (), ()))
            axes = ((), ()) if weight.role in TABLES else (weight.in_axes, weight.out_axes)
            in_axes, out_axes = (tuple(i + name.startswith("stacks.") for i in part) for part in axes)
            return Parameter(names, leaf.shape, weight.role, is_matrix, in_axes, out_axes, dim)

        return jax.tree_util.tree_map_with_path(describe, self.params, self.decayed)


def drawn_weights(config: LMConfig, sizes: Interface | int, seq_len: int) -> Mapping[str, Drawn]:
    """Return the description of each parameter that `Dims.weight` drew, by logical name. Nothing is computed."""
    drawn: list[Drawn] = []
    bound = bind(*split(config, promoted_fields(config)))

    def build() -> LM:
        return partition_trainable(bound.build(sizes, seq_len, key=root_key(0), drawn=drawn))[0]

    traced, shapes = jax.make_jaxpr(build, return_shape=True)()
    numbers = map(_weight_finder(traced.jaxpr), traced.jaxpr.outvars)
    weights = dict(zip(leaves_by_path(shapes), numbers, strict=True))
    return {
        name: drawn[number]
        for path, number in weights.items()
        if number is not None
        for name in logical_names(shapes, path)
    }


def _weight_finder(jaxpr: Any) -> Callable[[Any], int | None]:
    """Return a function that finds the number of the weight from which a variable of a jaxpr was computed.

    Operations that keep the shape are followed back, and the broadcast of a weight that all layers of a stack share.
    The result is None if a variable was computed from no weight, or from several.
    """
    equations = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}

    @cache
    def find(var: Any) -> int | None:
        eqn = equations.get(var)
        if eqn is None:
            return None
        if eqn.primitive.name == "name":
            return int(eqn.params["name"])
        broadcast = eqn.primitive.name == "broadcast_in_dim"
        inputs = [variable for variable in eqn.invars if not isinstance(variable, Literal)]
        numbers = {find(variable) for variable in inputs if broadcast or variable.aval.shape == var.aval.shape} - {None}
        return numbers.pop() if len(numbers) == 1 else None

    return lambda var: None if isinstance(var, Literal) else find(var)
