"""Slot `readout`: a change of the normalised stream after the last layer, before the output embedding."""

from typing import Annotated, Any, Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.core.config import Component, SlotMark
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites
from taetpu.nn.common import Dims, Unchanged, project
from taetpu.nn.ffn.dense import ACTIVATIONS
from taetpu.nn.norm import LayerNormConfig

Stream = Float[Array, "batch seq dim"]
Activation = Literal["gelu-erf", "gelu-tanh", "relu", "relu2", "silu"]


@register("readout", "none")
class NoReadout(Unchanged):
    """The stream unchanged."""


@register("readout", "dense")
class DenseConfig(Component):
    """N(act(x W + b)), the head of masked language models. Devlin et al. 2019 (BERT); Warner et al. 2024 (ModernBERT).

    Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    arXiv 1810.04805; Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast,
    Memory Efficient, and Long Context Finetuning and Inference", arXiv 2412.13663.
    Reference: transformers.models.bert.modeling_bert.BertPredictionHeadTransform.
    """

    activation: Activation = "gelu-erf"
    """The activation, named like the kinds of slot `ffn`."""
    norm: Annotated[Any, SlotMark("norm")] = LayerNormConfig()
    """The norm after the activation."""
    bias: bool | None = None
    """Whether the projection has a bias; `none`: as `model.bias`."""

    def init(self, dims: Dims, *, key: Key) -> "Dense":
        """Build the module at the given sizes."""
        return Dense(
            dense=dims.weight(named(key, "dense"), dims.dim, dims.dim),
            dense_bias=dims.zeros(dims.dim, self.bias),
            norm=self.norm.init(dims, key=named(key, "norm")),
            activation=self.activation,
        )


class Dense(eqx.Module):
    """A projection, an activation and a norm; see `DenseConfig`."""

    dense: Float[Array, "dim dim"]
    dense_bias: Float[Array, " dim"] | None
    norm: Any
    activation: str = eqx.field(static=True)

    def __call__(self, x: Stream) -> Stream:
        """Return the stream from which the output embedding computes logits."""
        with rename_sites("norm", "readout_norm"):
            return self.norm(ACTIVATIONS[self.activation](project(x, self.dense, self.dense_bias)))


@register("readout", "pooler")
class PoolerConfig(Component):
    """tanh(x W + b), the head of classifiers. Devlin et al. 2019 (BERT).

    It acts at each position. In BERT, classes are predicted from the first position alone.

    Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    arXiv 1810.04805.
    Reference: transformers.models.bert.modeling_bert.BertPooler.
    """

    bias: bool | None = None
    """Whether the projection has a bias; `none`: as `model.bias`."""

    def init(self, dims: Dims, *, key: Key) -> "Pooler":
        """Build the module at the given sizes."""
        return Pooler(dims.weight(named(key, "pooler"), dims.dim, dims.dim), dims.zeros(dims.dim, self.bias))


class Pooler(eqx.Module):
    """A projection and tanh; see `PoolerConfig`.

    Its arrays do not have the names of those in `Dense`, so a classifier that starts from a masked language model draws
    them.
    """

    pooler: Float[Array, "dim dim"]
    pooler_bias: Float[Array, " dim"] | None

    def __call__(self, x: Stream) -> Stream:
        """Return the stream from which the output embedding computes logits."""
        return jnp.tanh(project(x, self.pooler, self.pooler_bias))
