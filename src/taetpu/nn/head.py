"""Slot `head`: further training losses, computed from the activations of the forward pass.

A model has any number of heads, by name: `model.heads: {future: {kind: multi-token}}`. Heads act in training only.
Evaluation, samples and metrics use the logits of the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from taetpu.core.config import Component, Traced, iter_components
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named, root_key
from taetpu.core.registry import register
from taetpu.core.sites import Read
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.nn.common import Carried, Context, Dims, declared_arrays, project
from taetpu.nn.state import Updated

if TYPE_CHECKING:
    from taetpu.nn.lm import LM, LMConfig

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
        segments: The document of each token; None if sequences are single documents.
        key: The random key for this head in this step; None outside of training steps.
    """

    sites: Mapping[str, Read]
    tokens: Int[Array, "batch seq"]
    targets: Int[Array, "batch seq"]
    weights: Float[Array, "batch seq"]
    model: "LM"
    cross_entropy: Callable[[Stream, Array, Array, Callable[[Array], Array]], Losses]
    segments: Int[Array, "batch seq"] | None = None
    key: Key | None = None

    def targets_ahead(self, count: int) -> tuple[Int[Array, "batch seq"], Float[Array, "batch seq"]]:
        """Return the targets `count` positions later and their weights, which are 0 after the end of a document."""
        targets, weights = (shift(array, count) for array in (self.targets, self.weights))
        if self.segments is None:
            return targets, weights
        return targets, weights * (shift(self.segments, count) == self.segments)


def shift(array: Array, count: int) -> Array:
    """Return the values of an array `(batch, seq)` that are `count` positions later; 0 for the last positions."""
    return jnp.pad(array[:, count:], ((0, 0), (0, count)))


class HeadConfig(Component):
    """Base of heads. The loss of a head is the sum of its position losses divided by the weight of the batch's targets.

    `init` builds a module that maps `HeadInputs` to losses `(batch, seq)`, which are multiplied by `weights`. A head
    whose module depends on other parts of the model overrides `build` instead, and `check_model` for its conditions.
    """

    weight: Annotated[NonNegativeFloat, Traced()] = 0.3
    """Factor of the head's loss in the training loss."""

    def sites(self) -> tuple[str, ...]:
        """Return the sites that the head reads."""
        return ("final",)

    def init(self, dims: Dims, *, key: Key) -> Any:
        """Build the module at the given sizes."""
        raise NotImplementedError

    def build(self, dims: Dims, model: "LMConfig", *, key: Key) -> Any:
        """Build the module for a model with the given config."""
        return self.init(dims, key=key)

    def check_model(self, dims: Dims, model: "LMConfig") -> None:
        """Raise `UserError` if this head cannot be used in a model with the given config, which has been checked."""


def check_ahead(field: str, count: int, dims: Dims) -> None:
    """Raise `UserError` if sequences have no targets `count` positions after the first one."""
    if count >= dims.seq_len:
        problem = f"{field}={count} leaves no target in sequences of {dims.seq_len} tokens"
        raise UserError(problem, path=(field,), remedy=f"Use {field} of at most {dims.seq_len - 1}.")


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
        check_ahead("ahead", self.ahead, dims)

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
            targets, weights = seen.targets_ahead(k)
            total = total + seen.cross_entropy(project(x, w), targets, weights, seen.model.decode)
        return total / len(self.weights)


@register("head", "mtp")
class MTPConfig(HeadConfig):
    """h_k = block_k(W_k [norm(h_(k-1)); norm(embedding of token t + k)]), which predicts token t + 1 + k. DeepSeek-V3.

    h_0 is the normalised stream after the last layer, and k = 1 to `depth`. Each module has two norms, the projection
    W_k `(2 dim, dim)`, one layer with the settings of the model's layer `layer`, and a final norm if the model has one.
    h_k is the output of that norm, as in the reference; the paper does not mention it. The embedding and the output
    embedding are those of the model. The loss is the mean over k. `weight` is the paper's lambda, which is 0.3 in the
    first two thirds of training and 0.1 after that.

    Auxiliary losses of these layers, such as the balance loss of experts, are recorded as `train/heads/NAME`.

    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv 2412.19437, section 2.2.
    Reference: transformers.modeling_layers.MtpLayer.
    Excludes: a `layer` that hands arrays to later layers or reads them, because the modules are not among the layers,
    and a `layer` with state, such as ffn deepseek-moe.
    """

    depth: PositiveInt = 1
    """Number of modules, each of which predicts one further token at each position."""
    layer: int = -1
    """Number of the layer whose settings the modules have, or a negative number from the end."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        check_ahead("depth", self.depth, dims)
        if not -dims.num_layers <= self.layer < dims.num_layers:
            problem = f"no layer {self.layer} in a model of {dims.num_layers} layers"
            remedy = f"Use 0 to {dims.num_layers - 1}, or -1 to {-dims.num_layers} from the end."
            raise UserError(problem, path=("layer",), remedy=remedy)

    def check_model(self, dims: Dims, model: "LMConfig") -> None:
        """Raise `UserError` if the layer whose settings the modules have depends on other layers, or has state."""
        layer, remedy = model.layers[self.layer], "Set `layer` to another layer, or change that layer."
        for part in iter_components(layer):
            if names := declared_arrays(part, dims):
                problem = f"{part.slot} {part.kind!r} of layer {self.layer} hands {min(names)!r} to later layers"
                raise UserError(problem, path=("layer",), remedy=remedy)
        config = bind(*split(layer, promoted_fields(layer)))
        layer_dims = replace(dims, layer=self.layer_number(dims, layer))
        block = eqx.filter_eval_shape(lambda: config.init(layer_dims, key=root_key(0)))
        if states := [node for node in jax.tree.leaves(block, is_leaf=is_updated) if is_updated(node)]:
            problem = f"layer {self.layer} has state that changes in training, in {type(states[0]).__name__}"
            raise UserError(problem, path=("layer",), remedy=remedy)

    def layer_number(self, dims: Dims, layer: Any) -> Any:
        """Return the number of the layer whose settings the modules have, as its components expect it."""
        number = self.layer % dims.num_layers
        return number if any(part.static_layer for part in iter_components(layer)) else jnp.asarray(number)

    def build(self, dims: Dims, model: "LMConfig", *, key: Key) -> "MTP":
        """Build the modules for a model with the given config."""
        layer = model.layers[self.layer].model_copy(update={"same_as": None, "drop": ()})
        layer_dims = replace(dims, layer=self.layer_number(dims, layer))

        def build(key: Key) -> MTPModule:
            return MTPModule(
                hidden_norm=model.norm.init(dims, key=named(key, "hidden_norm")),
                token_norm=model.norm.init(dims, key=named(key, "token_norm")),
                projection=dims.weight(named(key, "projection"), 2 * dims.dim, dims.dim),
                block=layer.init(layer_dims, key=named(key, "block")),
                norm=None if model.norm.placement == "post" else model.norm.init(dims, key=named(key, "norm")),
            )

        return MTP(tuple(build(named(key, k)) for k in range(self.depth)), self.layer % dims.num_layers)


def is_updated(node: Any) -> bool:
    """Return whether a node is a module with state (see `nn.state`)."""
    return isinstance(node, Updated)


class MTPModule(eqx.Module):
    """One module of multi-token prediction; see `MTPConfig`."""

    hidden_norm: Any
    token_norm: Any
    projection: Float[Array, "both dim"]
    block: Any
    norm: Any

    def __call__(self, hidden: Stream, ctx: Context, model: "LM") -> Stream:
        """Return the normalised stream after the module, given that before it; `ctx` has the later tokens."""
        embedded = model.embedding.encode(ctx.tokens).astype(hidden.dtype)
        both = jnp.concatenate([self.hidden_norm(hidden), self.token_norm(embedded)], -1)
        x = project(both, self.projection)
        ctx = replace(ctx, embedded=x)
        x = self.block(x if model.streams == 1 else jnp.repeat(x[:, :, None], model.streams, 2), ctx)
        x = x if model.streams == 1 else x.sum(2)
        return x if self.norm is None else self.norm(x)


class MTP(eqx.Module):
    """Successive modules, each of which predicts one further token; see `MTPConfig`."""

    modules: tuple[MTPModule, ...]
    layer: int = eqx.field(static=True)

    def __call__(self, seen: HeadInputs) -> Losses:
        """Return the weighted losses of all modules at each position, divided by their number."""
        hidden: Any = seen.sites["final"]
        total: Any = 0.0
        for k, module in enumerate(self.modules, start=1):
            ctx = Context(
                shift(seen.tokens, k), jnp.arange(seen.tokens.shape[1]), layer=jnp.asarray(self.layer),
                key=None if seen.key is None else named(seen.key, k), carried=Carried({}, {}),
                shared_scores=seen.model.shared_scores, segments=seen.segments,
            )  # fmt: skip
            hidden = module(hidden, ctx, seen.model)
            total = total + seen.cross_entropy(hidden, *seen.targets_ahead(k), seen.model.decode)
        return total / len(self.modules)


@register("head", "early-exit")
class EarlyExitConfig(HeadConfig):
    """The loss of the model's own logits, decoded from the stream after earlier layers. Elhoushi et al. 2024.

    The final norm and the output embedding are those of the model. The loss is the mean over `layers`, weighted with
    (l + 1)(l + 2) / 2 for layer l, from 0, with `weighting: depth`. These are the weights of LayerSkip in the authors'
    code; the formula of the paper, l (l + 1) / 2, omits the first layer. The code divides the training loss by the sum
    of all weights. If `layers` contains all L layers but the last one, its scale s of early losses equals a `weight` of
    s (L - 1) / 3, up to this division.

    LayerSkip also skips layers at random (`layer_dropout: layerskip`) and trains only some exits in each step, which
    this component does not.

    Source: Elhoushi et al. 2024, "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", arXiv
    2404.16710.
    """

    example: ClassVar = {"layers": [0]}

    layers: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]
    """Numbers of the layers after which the stream is decoded."""
    weighting: Literal["uniform", "depth"] = "uniform"
    """Weights of the losses: `uniform`, or larger for later layers (`depth`)."""

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
        factors = tuple((n + 1) * (n + 2) // 2 if self.weighting == "depth" else 1 for n in self.layers)
        return EarlyExit(self.layers, factors)


class EarlyExit(eqx.Module):
    """The decoded streams of earlier layers; see `EarlyExitConfig`."""

    layers: tuple[int, ...] = eqx.field(static=True)
    factors: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, seen: HeadInputs) -> Losses:
        """Return the weighted mean of the losses after the given layers at each position."""
        model, streams = seen.model, seen.sites["residual"]
        total: Any = 0.0
        for layer, factor in zip(self.layers, self.factors, strict=True):
            x = model.read_out(streams[layer])
            losses = seen.cross_entropy(x, seen.targets, seen.weights, model.decode)
            total = total + (losses if factor == 1 else factor * losses)
        return total / sum(self.factors)
