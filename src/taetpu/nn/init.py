"""Slot `init`: the distribution of weights. Biases start at zero and norm weights at one for every kind."""

from math import log
from typing import Annotated, ClassVar

import jax
from jaxtyping import Array
from pydantic import NonNegativeFloat

from taetpu.core.config import Component, Size, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named, root_key
from taetpu.core.registry import register
from taetpu.nn.common import Dims, Init

WRITING = ("out", "down")
"""Roles of the projections that write to the residual stream: those of attention and of feed-forward networks."""
TABLES = ("embedding", "position")
"""Roles of the tables that are indexed, so that they have no fan-in."""
READING = ("in", "q", "k", "v", "up", "gate")
"""Roles of the projections between layers that do not write to the residual stream."""
ROLES = (*READING, "router", *WRITING, *TABLES, "unembedding")
"""All roles of weights. `in` is a projection that has no finer role."""


def role_shape(role: str, dims: Dims) -> tuple[int, int]:
    """Return a typical shape of a weight with the given role, for checks."""
    tables = {"embedding": dims.input_size, "position": dims.seq_len}
    if role in tables:
        return tables[role], dims.dim
    return (2 * dims.dim, dims.dim) if role in WRITING else (dims.dim, 2 * dims.dim)


def relative_std(init: Init, dims: Dims) -> float:
    """Return the std of the weights of reading projections, times sqrt(fan-in), measured on a draw.

    At 1, a product with the weights keeps the size of its input (LeCun et al. 1998). Of several roles with different
    distributions, the one nearest to 1 counts.
    """
    shape = dims.dim, max(8, 4096 // dims.dim)
    stds = [float(init.draw(dims, role, shape, key=named(root_key(0), role)).std()) for role in READING]
    return min((dims.dim**0.5 * std for std in stds), key=lambda ratio: abs(log(max(ratio, 1e-30))))


def refuse_unknown_fan_in(shape: tuple[int, ...]) -> None:
    """Raise `UserError` if a weight has more than two axes, so that its fan-in is unknown."""
    if len(shape) > 2:
        raise UserError(
            f"the fan-in of a weight of shape {shape} is unknown, because in_axes is missing",
            remedy="Call dims.weight(key, *shape, in_axes=..., batch_axes=...), e.g. with in_axes=(1,) and "
            "batch_axes=(0,) for a shape of (heads, dim, head_dim).",
        )


@register("init", "gpt2-scaled")
class GPT2Scaled(Component):
    """N(0, std^2), or N(0, std^2 / (2 * num_layers)) for projections that write to the residual stream.

    Scaling the std by 1 / sqrt(N) for N residual layers, two per block, is from Radford et al. 2019 (section 2.3). The
    paper gives no std. The default of 0.02, also for learned positions, is from nanoGPT.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; nanoGPT,
    github.com/karpathy/nanoGPT.
    """

    std: Annotated[NonNegativeFloat, Traced()] = 0.02
    """Standard deviation of weights."""

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Draw a weight of the given role and shape."""
        std = self.std / (2 * dims.num_layers) ** 0.5 if role in WRITING else self.std
        return std * jax.random.normal(key, shape)


@register("init", "normal")
class Normal(Component):
    """N(0, std^2) for all weights. GPT-2's std for all but the projections that write to the residual stream.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
    """

    std: Annotated[NonNegativeFloat, Traced()] = 0.02
    """Standard deviation of weights."""

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Draw a weight of the given role and shape."""
        return self.std * jax.random.normal(key, shape)


@register("init", "zero-out")
class ZeroOut(Normal):
    """0 for projections that write to the residual stream, N(0, std^2) for other weights. Zhang et al. 2019 (Fixup).

    Every block is then the identity at first. muP and modded-nanogpt initialise these projections so too.

    Source: Zhang et al. 2019, "Fixup Initialization: Residual Learning Without Normalization", arXiv 1901.09321.
    """

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Draw a weight of the given role and shape."""
        drawn = super().draw(dims, role, shape, key=key)
        return 0 * drawn if role in WRITING else drawn


@register("init", "small")
class SmallInit(Component):
    """N(0, 2 / (5 dim)) for all weights. Nguyen and Salazar 2019 (SmallInit).

    This is the distribution of Glorot and Bengio 2010 for the up projection of an ffn with an inner size of 4 dim.

    Source: Nguyen and Salazar 2019, "Transformers without Tears", arXiv 1910.05895.
    """

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Draw a weight of the given role and shape."""
        return (2 / (5 * dims.dim)) ** 0.5 * jax.random.normal(key, shape)


@register("init", "xavier")
class Xavier(Component):
    """N(0, 2 / (fan_in + fan_out)) for projections, and N(0, 1 / dim) for embedding tables. Glorot and Bengio 2010.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks".
    Reference: torch.nn.init.xavier_normal_.
    """

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Draw a weight of the given role and shape."""
        drawn = jax.random.normal(key, shape)
        if role in TABLES:
            return dims.dim**-0.5 * drawn
        refuse_unknown_fan_in(shape)
        return self.factor(dims, role) * (2 / sum(shape)) ** 0.5 * drawn

    def factor(self, dims: Dims, role: str) -> float:
        """Return the factor on the standard deviation of a projection."""
        return 1.0


@register("init", "mup")
class MuPInit(GPT2Scaled):
    """Maximal update parametrisation: `gpt2-scaled`, with the variance of matrices between layers divided by the width.

    Yang et al. 2022 (table 8), which keeps the sizes of activations independent of the width, so that learning rates
    transfer to other widths. The std of matrices between layers is multiplied by sqrt(base_dim / dim); those of
    embeddings and the unembedding stay as at `base_dim`. The router of a mixture of experts has a fixed number of
    outputs, as the unembedding has, but no factor on its outputs, so its std is multiplied by base_dim / dim. Other
    projections to a fixed number of outputs, such as a gate for each head, count as matrices between layers.

    Use it with `logits: {kind: mup}`, `base_dim` in the optimizer (adamw, adam or schedule-free) and
    `scale: 1/head_dim` in attention.

    Source: Yang et al. 2022, "Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer",
    arXiv 2203.03466.
    """

    example: ClassVar = {"base_dim": 64}

    base_dim: Size
    """Width of the model at which the init is `gpt2-scaled`."""

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Draw a weight of the given role and shape."""
        drawn = super().draw(dims, role, shape, key=key)
        if role in (*TABLES, "unembedding"):
            return drawn
        return (self.base_dim / dims.dim) ** (1 if role == "router" else 0.5) * drawn


@register("init", "fan-in")
class FanIn(Component):
    """N(0, gain / fan_in) for projections, so that a unit-variance input gives a unit-variance output at gain 1.

    LeCun et al. 1998. A weight with more than two axes requires `in_axes` (see `Dims.weight`). Embedding tables, which
    have no fan-in, are drawn from N(0, gain / dim), so that a tied output projection has the same variance as other
    projections.

    Source: LeCun et al. 1998, "Efficient BackProp".
    """

    gain: Annotated[NonNegativeFloat, Traced()] = 1.0
    """Product of a weight's variance and its fan-in."""

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Draw a weight of the given role and shape."""
        if role not in TABLES:
            refuse_unknown_fan_in(shape)
        fan_in = dims.dim if role in TABLES else next(iter(shape))
        return (self.gain / fan_in) ** 0.5 * jax.random.normal(key, shape)


@register("init", "scaled-fan-in")
class ScaledFanIn(FanIn):
    """`fan-in`, with the variance divided by 2 * num_layers for projections that write to the residual stream.

    At init, the residual stream's variance then grows by a constant over all layers, however many there are. The factor
    is that of Radford et al. 2019 (section 2.3), which give no std; LeCun et al. 1998 give one for every width.

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; LeCun et al. 1998, "Efficient
    BackProp".
    """

    def draw(self, dims: Dims, role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Draw a weight of the given role and shape."""
        drawn = super().draw(dims, role, shape, key=key)
        return drawn / (2 * dims.num_layers) ** 0.5 if role in WRITING else drawn


@register("init", "deepnorm")
class DeepNormInit(Xavier):
    """N(0, 2 g^2 / (fan_in + fan_out)), with g = (8 num_layers)^(-1/4) for v, out and the ffn, and g = 1 for q and k.

    Wang et al. 2022 (DeepNorm), for decoders; Glorot and Bengio 2010. Embedding tables are drawn from N(0, 1 / dim).

    Source: Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers", arXiv 2203.00555; Glorot and Bengio 2010,
    "Understanding the difficulty of training deep feedforward neural networks".
    """

    def factor(self, dims: Dims, role: str) -> float:
        """Return g."""
        return (8 * dims.num_layers) ** -0.25 if role in ("v", "gate", "up", *WRITING) else 1.0
