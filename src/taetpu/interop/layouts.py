"""Layouts of tensors in Hugging Face files, and their conversion to and from taetpu's parameters.

Layouts are transposed, split and joined. No number is changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Tensor = Float[np.ndarray, "..."]


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor that equals one parameter, or several parameters joined along their last axis."""

    def read(self, tensor: Tensor, parts: int, num_heads: int) -> list[Tensor]:
        """Return the parameters in a tensor.

        Args:
            tensor: The tensor.
            parts: The number of parameters.
            num_heads: The number of query heads of the model.

        Raises:
            ValueError: If the tensor cannot be divided into these parts.
        """
        return np.split(tensor, parts, axis=-1) if parts > 1 else [tensor]

    def write(self, parameters: Sequence[Tensor], num_heads: int) -> Tensor:
        """Return the tensor that contains the parameters."""
        return np.concatenate(parameters, axis=-1) if len(parameters) > 1 else parameters[0]


class Linear(Layout):
    """The weight of a torch Linear: `(out, in)`, the transpose of a parameter."""

    def read(self, tensor: Tensor, parts: int, num_heads: int) -> list[Tensor]:
        """See `Layout.read`."""
        return super().read(_transposed(tensor), parts, num_heads)

    def write(self, parameters: Sequence[Tensor], num_heads: int) -> Tensor:
        """See `Layout.write`."""
        return _transposed(super().write(parameters, num_heads))


class HeadsFused(Layout):
    """The output axis of GPT-NeoX's queries, keys and values: `(head, 3, head_dim)`, the first axis of a Linear."""

    def read(self, tensor: Tensor, parts: int, num_heads: int) -> list[Tensor]:
        """See `Layout.read`."""
        split = tensor.reshape(num_heads, parts, -1, *tensor.shape[1:])
        return [split[:, part].reshape(-1, *tensor.shape[1:]).T for part in range(parts)]

    def write(self, parameters: Sequence[Tensor], num_heads: int) -> Tensor:
        """See `Layout.write`."""
        by_head = [p.T.reshape(num_heads, -1, *p.shape[:-1]) for p in parameters]
        return np.stack(by_head, 1).reshape(-1, *parameters[0].shape[:-1])


class Interleaved(Layout):
    """The gate and value of gpt-oss's experts, alternating on the last axis, with the experts on the first axis.

    Weights `(expert, in, out)` are parameters `(in, expert, out)`; biases are `(expert, out)` on both sides.
    """

    def read(self, tensor: Tensor, parts: int, num_heads: int) -> list[Tensor]:
        """See `Layout.read`."""
        if tensor.shape[-1] % parts:
            raise ValueError(f"an axis of {tensor.shape[-1]} elements cannot be divided by {parts}")
        return [_experts_second(tensor[..., part::parts]) for part in range(parts)]

    def write(self, parameters: Sequence[Tensor], num_heads: int) -> Tensor:
        """See `Layout.write`."""
        both = np.stack([_experts_second(parameter) for parameter in parameters], -1)
        return both.reshape(*both.shape[:-2], -1)


def _transposed(tensor: Tensor) -> Tensor:
    if tensor.ndim != 2:
        raise ValueError(f"{tensor.ndim} axes are not the 2 of a matrix")
    return tensor.T


def _experts_second(tensor: Tensor) -> Tensor:
    return tensor.swapaxes(0, 1) if tensor.ndim == 3 else tensor


PLAIN, LINEAR, HEADS_FUSED, INTERLEAVED = Layout(), Linear(), HeadsFused(), Interleaved()


@dataclass(frozen=True)
class Rule:
    """taetpu's parameters in a Hugging Face tensor. In names, `{i}` is the number of a layer.

    Attributes:
        theirs: The name of the tensor.
        ours: The logical names of the parameters, separated by spaces.
        layout: The layout of the tensor.
    """

    theirs: str
    ours: str
    layout: Layout = PLAIN


@dataclass(frozen=True)
class Conversion:
    """A rule for one layer; see `Rule`."""

    theirs: str
    ours: tuple[str, ...]
    layout: Layout


def expand_rules(rules: Sequence[Rule], num_layers: int) -> list[Conversion]:
    """Return the rules for every layer, in the order of layers for each rule."""
    return [
        Conversion(rule.theirs.format(i=i), tuple(rule.ours.format(i=i).split()), rule.layout)
        for rule in rules
        for i in range(num_layers if "{i}" in rule.theirs else 1)
    ]
