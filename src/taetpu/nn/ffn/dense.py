"""Feed-forward networks that compute every token with all of their parameters."""

from functools import partial
from typing import Annotated, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import Field, PositiveFloat

from taetpu.core.config import MAX_SIZE, Component, Size, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import site
from taetpu.nn.common import Context, Dims, Fixed, project

Stream = Float[Array, "batch seq dim"]
Hidden = Float[Array, "batch seq hidden"]


@register("ffn", "none")
class NoFFN(Component):
    """No feed-forward branch. Neither the branch nor the norm of the branch exists."""

    def init(self, dims: Dims, *, key: Key) -> None:
        """Return None, because there is no module."""
        return


Ratio = Annotated[PositiveFloat, Field(le=MAX_SIZE)]


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

    mult: Ratio = 4.0
    """Inner size as a multiple of dim."""
    hidden: Size | None = None
    """Inner size; `none`: mult * dim."""
    bias: bool | None = None
    """Whether projections have biases; `none`: as `model.bias`."""
    activation: ClassVar[str]
    multiple: ClassVar = 1
    """The inner size of `mult` is rounded to a multiple of this."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        inner_size(self.mult, self.hidden, dims.dim, self.multiple)

    def init(self, dims: Dims, *, key: Key) -> "MLP | GLU":
        """Build the module at the given sizes."""
        hidden = inner_size(self.mult, self.hidden, dims.dim, self.multiple)
        return MLP(
            up=dims.weight(named(key, "up"), dims.dim, hidden, role="up"),
            up_bias=dims.zeros(hidden, self.bias),
            down=dims.weight(named(key, "down"), hidden, dims.dim, role="down"),
            down_bias=dims.zeros(dims.dim, self.bias),
            activation=self.activation,
        )


ACTIVATIONS = {
    "relu": jax.nn.relu,
    "relu2": lambda x: jax.nn.relu(x) ** 2,
    "silu": jax.nn.silu,
    "gelu-tanh": partial(jax.nn.gelu, approximate=True),
    "gelu-erf": partial(jax.nn.gelu, approximate=False),
    "sigmoid": jax.nn.sigmoid,
    "identity": lambda x: x,
}


class MLP(eqx.Module):
    """act(x W_up) W_down; see `MLPConfig`."""

    products: ClassVar = ("up", "down")  # see `nn.cast`

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
    """max(0, x W_up) W_down. Vaswani et al. 2017.

    Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.
    Reference: torch.nn.functional.relu.
    """

    activation = "relu"


@register("ffn", "gelu-tanh")
class GELUTanh(MLPConfig):
    """GELU with the tanh approximation, as in GPT-2 and Gemma. Hendrycks and Gimpel 2016.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)", arXiv 1606.08415.
    Reference: torch.nn.functional.gelu.
    """

    activation = "gelu-tanh"


@register("ffn", "gelu-erf")
class GELUErf(MLPConfig):
    """Exact GELU, x * Phi(x), as in BERT and NeoX. Hendrycks and Gimpel 2016.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units (GELUs)", arXiv 1606.08415.
    Reference: torch.nn.functional.gelu.
    """

    activation = "gelu-erf"


@register("ffn", "relu2")
class ReLU2(MLPConfig):
    """max(0, x W_up)^2 W_down. So et al. 2021 (Primer); nanochat and modded-nanogpt.

    Source: So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling", arXiv 2109.08668.
    Reference: transformers.activations.ReLUSquaredActivation.
    """

    activation = "relu2"


@register("ffn", "silu")
class SiLU(MLPConfig):
    """silu(x W_up) W_down with silu(h) = h sigmoid(h). Elfwing et al. 2017; Ramachandran et al. 2017 (Swish).

    Source: Ramachandran et al. 2017, "Searching for Activation Functions", arXiv 1710.05941.
    Reference: torch.nn.functional.silu.
    """

    activation = "silu"


class GLUConfig(MLPConfig):
    """(act(x W_gate) * x W_up) W_down.

    The inner size is `mult` times dim, rounded to a multiple of 8. With the default of 8/3, the three matrices have as
    many parameters as the two matrices of an MLP with `mult: 4`.
    """

    mult: Ratio = 8 / 3
    """Inner size as a multiple of dim."""
    hidden: Size | None = None
    """Inner size; `none`: mult * dim, rounded."""
    multiple = 8

    def init(self, dims: Dims, *, key: Key) -> "GLU":
        """Build the module at the given sizes."""
        hidden = inner_size(self.mult, self.hidden, dims.dim, self.multiple)
        return GLU(
            gate=dims.weight(named(key, "gate"), dims.dim, hidden, role="gate"),
            gate_bias=dims.zeros(hidden, self.bias),
            **vars(super().init(dims, key=key)),
        )


class GLU(eqx.Module):
    """(act(x W_gate) * x W_up) W_down; see `GLUConfig`."""

    products: ClassVar = ("gate", "up", "down")  # see `nn.cast`

    gate: Float[Array, "dim hidden"]
    gate_bias: Float[Array, " hidden"] | None
    up: Float[Array, "dim hidden"]
    up_bias: Float[Array, " hidden"] | None
    down: Float[Array, "hidden dim"]
    down_bias: Float[Array, " dim"] | None
    activation: str = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return (act(x W_gate) * x W_up) W_down."""
        h = self.combine(project(x, self.gate, self.gate_bias), project(x, self.up, self.up_bias))
        return project(site("ffn.hidden", h), self.down, self.down_bias)

    def combine(self, gate: Hidden, up: Hidden) -> Hidden:
        """Return act(gate) * up, the input of the last projection."""
        return ACTIVATIONS[self.activation](gate) * up


@register("ffn", "swiglu")
class SwiGLUConfig(GLUConfig):
    """(silu(x W_gate) * x W_up) W_down. Shazeer 2020.

    The inner size is `mult` times dim, rounded to a multiple of 8. With the default of 8/3, the three matrices have as
    many parameters as the two matrices of an MLP with `mult: 4`.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv 2002.05202.
    Reference: transformers.models.llama.modeling_llama.LlamaMLP.
    """

    activation = "silu"


@register("ffn", "glu")
class GLUKind(GLUConfig):
    """(sigmoid(x W_gate) * x W_up) W_down. Dauphin et al. 2016; Shazeer 2020.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv 2002.05202.
    Reference: torch.nn.functional.glu.
    """

    activation = "sigmoid"


@register("ffn", "bilinear")
class Bilinear(GLUConfig):
    """(x W_gate * x W_up) W_down, a gated network without an activation. Shazeer 2020.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv 2002.05202.
    Reference: x_transformers.x_transformers.GLU.
    """

    activation = "identity"


@register("ffn", "reglu")
class ReGLU(GLUConfig):
    """(max(0, x W_gate) * x W_up) W_down. Shazeer 2020.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv 2002.05202.
    Reference: x_transformers.x_transformers.GLU.
    """

    activation = "relu"


@register("ffn", "geglu")
class GEGLU(GLUConfig):
    """(gelu(x W_gate) * x W_up) W_down with the exact GELU. Shazeer 2020. Gemma uses `geglu-tanh`.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv 2002.05202.
    Reference: x_transformers.x_transformers.GLU.
    """

    activation = "gelu-erf"


@register("ffn", "geglu-tanh")
class GEGLUTanh(GLUConfig):
    """(gelu(x W_gate) * x W_up) W_down with the tanh approximation of GELU. Gemma Team 2024.

    Source: Gemma Team 2024, "Gemma: Open Models Based on Gemini Research and Technology", arXiv 2403.08295.
    Reference: transformers.models.gemma.modeling_gemma.GemmaMLP.
    """

    activation = "gelu-tanh"


@register("ffn", "clamped-swiglu")
class ClampedSwiGLUConfig(GLUConfig):
    """(g sigmoid(alpha g) * (u + 1)) W_down, g = min(x W_gate, limit), u = clip(x W_up, -limit, limit). gpt-oss.

    The factor alpha makes the gate close to GELU. gpt-oss has biases (`bias: true`), and a mixture of such networks.

    Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", arXiv 2508.10925.
    Reference: transformers.models.gpt_oss.modeling_gpt_oss.GptOssExperts.
    """

    activation = "silu"

    limit: Annotated[PositiveFloat, Traced()] = 7.0
    """Largest value of the gate, and largest absolute value of the other factor."""
    alpha: Annotated[PositiveFloat, Traced()] = 1.702
    """Factor of the gate inside the sigmoid."""

    def init(self, dims: Dims, *, key: Key) -> "ClampedSwiGLU":
        """Build the module at the given sizes."""
        return ClampedSwiGLU(**vars(super().init(dims, key=key)), limit=Fixed(self.limit), alpha=Fixed(self.alpha))


class ClampedSwiGLU(GLU):
    """SwiGLU with limits; see `ClampedSwiGLUConfig`."""

    products: ClassVar = GLU.products

    limit: Fixed
    alpha: Fixed

    def combine(self, gate: Hidden, up: Hidden) -> Hidden:
        """Return g sigmoid(alpha g) * (u + 1), the input of the last projection."""
        return clamped_glu(gate, up, self.limit, self.alpha)


def clamped_glu(gate: Hidden, up: Hidden, limit: Fixed, alpha: Fixed) -> Hidden:
    """Return g sigmoid(alpha g) * (u + 1) with g = min(gate, limit) and u = clip(up, -limit, limit)."""
    bound, factor = (number.value.astype(gate.dtype) for number in (limit, alpha))
    gate, up = jnp.minimum(gate, bound), jnp.clip(up, -bound, bound)
    return gate * jax.nn.sigmoid(factor * gate) * (up + 1)
