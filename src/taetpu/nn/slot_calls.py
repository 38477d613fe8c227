"""The calls to each slot's components in the model, with the shapes of arguments and results."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from taetpu.core.config import Component, iter_components
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.registry import kinds
from taetpu.nn.attention import ATTENTION_SLOTS
from taetpu.nn.block import SLOTS
from taetpu.nn.common import AttentionDims, Context, Dims, declared_arrays, partition_trainable
from taetpu.nn.position.base import PositionConfig

Shape = jax.ShapeDtypeStruct
OPTIONAL = ("mixer", "ffn", "qk_norm", "values", "gate")  # slots whose kind `none` builds no module


@dataclass(frozen=True)
class Setup:
    """The sizes with which a component is built and called.

    Attributes:
        dims: The sizes of the model.
        batch: The number of sequences.
        seq: The length of the sequences.
        heads: The number of query heads in the attention that contains the component.
        kv_heads: The number of key-value heads in that attention.
        head_dim: The width of a head in that attention.
        dtype: The dtype of activations.
        position: The position config of a mixer.
        streams: The number of residual streams.
        rotated: The sizes of the parts of queries and keys that positions act on; None: as in that attention.
    """

    dims: Dims
    batch: int
    seq: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: Any
    position: Any = None
    streams: int = 1
    rotated: AttentionDims | None = None

    @property
    def attention(self) -> AttentionDims:
        """The sizes of the attention that contains the component."""
        return AttentionDims(self.heads, self.kv_heads, self.head_dim)

    @property
    def position_heads(self) -> AttentionDims:
        """The sizes of the parts of queries and keys that positions act on."""
        return self.rotated or self.attention


def stream_shape(at: Setup) -> Shape:
    """Return the shape of the input and output of a branch."""
    return Shape((at.batch, at.seq, at.dims.dim), at.dtype)


def residual_shape(at: Setup) -> Shape:
    """Return the shape of the residual stream."""
    streams = () if at.streams == 1 else (at.streams,)
    return Shape((at.batch, at.seq, *streams, at.dims.dim), at.dtype)


def query_shape(at: Setup) -> Shape:
    """Return the shape of queries, and of the outputs of heads."""
    return Shape((at.batch, at.heads, at.seq, at.head_dim), at.dtype)


def key_shape(at: Setup) -> Shape:
    """Return the shape of keys and values."""
    return Shape((at.batch, at.kv_heads, at.seq, at.head_dim), at.dtype)


def position_query_shape(at: Setup) -> Shape:
    """Return the shape of the parts of queries that positions act on."""
    return Shape((at.batch, at.position_heads.num_heads, at.seq, at.position_heads.head_dim), at.dtype)


def position_key_shape(at: Setup) -> Shape:
    """Return the shape of the parts of keys that positions act on."""
    return Shape((at.batch, at.position_heads.num_kv_heads, at.seq, at.position_heads.head_dim), at.dtype)


def total_shape(at: Setup) -> Shape:
    """Return the shape of the totals by which attention weights are divided."""
    return Shape((at.batch, at.heads, at.seq, 1), jnp.float32)


def score_shape(at: Setup) -> Shape:
    """Return the shape of attention scores."""
    return Shape((at.batch, at.heads, at.seq, at.seq), jnp.float32)


def token_shape(at: Setup) -> Shape:
    """Return the shape of tokens, or of real inputs."""
    features = 0 if at.dims.interface is None else at.dims.interface.features
    return Shape((at.batch, at.seq, features), jnp.float32) if features else Shape((at.batch, at.seq), jnp.int32)


def embedded_shape(at: Setup) -> Shape:
    """Return the shape of embeddings, which are float32."""
    return Shape((at.batch, at.seq, at.dims.dim), jnp.float32)


def logit_shape(at: Setup) -> Shape:
    """Return the shape of logits, which are float32."""
    return Shape((at.batch, at.seq, at.dims.output_size), jnp.float32)


@dataclass(frozen=True)
class Part:
    """A call to a component in the model.

    Attributes:
        given: Functions that return the shapes of the arguments, by name.
        gives: A function that returns the shape of the result, or one function for each result.
        method: The name of the module's method to call.
        context: Whether the last argument is a `Context`.
        build: A function `(component, setup, key) -> module`.
        builder: The name of the component's method that builds the module.
    """

    given: dict[str, Callable[[Setup], Shape]]
    gives: Callable[[Setup], Shape] | tuple[Callable[[Setup], Shape], ...]
    method: str = "__call__"
    context: bool = True
    build: Callable[[Any, Setup, Key], Any] = lambda component, at, key: component.init(at.dims, key=key)
    builder: str = "init"

    def call(self, module: Any, arguments: tuple[Any, ...], ctx: Context) -> Any:
        """Return the result of a call to the module with the arguments and, if `context` is set, the context.

        What the module hands to later layers does not change the given context, so that calls can be compared.
        """
        given = ctx if ctx.carried is None else replace(ctx, carried=ctx.carried.copy())
        return getattr(module, self.method)(*arguments, *([given] if self.context else []))

    def arguments(self, at: Setup) -> tuple[Shape, ...]:
        """Return the shapes of the arguments."""
        return tuple(shape(at) for shape in self.given.values())

    def expected(self, at: Setup) -> Any:
        """Return the shape of the result, or a tuple of shapes."""
        return tuple(shape(at) for shape in self.gives) if isinstance(self.gives, tuple) else self.gives(at)


def build_in_attention(component: Any, at: Setup, key: Key) -> Any:
    """Build the module of a slot whose `init` takes the sizes of the attention layer."""
    return component.init(at.dims, at.attention, key=key)


X = {"x": stream_shape}
PARTS: dict[str, dict[str, Part]] = {
    "mixer": {"": Part(X, stream_shape, build=lambda c, at, key: c.init(at.dims, at.position.in_layer, key=key))},
    "ffn": {"": Part(X, stream_shape)},
    "norm": {"": Part(X, stream_shape, context=False)},
    "after": {"": Part({"x": residual_shape}, residual_shape)},
    "residual": {"": Part({"x": residual_shape, "y": stream_shape}, residual_shape, context=False)},
    "short_conv": {"": Part({"h": stream_shape}, stream_shape)},
    "order": {},  # called with the block
    "layer_dropout": {
        "branch": Part({"y": stream_shape}, stream_shape, "branch"),
        "layer": Part({"x": residual_shape, "y": residual_shape}, residual_shape, "layer"),
    },
    "adapter": {},  # called with the block
    "rope_scaling": {},  # called by rope
    "mask": {},  # returns a mask, of any shape that can be broadcast
    "qk_norm": {
        "": Part({"q": query_shape, "k": key_shape}, (query_shape, key_shape), context=False, build=build_in_attention)
    },
    "values": {"": Part({"v": key_shape}, key_shape, build=build_in_attention)},
    "normalizer": {"": Part({"scores": score_shape}, (score_shape, total_shape), build=build_in_attention)},
    "gate": {"": Part({"z": query_shape, "x": stream_shape}, query_shape, build=build_in_attention)},
    "stem": {"": Part(X, stream_shape)},
    "readout": {"": Part(X, stream_shape, context=False)},
    "logits": {"": Part({"logits": logit_shape}, logit_shape, context=False)},
    "scores": {"": Part({"scores": score_shape}, score_shape)},
    "embedding": {
        "encode": Part({"tokens": token_shape}, embedded_shape, "encode", context=False),
        "decode": Part(X, logit_shape, "decode", context=False),
    },
    "position": {
        "at_input": Part(X, stream_shape, build=lambda c, at, key: c.at_input(at.dims, key=key), builder="at_input"),
        "in_attention": Part(
            {"q": position_query_shape, "k": position_key_shape},
            (position_query_shape, position_key_shape),
            build=lambda c, at, key: c.in_attention(at.position_heads.head_dim),
            builder="in_attention",
        ),
        "on_scores": Part(
            {"scores": score_shape, "q": query_shape, "k": query_shape},
            score_shape,
            build=lambda c, at, key: c.on_scores(at.dims, at.attention, key=key),
            builder="on_scores",
        ),
    },
}


def carried_shapes(component: Any, dims: Dims, heads: AttentionDims) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that a component, or its slot in attention, hands to later layers, by name."""
    shapes = component.carries_heads(dims, heads) if hasattr(component, "carries_heads") else {}
    for part in iter_components(component):  # also the components in its slots
        shapes = {**shapes, **declared_arrays(part, dims)}
    return shapes


def acts_at(component: Any, name: str) -> bool:
    """Return whether the model calls a component in a part.

    A position component may be called in any of its parts, or in none.
    """
    return not isinstance(component, PositionConfig) or component.acts(name)


def in_first_layer(component: Component, dims: Dims) -> Dims:
    """Return the sizes with which a component is built in the mixer branch of the first layer."""
    if component.slot not in (*SLOTS, *ATTENTION_SLOTS):
        return dims
    return replace(dims, layer=0 if component.static_layer else jnp.zeros((), jnp.int32), branch="mixer")


def build_part(component: Component, part: Part, at: Setup, key: Key) -> Any:
    """Return the module that a component builds for a part, or None for the kind `none`.

    Raises:
        UserError: if the result is not a module with the part's method, if the module holds a value that is not an
            array, or if a parameter is not float32.
    """
    at = replace(at, dims=in_first_layer(component, at.dims))
    module, said = part.build(component, at, key), f"{part.builder} of {component.slot} {component.kind!r}"
    if module is None:
        none = kinds(component.slot).get("none")
        if component.slot in OPTIONAL and none is not None and isinstance(component, none):
            return None
        remedy = "Return the module."
        if component.slot in OPTIONAL:
            remedy += f" To remove the {component.slot}, write `{component.slot}: none`."
        raise UserError(f"{said} returns None, expected a module", remedy=remedy)
    if isinstance(module, type) or not callable(getattr(module, part.method, None)):
        returned = f"the class {module.__name__}" if isinstance(module, type) else describe_value(module)
        raise UserError(f"{said} returns {returned}, expected a module with a method {part.method}")
    for where, leaf in jax.tree.leaves_with_path(module):
        name = jax.tree_util.keystr(where, simple=True, separator=".")
        if not hasattr(leaf, "dtype"):
            problem = (
                f"{said} returns a module that holds {describe_value(leaf)}{' in ' if name else ''}{name}, not an array"
            )
            raise UserError(problem, remedy="Use Fixed(...) for a number, and eqx.field(static=True) for other values.")
    for where, array in jax.tree.leaves_with_path(partition_trainable(module)[0]):
        if jnp.result_type(array) != jnp.float32:
            name = jax.tree_util.keystr(where, simple=True, separator=".")
            raise UserError(f"{said}: parameter {name} is {array.dtype}, expected float32")
    return module


def describe_value(value: Any) -> str:
    """Return a text such as `(2, 8, 16) float32` for an array, and the value or its type for other values."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(map(describe_value, value)) or 'nothing'}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{tuple(value.shape)} {value.dtype}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return f"an object of type {type(value).__name__}"


def matches(result: Any, expected: Any) -> bool:
    """Return whether a result, or each result in a sequence, has the expected shape and dtype."""
    if isinstance(expected, tuple):
        return isinstance(result, tuple | list) and len(result) == len(expected) and all(map(matches, result, expected))
    return getattr(result, "shape", None) == expected.shape and getattr(result, "dtype", None) == expected.dtype


def trace_result(part: Part, module: Any, at: Setup, ctx: Context) -> Any:
    """Trace a call to a module, and return the result as tracers."""
    results: list[Any] = []
    jax.eval_shape(lambda *arguments: results.append(part.call(module, arguments, ctx)), *part.arguments(at))
    return results[0]


def suggest_cast(result: Any, expected: Any) -> str:
    """Return a remedy if only the dtype is wrong, and an empty string otherwise."""
    same = getattr(result, "shape", None) == getattr(expected, "shape", ...)
    return f"End with .astype({'x.dtype' if len(expected.shape) == 3 else 'jnp.float32'})" if same else ""
