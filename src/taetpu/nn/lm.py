"""The language model (embedding, positions, layers, final norm and logits), and its written and resolved config."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from pydantic import Field

from taetpu.core.config import Config, SlotMark, Traced, iter_components
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.keys import Key, named
from taetpu.core.model_interface import Interface
from taetpu.core.sites import rename_sites, site
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.nn.adapter import NoAdapter
from taetpu.nn.attention import AttentionConfig
from taetpu.nn.block import SLOTS, LayerConfig
from taetpu.nn.common import (
    AttentionDims,
    Carried,
    Context,
    Dims,
    Drawn,
    Identity,
    LayerCache,
    build_dropout,
    check_slots,
    declared_arrays,
)
from taetpu.nn.embedding import FLOAT32, Inputs, LogitForm, TiedConfig, with_form
from taetpu.nn.ffn.dense import SwiGLUConfig
from taetpu.nn.init import ScaledFanIn
from taetpu.nn.layer_dropout import NoLayerDropoutConfig
from taetpu.nn.layer_overrides import check_shared, owner_of, select_layers, with_own_mask
from taetpu.nn.logits import NoLogits
from taetpu.nn.norm import RMSNormConfig
from taetpu.nn.order import SequentialConfig
from taetpu.nn.position.rotary import RopeConfig
from taetpu.nn.post_block import NoAfter
from taetpu.nn.readout import NoReadout
from taetpu.nn.residual.base import num_streams
from taetpu.nn.residual.single import StandardConfig
from taetpu.nn.short_conv import NoShortConvConfig
from taetpu.nn.stack import Stack, build_stacks
from taetpu.nn.stem import NoStem, check_scaled_once
from taetpu.nn.values import check_first_values

Rate = Annotated[float, Field(ge=0, lt=1)]
MODEL_SLOTS = ("position", "norm", "embedding", "init", "stem", "readout", "logits")
Types = Annotated[int, Field(ge=0, le=2**10)] | None
MAX_DIM, MAX_LAYERS = 2**17, 1024


class ModelConfig(Config):
    """The model of a study file. `layers` overrides single layers: `{-1: {ffn: none}, "0:2": {norm: ...}}`."""

    dim: Annotated[int, Field(gt=0, le=MAX_DIM)]
    """Width of the residual stream."""
    num_layers: Annotated[int, Field(gt=0, le=MAX_LAYERS)]
    """Number of layers."""
    mixer: Annotated[Any, SlotMark("mixer")] = AttentionConfig()
    """The branch of each layer that mixes positions."""
    position: Annotated[Any, SlotMark("position")] = RopeConfig()
    """The encoding of token order."""
    norm: Annotated[Any, SlotMark("norm")] = RMSNormConfig()
    """Normalisation of the residual stream."""
    ffn: Annotated[Any, SlotMark("ffn")] = SwiGLUConfig()
    """The feed-forward branch of each layer."""
    residual: Annotated[Any, SlotMark("residual")] = StandardConfig()
    """The connection of a branch's output to the residual stream."""
    short_conv: Annotated[Any, SlotMark("short_conv")] = NoShortConvConfig()
    """The short convolution of the input of each branch."""
    order: Annotated[Any, SlotMark("order")] = SequentialConfig()
    """The order of the branches in each layer."""
    layer_dropout: Annotated[Any, SlotMark("layer_dropout")] = NoLayerDropoutConfig()
    """The branches or layers that training skips at random."""
    after: Annotated[Any, SlotMark("after")] = NoAfter()
    """The change of each block's output."""
    adapter: Annotated[Any, SlotMark("adapter")] = NoAdapter()
    """The change of the weights of each layer, for fine-tuning."""
    stem: Annotated[Any, SlotMark("stem")] = NoStem()
    """The change of the embeddings before the first layer."""
    readout: Annotated[Any, SlotMark("readout")] = NoReadout()
    """The change of the normalised stream before the output embedding."""
    logits: Annotated[Any, SlotMark("logits")] = NoLogits()
    """The change of the logits."""
    heads: Annotated[dict[str, Any], SlotMark("head", many=True)] = Field(default_factory=dict)
    """Further losses in training: a list of kinds, or settings by name."""
    embedding: Annotated[Any, SlotMark("embedding")] = TiedConfig()
    """The tables that map tokens to vectors and vectors to logits."""
    types: Types = None
    """Number of types of tokens, each with a vector that is added to the embeddings; `none`: the types of the task's
    tokens, without a vector if there is only one. With 0 or 1, all tokens have the same type."""
    init: Annotated[Any, SlotMark("init")] = ScaledFanIn()
    """The distribution of initial weights."""
    bias: bool = False
    """Whether projections and layer norms have biases, unless a component sets its own `bias`."""
    dropout: Annotated[Rate, Traced(neutral=0.0)] = 0.0
    """Probability of dropping an activation after the embedding or a branch, and of dropping an attention weight."""
    layers: dict[int | str, Any] = Field(default_factory=dict)
    """Overrides of single layers, by number, negative number or slice: `{-1: {ffn: none}, "0:2": {norm: layer}}`."""

    def resolve(self) -> "LMConfig":
        """Return the config with every layer written out.

        Raises:
            UserError: if a layer does not exist or rejects a setting. The path of the error starts with `layers`.
        """
        base = {slot: getattr(self, slot) for slot in SLOTS}
        changes: dict[int, dict[str, Any]] = {}
        for where, settings in self.layers.items():
            if not isinstance(settings, Mapping):
                raise UserError(f"{settings!r} is not a mapping of settings", path=("layers", where))
            for index in select_layers(where, self.num_layers):
                changes.setdefault(index, {}).update(settings)
        usual = load_config(LayerConfig, base, ("layers", 0))
        layers: list[LayerConfig] = []
        known: dict[LayerConfig, LayerConfig] = {}  # equal layers are one object, so that each is traced once
        for i in range(self.num_layers):
            made = load_config(LayerConfig, {**base, **changes[i]}, ("layers", i)) if i in changes else usual
            made = with_own_mask(made, i, self.num_layers, known)
            if made.same_as is not None:
                check_shared(i, made.same_as, changes[i], layers)
                owner = owner_of(i, made.same_as)
                made = layers[owner].model_copy(update={"same_as": owner})
            layers.append(made)
        return LMConfig(
            **{name: getattr(self, name) for name in LMConfig.model_fields if name != "layers"}, layers=tuple(layers)
        )


class LMConfig(Config):
    """The config with every layer written out. Models are built from it, and run identities depend on it.

    Fields have the same defaults as in `ModelConfig`. A run's identity omits fields that equal their default.
    """

    dim: Annotated[int, Field(gt=0, le=MAX_DIM)]
    position: Annotated[Any, SlotMark("position")] = RopeConfig()
    norm: Annotated[Any, SlotMark("norm")] = RMSNormConfig()
    embedding: Annotated[Any, SlotMark("embedding")] = TiedConfig()
    init: Annotated[Any, SlotMark("init")] = ScaledFanIn()
    stem: Annotated[Any, SlotMark("stem")] = NoStem()
    readout: Annotated[Any, SlotMark("readout")] = NoReadout()
    logits: Annotated[Any, SlotMark("logits")] = NoLogits()
    heads: Annotated[dict[str, Any], SlotMark("head", many=True)] = Field(default_factory=dict)
    types: Types = None
    bias: bool = False
    dropout: Annotated[Rate, Traced(neutral=0.0)] = 0.0
    layers: tuple[LayerConfig, ...]

    @property
    def predicts_next(self) -> bool:
        """Whether no position with a target sees the next token."""
        mixers = [layer.typed_mixer for layer in self.layers]
        return all(m.is_causal or (m.effective_mask is not None and m.effective_mask.hides_targets) for m in mixers)

    def dims(self, sizes: Interface | int, seq_len: int) -> Dims:
        """Return the sizes with which components are built; `sizes` as in `build`."""
        at = Interface.of(sizes)
        about = self.bias, self.init, self.dropout
        return Dims(self.dim, len(self.layers), seq_len, at.vocab_size, *about, interface=at)

    def check(self, sizes: Interface | int, seq_len: int) -> None:
        """Raise `UserError` if a component cannot be built at these sizes. The path is relative to this config."""
        dims = self.dims(sizes, seq_len)
        check_first_values(self.layers)
        check_scaled_once(self.stem, self.position)
        self.check_types(Interface.of(sizes))
        self.carries(dims)
        for i, layer in enumerate(self.layers):
            with locate_errors("layers", i):
                layer.check(dims)
                self.position.check_layer(layer.position, i)
            fixed = next((part for part in iter_components(layer) if part.static_layer), None)
            if layer.same_as is not None and fixed is not None:
                problem = (
                    f"layer {i} cannot share the parameters of layer {layer.same_as}, because {fixed.slot} "
                    f"{fixed.kind!r} differs between layers"
                )
                remedy = f"Use another {fixed.slot}, or remove same_as."
                raise UserError(problem, path=("layers", i, "same_as"), remedy=remedy)
        streams = [num_streams(layer.residual) for layer in self.layers]
        if other := next((i for i, number in enumerate(streams) if number != streams[0]), 0):
            problem = f"layer {other} has {streams[other]} residual streams, and layer 0 has {streams[0]}"
            raise UserError(problem, path=("layers", other, "residual"), remedy="Set model.residual for all layers.")
        for i, layer in enumerate(self.layers) if max(streams) > 1 else ():
            for slot in SLOTS:
                if (part := getattr(layer, slot)).one_stream:
                    problem = f"{slot} {part.kind!r} supports one residual stream, and this model has {streams[0]}"
                    remedy = f"Use another {slot}, or residual standard."
                    raise UserError(problem, path=("layers", i, slot), remedy=remedy)
        if self.position.shared:
            counts = {heads.num_heads for heads in self.shared_heads(dims)}
            if len(counts) != 1:
                problem = f"{self.position.kind!r} positions are shared, but the layers have {counts or 'no'} heads"
                remedy = "Use attention with one num_heads in all layers."
                if any(layer.mixer.plugin for layer in self.layers):
                    remedy += " The mixer of a plug-in must extend MixerConfig and set position_parts."
                raise UserError(problem, path=("position",), remedy=remedy)
        check_slots(self, MODEL_SLOTS, dims)
        for name, head in self.heads.items():
            if not (at := Interface.of(sizes)).is_language_model:
                problem = f"a head predicts tokens, and the task has {at}"
                raise UserError(problem, path=("heads", name), remedy="Remove the head.")
            with locate_errors("heads", name):
                head.check(dims)
                head.check_model(dims, self)

    def check_types(self, at: Interface) -> None:
        """Raise `UserError` if the model has no vectors for the types of a task's tokens."""
        if self.types is not None and at.features:
            problem = f"types={self.types} is for tokens, and the inputs of the task are real"
            raise UserError(problem, path=("types",), remedy="Remove types.")
        if self.types is not None and 1 < self.types < at.types:
            problem = f"the tokens of the task have {at.types} types, and the model has types={self.types}"
            remedy = f"Use types: {at.types}, or 1 to give all tokens the same type."
            raise UserError(problem, path=("types",), remedy=remedy)

    def build_types(self, dims: Dims, at: Interface, *, key: Key) -> Float[Array, "types dim"] | None:
        """Build the vectors of the types of tokens, or the bias of real inputs; None if there are none."""
        rows = (at.types if at.types > 1 or at.features else 0) if self.types is None else self.types
        return dims.weight(key, rows, self.dim, role="position") if rows else None

    def build(
        self, sizes: Interface | int, seq_len: int, *, key: Key, apart: bool = False, drawn: list[Drawn] | None = None
    ) -> "LM":
        """Return a newly initialised model. Numbers in the config may be tracers (see `core.static_dynamic.bind`).

        Args:
            sizes: The sizes of the inputs and outputs; or the number of different tokens.
            seq_len: The maximum length of a sequence.
            key: The key of the parameters.
            apart: Whether to build one stack per layer (see `build_stacks`).
            drawn: A list to which a description of every weight is appended (see `nn.parameters`).
        """
        dims, at = replace(self.dims(sizes, seq_len), drawn=drawn), Interface.of(sizes)
        final = self.norm.placement != "post"
        return LM(
            embedding=self.embedding.init(dims, key=named(key, "embedding")),
            position=self.position.at_input(dims, key=named(key, "position")),
            shared_scores=self.build_shared_scores(dims, key=named(key, "shared_scores")),
            stem=self.stem.init(dims, key=named(key, "stem")),
            dropout=build_dropout(dims),
            stacks=build_stacks(self.layers, dims, key=named(key, "layers"), apart=apart),
            norm=self.norm.init(dims, key=named(key, "norm")) if final else None,
            logits=self.logits.init(dims, key=named(key, "logits")),
            streams=num_streams(self.layers[0].residual),
            carries=tuple(sorted(self.carries(dims).items())),
            heads={name: head.build(dims, self, key=named(key, "heads", name)) for name, head in self.heads.items()},
            types=self.build_types(dims, at, key=named(key, "types")),
            readout=self.readout.init(dims, key=named(key, "readout")),
        )  # fmt: skip

    def carries(self, dims: Dims) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays that layers hand to later layers, by name.

        Raises:
            UserError: if two components declare different shapes for a name.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in {id(layer): layer for layer in self.layers}.values():
            for component in iter_components(layer):
                for name, shape in declared_arrays(component, dims).items():
                    if shapes.setdefault(name, shape) != shape:
                        problem = f"layers pass on {name!r} with shapes {shapes[name]} and {shape}"
                        raise UserError(problem, path=("layers",), remedy="Use equal sizes in all layers.")
        return shapes

    def build_shared_scores(self, dims: Dims, *, key: Key) -> Any:
        """Build the module that changes the scores of all layers by position; None if layers do not share one."""
        if not self.position.shared:
            return None
        return self.position.on_scores(dims, self.shared_heads(dims)[0], key=key)

    def shared_heads(self, dims: Dims) -> list[AttentionDims]:
        """Return the heads of each layer that uses the positions of the model."""
        sharing = [layer.typed_mixer for layer in self.layers if layer.position == self.position]
        heads = [mixer.heads(dims) for mixer in sharing if "on_scores" in mixer.position_parts]
        return [sizes for sizes in heads if sizes is not None]


def build_model(
    config: LMConfig, sizes: Interface | int, seq_len: int, *, key: Key, live: frozenset[str] = frozenset()
) -> "LM":
    """Return a newly initialised model from a loaded config, in which masks are not encoded as arrays yet.

    Args:
        config: The config.
        sizes: The sizes of the inputs and outputs; or the number of different tokens.
        seq_len: The maximum length of a sequence.
        key: The key of the parameters.
        live: Further fields that become arrays, although they are neutral (see `core.static_dynamic.split`).

    Raises:
        UserError: if a component cannot be built at these sizes.
    """
    config.check(sizes, seq_len)
    return bind(*split(config, promoted_fields(config) | live)).build(sizes, seq_len, key=key)


class LM(eqx.Module):
    """A model that maps tokens, or real inputs, to logits, or other outputs.

    Post-norm models have no final norm: their last block ends with a norm.
    """

    embedding: Any
    position: Any
    shared_scores: Any
    stem: Any
    dropout: Any
    stacks: tuple[Stack, ...]
    norm: Any
    logits: Any
    streams: int = eqx.field(static=True, default=1)  # see `nn.residual.num_streams`
    carries: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True, default=())  # see `nn.common.Carried`
    loss_chunk: int | None = eqx.field(static=True, default=None)  # see `nn.compute_options`
    heads: dict[str, Any] = eqx.field(default_factory=dict)  # further losses in training; see `nn.head`
    types: Any = None  # `(types, dim)`, added to embeddings: by type, or as a bias of real inputs
    readout: Any = Identity()
    logit_form: LogitForm = eqx.field(static=True, default=FLOAT32)  # of training steps; see `nn.compute_options`
    cast: str = eqx.field(static=True, default="use")  # see `nn.cast`

    def __call__(
        self,
        tokens: Inputs,
        *,
        key: Key | None = None,
        dtype: Any = jnp.float32,
        segments: Int[Array, "batch seq"] | None = None,
        types: Int[Array, "batch seq"] | None = None,
        padding: Bool[Array, "batch seq"] | None = None,
        prefix: Int[Array, " batch"] | None = None,
    ) -> Float[Array, "batch seq outputs"]:
        """Return the logits in float32.

        Args:
            tokens: The tokens or real inputs.
            key: The key of dropout; None for a forward pass without dropout.
            dtype: The precision of activations and products.
            segments: The document of each token; None if sequences are single documents.
            types: The type of each token, such as the first or the second text; None if all have type 0.
            padding: True for tokens that no other token attends to and that have no position, such as those on the left
                of a shorter sequence in a batch. They are read as zeros, so that nothing depends on their value. Their
                logits have no meaning.
            prefix: The number of tokens at the start of each sequence that see each other with the mask `prefix`.
        """
        options: dict[str, Any] = {"segments": segments, "types": types, "padding": padding, "prefix": prefix}
        x = self.final(tokens, key=key, dtype=dtype, **options)
        return site("logits", self.decode(x))

    def decode(self, x: Float[Array, "batch seq dim"]) -> Float[Array, "batch seq outputs"]:
        """Return the logits of the normalised stream after the last layer, in float32."""
        return self.logits(self.embedding.decode(self.readout(x)))

    def decode_in_training(self, x: Float[Array, "batch seq dim"]) -> Float[Array, "batch seq outputs"]:
        """Return logits in float32, of which memory may hold another form: `logit_form`."""
        logits = with_form(self.embedding, self.logit_form).decode(self.readout(x))
        return self.logits(logits.astype(jnp.float32))

    def final(self, tokens: Inputs, **options: Any) -> Float[Array, "batch seq dim"]:
        """Return the normalised stream after the last layer, from which logits are computed.

        Args:
            tokens: The tokens.
            **options: See `__call__`.
        """
        ctx, x = self.start(tokens, **options)
        return site("final", self.read_out(self.run(x, ctx)[0]))

    def start(
        self,
        tokens: Inputs,
        *,
        key: Key | None = None,
        dtype: Any = jnp.float32,
        segments: Int[Array, "batch seq"] | None = None,
        types: Int[Array, "batch seq"] | None = None,
        padding: Bool[Array, "batch seq"] | None = None,
        prefix: Int[Array, " batch"] | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Context, Float[Array, "batch seq *streams dim"]]:
        """Return the context of the tokens, and the residual stream before the first layer. See `__call__`.

        `cache` describes earlier tokens and these (see `nn.cache`).
        """
        real = None if padding is None else ~padding
        if real is not None:
            tokens = jnp.where(jnp.expand_dims(real, tuple(range(2, tokens.ndim))), tokens, 0)
            types = None if types is None else jnp.where(real, types, 0)
        if cache is not None:
            positions = jax.lax.dynamic_slice_in_dim(cache.keys.positions, cache.index, tokens.shape[1], axis=1)
        elif real is None:
            positions = jnp.arange(tokens.shape[1])
        else:
            positions = jnp.maximum(jnp.cumsum(real, -1) - 1, 0)
        ctx = Context(
            tokens, positions, key=key, shared_scores=self.shared_scores, segments=segments, real=real, cache=cache,
            prefix=prefix,
        )  # fmt: skip
        x = self.embedding.encode(tokens)
        if self.types is not None:
            same = types is None or len(self.types) == 1
            x = x + self.types[jnp.zeros((), jnp.int32) if same else types]
        x = x.astype(dtype)
        x = self.stem(self.position(x, ctx), replace(ctx, key=None if key is None else named(key, "stem")))
        x = site("embed", self.dropout(x, None if key is None else named(key, "embed")))
        return replace(ctx, embedded=x), x if self.streams == 1 else jnp.repeat(x[:, :, None], self.streams, 2)

    def run(
        self,
        x: Float[Array, "batch seq *streams dim"],
        ctx: Context,
        *,
        only: tuple[Any, Any] | None = None,
        cached: tuple[dict[str, Array], ...] | None = None,
    ) -> tuple[Float[Array, "batch seq *streams dim"], tuple[Any, ...]]:
        """Return the residual stream after the layers, and the cache of each stack.

        Args:
            x: The residual stream before the first layer that is computed.
            ctx: The context, from `start`.
            only: The first layer to compute and the layer after the last, as integers or tracers; all by default.
            cached: The cache of each stack; None without a cache.

        Raises:
            UserError: if layers hand arrays to later layers and only some layers are computed.
        """
        if only is not None and self.carries:
            names = ", ".join(repr(name) for name, _ in self.carries)
            problem = f"the layers hand {names} to later layers, so the model cannot start at a later layer"
            raise UserError(problem, remedy="Compute all layers.")
        batch, seq = ctx.tokens.shape[:2]
        carried, after = Carried.zeros(dict(self.carries), batch, seq, x.dtype), []
        for number, stack in enumerate(self.stacks):
            block = None if stack.source is None else self.stacks[stack.source].block
            entry = None if cached is None else cached[number]
            x, carried, kept = stack(x, carried, ctx, block, only=only, cached=entry)
            after.append(kept)
        return x, tuple(after)

    def resume(
        self,
        x: Float[Array, "batch seq *streams dim"],
        tokens: Inputs,
        layer: int | Int[Array, ""],
        **options: Any,
    ) -> Float[Array, "batch seq outputs"]:
        """Return the logits of a forward pass that starts at a layer, in float32.

        Args:
            x: The residual stream before the layer: `start(tokens)[1]` for layer 0, and otherwise the site `residual`
                of the layer before.
            tokens: The tokens.
            layer: The number of the layer. A tracer gives one program for all layers.
            **options: `segments`, `types`, `padding` and `prefix` of the whole pass; see `__call__`.

        Raises:
            UserError: if layers hand arrays to later layers.
        """
        ctx, _ = self.start(tokens, dtype=x.dtype, **options)
        x, _ = self.run(x, ctx, only=(layer, sum(stack.size for stack in self.stacks)))
        return site("logits", self.decode(site("final", self.read_out(x))))

    def read_out(self, x: Float[Array, "batch seq *streams dim"]) -> Float[Array, "batch seq dim"]:
        """Return the normalised stream from the residual stream after a layer, usually the last."""
        x = x if self.streams == 1 else x.sum(2)
        with rename_sites("norm", "final_norm"):
            return x if self.norm is None else self.norm(x)
