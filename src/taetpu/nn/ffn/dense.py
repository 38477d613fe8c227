"""Feed-forward networks that compute every token with all of their parameters."""

from typing import ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import MAX_SIZE, Component, Size
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import site
from taetpu.nn.common import Context, Dims, project

Stream = Float[Array, "batch seq dim"]


@register("ffn", "none")
class NoFFN(Component):
    """No feed-forward branch. Neither the branch nor the norm of the branch exists."""

    def init(self, dims: Dims, *, key: Key) -> None:
        """Return None, because there is no module."""
        return


def inner_size(mult: float, hidden: int | None, dim: int, multiple: int = 1) -> int:
    """Return `hidden` if it is set, else `mult * dim` rounded to a multiple of `multiple`.

    Raises:
        UserError: if the size is 0 or too large. The path of the error is `mult`.
    """
    if mult * dim > MAX_SIZE:
        problem = f"mult={mult:g} times dim={dim} gives an inner size above {MAX_SIZE}"
        raise UserError(problem, path=("mult",), remedy=f"Use mult of {MAX_SIZE // dim} or less.")
    size = hidden or round(mult * dim / multiple) * multiple
    if size == 0:
        raise UserError(
            f"mult={mult:g} times dim={dim} rounds to an inner size of 0",
            path=("mult",),
            remedy=f"Use mult of {multiple / dim:g} or more, or set hidden.",
        )
    return size


class MLPConfig(Component):
    """act(x W_up) W_down. The inner size is `hidden` if it is set, else `mult` times dim."""

    mult: PositiveFloat = 4.0
    """Inner size as a multiple of dim."""
    hidden: Size | None = None
    """Inner size; `none`: mult * dim."""
    bias: bool | None = None
    """Whether projections have biases; `none`: as `model.bias`."""
    activation: ClassVar[str]

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        inner_size(self.mult, self.hidden, dims.dim)

    def init(self, dims: Dims, *, key: Key) -> "MLP":
        """Build the module at the given sizes."""
        hidden = inner_size(self.mult, self.hidden, dims.dim)
        return MLP(
            up=dims.weight(named(key, "up"), dims.dim, hidden, role="up"),
            up_bias=dims.zeros(hidden, self.bias),
            down=dims.weight(named(key, "down"), hidden, dims.dim, role="down"),
            down_bias=dims.zeros(dims.dim, self.bias),
            activation=self.activation,
        )


def _gelu_tanh(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)


def _gelu_erf(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


ACTIVATIONS = {"relu": jax.nn.relu, "gelu-tanh": _gelu_tanh, "gelu-erf": _gelu_erf}


class MLP(eqx.Module):
    """act(x W_up) W_down; see `MLPConfig`."""

    up: Float[Array, "dim hidden"]
    up_bias: Float[Array, " hidden"] | None
    down: Float[Array, "hidden dim"]
    down_bias: Float[Array, " dim"] | None
    activation: str = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return act(x W_up) W_down."""
        h = ACTIVATIONS[self.activation](project(x, self.up, self.up_bias))
        return project(site("ffn.hidden", h), self.down, self.down_bias)


@register("ffn", "relu")
class ReLU(MLPConfig):
    """max(0, x W_up) W_down. Vaswani et al. 2017."""

    activation = "relu"


@register("ffn", "gelu-tanh")
class GELUTanh(MLPConfig):
    """GELU with the tanh approximation, as in GPT-2 and Gemma. Hendrycks and Gimpel 2016."""

    activation = "gelu-tanh"


@register("ffn", "gelu-erf")
class GELUErf(MLPConfig):
    """Exact GELU, x * Phi(x), as in BERT and NeoX. Hendrycks and Gimpel 2016."""

    activation = "gelu-erf"


@register("ffn", "swiglu")
class SwiGLUConfig(Component):
    """(silu(x W_gate) * x W_up) W_down. Shazeer 2020.

    The inner size is `mult` times dim, rounded to a multiple of 8. With the default of 8/3, the three matrices have as
    many parameters as the two matrices of an MLP with `mult: 4`.
    """

    mult: PositiveFloat = 8 / 3
    """Inner size as a multiple of dim."""
    hidden: Size | None = None
    """Inner size; `none`: mult * dim, rounded."""
    bias: bool | None = None
    """Whether projections have biases; `none`: as `model.bias`."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        inner_size(self.mult, self.hidden, dims.dim, multiple=8)

    def init(self, dims: Dims, *, key: Key) -> "SwiGLU":
        """Build the module at the given sizes."""
        hidden = inner_size(self.mult, self.hidden, dims.dim, multiple=8)
        return SwiGLU(
            gate=dims.weight(named(key, "gate"), dims.dim, hidden, role="gate"),
            gate_bias=dims.zeros(hidden, self.bias),
            up=dims.weight(named(key, "up"), dims.dim, hidden, role="up"),
            up_bias=dims.zeros(hidden, self.bias),
            down=dims.weight(named(key, "down"), hidden, dims.dim, role="down"),
            down_bias=dims.zeros(dims.dim, self.bias),
        )


class SwiGLU(eqx.Module):
    """(silu(x W_gate) * x W_up) W_down; see `SwiGLUConfig`."""

    gate: Float[Array, "dim hidden"]
    gate_bias: Float[Array, " hidden"] | None
    up: Float[Array, "dim hidden"]
    up_bias: Float[Array, " hidden"] | None
    down: Float[Array, "hidden dim"]
    down_bias: Float[Array, " dim"] | None

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return (silu(x W_gate) * x W_up) W_down."""
        h = jax.nn.silu(project(x, self.gate, self.gate_bias)) * project(x, self.up, self.up_bias)
        return project(site("ffn.hidden", h), self.down, self.down_bias)
