"""Layouts of tensors in Hugging Face files, and their conversion to and from taetpu's parameters.

Layouts are transposed, split and joined. No number is changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

Tensor = Float[np.ndarray, "..."]
Shape = Sequence[int]


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor that equals one parameter, or several parameters joined along their last axis."""

    def read(self, tensor: Tensor, shapes: Sequence[Shape], head_dim: int) -> list[Tensor]:
        """Return the parameters in a tensor. Their shapes are wrong if the tensor does not contain such parameters.

        Args:
            tensor: The tensor.
            shapes: The shapes of the parameters.
            head_dim: The width of a head of the model.

        Raises:
            ValueError: If the tensor cannot be divided into parameters.
        """
        return np.split(tensor, np.cumsum([shape[-1] for shape in shapes])[:-1], axis=-1) if shapes[1:] else [tensor]

    def write(self, parameters: Sequence[Tensor], head_dim: int) -> Tensor:
        """Return the tensor that contains the parameters."""
        return np.concatenate(parameters, axis=-1) if len(parameters) > 1 else parameters[0]


class Linear(Layout):
    """The weight of a torch Linear: `(out, in)`, the transpose of a parameter."""

    def read(self, tensor: Tensor, shapes: Sequence[Shape], head_dim: int) -> list[Tensor]:
        """See `Layout.read`."""
        return super().read(_transposed(tensor), shapes, head_dim)

    def write(self, parameters: Sequence[Tensor], head_dim: int) -> Tensor:
        """See `Layout.write`."""
        return _transposed(super().write(parameters, head_dim))


class Padded(Layout):
    """A table after two rows of padding, which are zeros if they are written."""

    def read(self, tensor: Tensor, shapes: Sequence[Shape], head_dim: int) -> list[Tensor]:
        """See `Layout.read`."""
        return [tensor[2:]]

    def write(self, parameters: Sequence[Tensor], head_dim: int) -> Tensor:
        """See `Layout.write`."""
        return np.pad(parameters[0], ((2, 0), (0, 0)))


class HeadsFused(Layout):
    """Queries, keys and values by key-value head, on the first axis of a Linear: its query heads, its key, its value.

    With as many key-value heads as heads, this is the layout of GPT-NeoX, `(head, 3, head_dim)`.
    """

    def read(self, tensor: Tensor, shapes: Sequence[Shape], head_dim: int) -> list[Tensor]:
        """See `Layout.read`."""
        query, key, _ = (shape[-1] // head_dim for shape in shapes)
        split = tensor.reshape(key, query // key + 2, head_dim, *tensor.shape[1:])
        return [part.reshape(-1, *tensor.shape[1:]).T for part in (split[:, :-2], split[:, -2], split[:, -1])]

    def write(self, parameters: Sequence[Tensor], head_dim: int) -> Tensor:
        """See `Layout.write`."""
        rest = parameters[0].shape[:-1]
        groups = parameters[1].shape[-1] // head_dim
        by_group = [p.T.reshape(groups, -1, head_dim, *rest) for p in parameters]
        return np.concatenate(by_group, 1).reshape(-1, *rest)


class HalvesSwapped(Layout):
    """A Linear whose outputs are heads with exchanged halves, or its bias."""

    def read(self, tensor: Tensor, shapes: Sequence[Shape], head_dim: int) -> list[Tensor]:
        """See `Layout.read`."""
        by_half = tensor.reshape(-1, 2, head_dim // 2, *tensor.shape[1:])
        return [by_half[:, ::-1].reshape(tensor.shape).T]

    def write(self, parameters: Sequence[Tensor], head_dim: int) -> Tensor:
        """See `Layout.write`."""
        return self.read(parameters[0].T, (), head_dim)[0].T


@dataclass(frozen=True)
class Moved(Layout):
    """A parameter whose axes are those of a tensor in another order, without its axes of size 1.

    Attributes:
        axes: The axes of the tensor in the order of the parameter.
    """

    axes: tuple[int, ...]

    def read(self, tensor: Tensor, shapes: Sequence[Shape], head_dim: int) -> list[Tensor]:
        """See `Layout.read`."""
        return [tensor.transpose(self.axes).reshape(shapes[0])]

    def write(self, parameters: Sequence[Tensor], head_dim: int) -> Tensor:
        """See `Layout.write`."""
        ones = (1,) * (len(self.axes) - parameters[0].ndim)
        return parameters[0].reshape(*parameters[0].shape, *ones).transpose(np.argsort(self.axes))

    def parts(self, shape: Shape) -> int:
        """Return the size of the tensor's first axis, for a parameter of the given shape."""
        return shape[self.axes.index(0)]


class Interleaved(Layout):
    """The gate and value of gpt-oss's experts, alternating on the last axis, with the experts on the first axis.

    Weights `(expert, in, out)` are parameters `(in, expert, out)`; biases are `(expert, out)` on both sides.
    """

    def read(self, tensor: Tensor, shapes: Sequence[Shape], head_dim: int) -> list[Tensor]:
        """See `Layout.read`."""
        return [_experts_second(tensor[..., part :: len(shapes)]) for part in range(len(shapes))]

    def write(self, parameters: Sequence[Tensor], head_dim: int) -> Tensor:
        """See `Layout.write`."""
        both = np.stack([_experts_second(parameter) for parameter in parameters], -1)
        return both.reshape(*both.shape[:-2], -1)


def _transposed(tensor: Tensor) -> Tensor:
    if tensor.ndim != 2:
        raise ValueError(f"{tensor.ndim} axes are not the 2 of a matrix")
    return tensor.T


def _experts_second(tensor: Tensor) -> Tensor:
    return tensor.swapaxes(0, 1) if tensor.ndim == 3 else tensor


PLAIN, LINEAR, PADDED, HEADS_FUSED, INTERLEAVED = Layout(), Linear(), Padded(), HeadsFused(), Interleaved()
HALVES_SWAPPED = HalvesSwapped()
CONVOLUTION = Moved((2, 0, 1))
"""Taps `(channel, 1, tap)`."""
EXPERTS_IN, EXPERTS_OUT = Moved((2, 0, 1)), Moved((0, 2, 1))
"""The matrices `(expert, out, in)` of the first and the last projection."""


@dataclass(frozen=True)
class Rule:
    """taetpu's parameters in a Hugging Face tensor. In names, `{i}` is the number of a layer.

    A name with `{e}` is that of several tensors, one for each expert, which are joined along a new first axis.

    Attributes:
        theirs: The name of the tensor.
        ours: The logical names of the parameters, separated by spaces.
        layout: The layout of the tensor.
    """

    theirs: str
    ours: str
    layout: Layout = PLAIN


def layer_rules(theirs: str, ours: str, layout: Layout = LINEAR) -> tuple[Rule, Rule]:
    """Return the rules of a weight and a bias in each layer (see `module_rules`)."""
    return module_rules(theirs, ours, layout, "layers.{i}.")


def module_rules(theirs: str, ours: str, layout: Layout = LINEAR, place: str = "") -> tuple[Rule, Rule]:
    """Return the rules of a weight and a bias.

    Args:
        theirs: The name of the module of torch.
        ours: The names of the weights in taetpu, separated by spaces, such as `mixer.wq` and `ffn.up`; or the name of a
            norm, such as `mixer_norm`, whose weight is a vector.
        layout: The layout of the weight.
        place: What stands before all names in taetpu.
    """
    if ours.endswith("norm"):
        weights, biases, layout = [f"{ours}.weight"], [f"{ours}.bias"], PLAIN
    else:
        weights = ours.split()
        biases = [name.replace(".w", ".b") if ".w" in name else f"{name}_bias" for name in weights]
    joined = [" ".join(f"{place}{name}" for name in group) for group in (weights, biases)]
    return (
        Rule(f"{theirs}.weight", joined[0], layout),
        Rule(f"{theirs}.bias", joined[1], layout if isinstance(layout, HeadsFused | HalvesSwapped) else PLAIN),
    )


@dataclass(frozen=True)
class Conversion:
    """A rule for one layer; see `Rule`."""

    theirs: str
    ours: tuple[str, ...]
    layout: Layout

    def names(self, shape: Shape) -> list[str]:
        """Return the names of the tensors, for a first parameter of the given shape."""
        if not isinstance(self.layout, Moved) or "{e}" not in self.theirs:
            return [self.theirs]
        return [self.theirs.replace("{e}", str(e)) for e in range(self.layout.parts(shape))]


def expand_rules(rules: Sequence[Rule], num_layers: int) -> list[Conversion]:
    """Return the rules for every layer, in the order of layers for each rule."""
    return [
        Conversion(rule.theirs.replace("{i}", str(i)), tuple(rule.ours.format(i=i).split()), rule.layout)
        for rule in rules
        for i in range(num_layers if "{i}" in rule.theirs else 1)
    ]
