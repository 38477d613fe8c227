"""Positions that are added to the input embeddings."""

from typing import Annotated

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.nn.common import Context, Dims, Fixed
from taetpu.nn.position.base import PositionConfig
from taetpu.nn.position.rotary import angles


@register("position", "learned")
class LearnedConfig(PositionConfig):
    """A trained vector for each position, added to the embeddings. Radford et al. 2018.

    Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".
    Reference: torch.nn.Embedding.
    """

    extrapolates = False

    def at_input(self, dims: Dims, *, key: Key) -> "Learned":
        """Build the module that acts on the input embeddings."""
        return Learned(dims.weight(named(key, "weight"), dims.seq_len, dims.dim, role="position"))


class Learned(eqx.Module):
    """A table of trained position vectors."""

    weight: Float[Array, "max_seq dim"]

    def __call__(self, x: Float[Array, "batch seq dim"], ctx: Context) -> Float[Array, "batch seq dim"]:
        """Return the embeddings plus the vector of each position.

        With padding or a cache, the length of the arrays says nothing about the number of tokens. Positions beyond the
        table then give NaN.
        """
        if ctx.keys.real is not None:
            return x + self.weight.at[ctx.positions_in_document].get(mode="fill", fill_value=jnp.nan).astype(x.dtype)
        seq, known = ctx.keys.tokens.shape[1], len(self.weight)
        if seq > known:  # an index beyond the table would read its last row
            raise UserError(
                f"a sequence of {seq} tokens is longer than the table of learned positions, which has {known}",
                remedy=f"Use at most {known} tokens, or train with a longer task.seq_len or with rope positions.",
            )
        return x + self.weight[ctx.positions_in_document].astype(x.dtype)


@register("position", "sinusoidal")
class SinusoidalConfig(PositionConfig):
    """sin and cos of position / base^(2i/dim), interleaved, added to sqrt(dim) times the embeddings.

    Vaswani et al. 2017, section 3.5 (factor: section 3.4). At initialisation, the table (root mean square 0.7) and the
    embeddings have the same scale with the default init. Up to a dim of about 1250, the table outweighs embeddings with
    a std of 0.02, as of `gpt2-scaled`.

    Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.
    Reference: transformers.models.speecht5.modeling_speecht5.SpeechT5ScaledPositionalEncoding.
    """

    base: Annotated[PositiveFloat, Traced()] = 10000.0
    """Wavelengths range from 2 pi to 2 pi times this base."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        if dims.dim % 2:
            raise UserError(f"sinusoidal positions need an even dim, got {dims.dim}")

    def at_input(self, dims: Dims, *, key: Key) -> "Sinusoidal":
        """Build the module that acts on the input embeddings."""
        return Sinusoidal(Fixed(self.base))


class Sinusoidal(eqx.Module):
    """The sinusoidal table, computed from its base."""

    base: Fixed

    def __call__(self, x: Float[Array, "batch seq dim"], ctx: Context) -> Float[Array, "batch seq dim"]:
        """Return sqrt(dim) times the embeddings plus the table."""
        angle = angles(ctx.positions_in_document, x.shape[-1], self.base.value)
        table = jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(*angle.shape[:-1], x.shape[-1])
        return x * x.shape[-1] ** 0.5 + table.astype(x.dtype)
