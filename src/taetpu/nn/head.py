"""Slot `head`: further training losses, computed from the activations of the forward pass.

A model has any number of heads, by name: `model.heads: {future: {kind: multi-token}}`. Heads act in training only.
Evaluation, samples and metrics use the logits of the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from taetpu.core.config import Component, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import Read
from taetpu.nn.common import Dims, project

if TYPE_CHECKING:
    from taetpu.nn.lm import LM

Stream = Float[Array, "batch seq dim"]
Losses = Float[Array, "batch seq"]


@dataclass(frozen=True)
class HeadInputs:
    """The inputs of a head.

    Attributes:
        sites: The activations at the sites that the head's config names. In a stack, they are an array `(layers, ...)`.
        tokens: The input tokens.
        targets: The target of each position.
        weights: The weight of each target.
        model: The model.
        cross_entropy: The function `(x, targets, weights, decode) -> (batch, seq)` that returns the weighted cross
            entropy in nats at each position. `decode` maps activations `(batch, seq, dim)` to logits. If the losses of
            the model are chunked, the logits of only one chunk are in memory.
    """

    sites: Mapping[str, Read]
    tokens: Int[Array, "batch seq"]
    targets: Int[Array, "batch seq"]
    weights: Float[Array, "batch seq"]
    model: "LM"
    cross_entropy: Callable[[Stream, Array, Array, Callable[[Array], Array]], Losses]


class HeadConfig(Component):
    """Base of heads. The loss of a head is the sum of its position losses divided by the weight of the batch's targets.

    `init` builds a module that maps `HeadInputs` to losses `(batch, seq)`, which are multiplied by `weights`.
    """

    weight: Annotated[NonNegativeFloat, Traced()] = 0.3
    """Factor of the head's loss in the training loss."""

    def sites(self) -> tuple[str, ...]:
        """Return the sites that the head reads."""
        return ("final",)

    def init(self, dims: Dims, *, key: Key) -> Any:
        """Build the module at the given sizes."""
        raise NotImplementedError


@register("head", "multi-token")
class MultiTokenConfig(HeadConfig):
    """Prediction of the tokens after the next token: logits of token t + 1 + k from W_k x_t, k = 1 to `ahead`.

    x is the normalised stream after the last layer. The output embedding is that of the model, and the loss is the mean
    over k. Gloeckle et al. 2024 with linear heads; their heads are Transformer layers.

    Source: Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction", arXiv 2404.19737.
    """

    ahead: PositiveInt = 1
    """Number of further tokens that are predicted at each position."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        if self.ahead >= dims.seq_len:
            problem = f"ahead={self.ahead} leaves no target in sequences of {dims.seq_len} tokens"
            raise UserError(problem, path=("ahead",), remedy=f"Use ahead of at most {dims.seq_len - 1}.")

    def init(self, dims: Dims, *, key: Key) -> "MultiToken":
        """Build the module at the given sizes."""
        return MultiToken(tuple(dims.weight(named(key, k), dims.dim, dims.dim) for k in range(self.ahead)))


class MultiToken(eqx.Module):
    """One projection for each further token; see `MultiTokenConfig`."""

    weights: tuple[Float[Array, "dim dim"], ...]

    def __call__(self, seen: HeadInputs) -> Losses:
        """Return the weighted losses of all further tokens at each position, divided by their number."""
        x: Any = seen.sites["final"]
        total: Any = 0.0
        for k, w in enumerate(self.weights, start=1):
            # The last k positions have no target.
            targets, weights = (jnp.pad(a[:, k:], ((0, 0), (0, k))) for a in (seen.targets, seen.weights))
            total = total + seen.cross_entropy(project(x, w), targets, weights, seen.model.decode)
        return total / len(self.weights)


@register("head", "early-exit")
class EarlyExitConfig(HeadConfig):
    """The loss of the model's own logits, decoded from the stream after earlier layers. Elhoushi et al. 2024.

    The final norm and the output embedding are those of the model. The loss is the mean over `layers`. LayerSkip also
    skips layers at random (`layer_dropout: layerskip`) and changes the weights of the layers in training, which this
    component does not.

    Source: Elhoushi et al. 2024, "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", arXiv
    2404.16710.
    """

    example: ClassVar = {"layers": [0]}

    layers: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    """Numbers of the layers after which the stream is decoded."""

    def sites(self) -> tuple[str, ...]:
        """Return the sites that the head reads."""
        return ("residual",)

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        for i, layer in enumerate(self.layers):
            if layer >= dims.num_layers:
                problem = f"no layer {layer} in a model of {dims.num_layers} layers"
                raise UserError(problem, path=("layers", i), remedy=f"Use 0 to {dims.num_layers - 1}.")

    def init(self, dims: Dims, *, key: Key) -> "EarlyExit":
        """Build the module at the given sizes."""
        return EarlyExit(self.layers)


class EarlyExit(eqx.Module):
    """The decoded streams of earlier layers; see `EarlyExitConfig`."""

    layers: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, seen: HeadInputs) -> Losses:
        """Return the weighted losses after the given layers at each position, divided by their number."""
        model, streams = seen.model, seen.sites["residual"]
        total: Any = 0.0
        for layer in self.layers:
            x = model.read_out(streams[layer])
            total = total + seen.cross_entropy(x, seen.targets, seen.weights, model.decode)
        return total / len(self.layers)
