"""Slot `stem`: a change to the stream between the input embeddings and the first layer."""

from typing import Annotated, Any

import equinox as eqx
from jaxtyping import Array, Float
from pydantic import PositiveFloat

from taetpu.core.config import Component, SlotMark, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites
from taetpu.nn.common import Context, Dims, Fixed, Unchanged
from taetpu.nn.norm import LayerNormConfig


@register("stem", "none")
class NoStem(Unchanged):
    """The embeddings unchanged."""


@register("stem", "scale")
class StemScaleConfig(Component):
    """The embeddings times `factor`, by default sqrt(dim). Vaswani et al. 2017, section 3.4; Gemma.

    Gemma rounds the factor to the dtype of the weights; here it is rounded to that of activations. Positions are added
    before: `learned` ones are scaled too, and `sinusoidal` ones multiply embeddings by sqrt(dim) themselves.

    Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.
    Reference: transformers.models.gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding.
    Excludes: sinusoidal positions, unless the factor is set.
    """

    factor: Annotated[PositiveFloat | None, Traced(neutral=None)] = None
    """Factor; `none`: sqrt(dim)."""

    def init(self, dims: Dims, *, key: Key) -> "StemScale":
        """Build the module at the given sizes."""
        return StemScale(Fixed(dims.dim**0.5 if self.factor is None else self.factor))


def check_scaled_once(stem: Component, position: Component) -> None:
    """Raise `UserError` if both a stem and sinusoidal positions multiply embeddings by sqrt(dim)."""
    if isinstance(stem, StemScaleConfig) and stem.factor is None and position.kind == "sinusoidal":
        problem = "sinusoidal positions multiply embeddings by sqrt(dim) already, so stem 'scale' would do it twice"
        raise UserError(problem, path=("stem",), remedy="Remove the stem, or set its factor.")


class StemScale(eqx.Module):
    """A factor on the embeddings."""

    factor: Fixed

    def __call__(self, x: Float[Array, "batch seq dim"], ctx: Context) -> Float[Array, "batch seq dim"]:
        """Return the scaled embeddings."""
        return x * self.factor.value.astype(x.dtype)


@register("stem", "norm")
class StemNormConfig(Component):
    """Layer normalisation of the embeddings. Le Scao et al. 2022 (BLOOM); Devlin et al. 2019 (BERT).

    Source: Le Scao et al. 2022, "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model", arXiv 2211.05100;
    Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", arXiv
    1810.04805.
    """

    norm: Annotated[Any, SlotMark("norm")] = LayerNormConfig()
    """The norm."""

    def init(self, dims: Dims, *, key: Key) -> "StemNorm":
        """Build the module at the given sizes."""
        return StemNorm(self.norm.init(dims, key=named(key, "norm")))


class StemNorm(eqx.Module):
    """A norm of the embeddings."""

    norm: Any

    def __call__(self, x: Float[Array, "batch seq dim"], ctx: Context) -> Float[Array, "batch seq dim"]:
        """Return the normalised embeddings."""
        with rename_sites("norm", "stem_norm"):
            return self.norm(x)
