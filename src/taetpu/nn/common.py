"""Building blocks for components: the model's sizes, the context of a call, projections and fixed numbers.

Shape annotations, here and in the slots, use the names batch, seq, dim, head, head_dim and hidden (the inner size of a
feed-forward network).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Shaped

from taetpu.core.config import Component, Config
from taetpu.core.errors import UserError, locate_errors, suggest
from taetpu.core.keys import Key, named
from taetpu.core.model_interface import Interface
from taetpu.nn.matmul import matmul


@runtime_checkable
class Init(Protocol):
    """The distribution of weights; see `nn.init`."""

    def draw(self, dims: "Dims", role: str, shape: tuple[int, ...], *, key: Key) -> Array:
        """Draw a weight of the given role and shape."""
        ...


@dataclass(frozen=True)
class Drawn:
    """A weight that `Dims.weight` drew. The axes are those of its arguments; they are empty if they are unknown."""

    role: str
    in_axes: tuple[int, ...]
    out_axes: tuple[int, ...]


@dataclass(frozen=True)
class Dims:
    """The sizes and model-wide settings with which components are built."""

    dim: int
    num_layers: int
    seq_len: int
    vocab_size: int
    bias: bool
    init: Init
    dropout: Any = 0.0  # a rate or a tracer; with the number 0.0, the program contains no dropout
    layer: Any = None  # the number of the layer that is built, from 0, as a tracer; None outside the layers
    branch: str = ""  # the branch whose norm or residual connection is built: `mixer` or `ffn`
    drawn: list[Drawn] | None = field(default=None, compare=False, repr=False)  # weights are recorded here if it is set
    interface: Interface | None = None  # what the model reads and returns, unless it maps tokens to their logits

    @property
    def input_size(self) -> int:
        """The number of rows of the matrix that embeds inputs: one for each token or feature."""
        return self.vocab_size if self.interface is None else self.interface.input_size

    @property
    def output_size(self) -> int:
        """The number of outputs at each position, which are logits of tokens by default."""
        return self.vocab_size if self.interface is None else self.interface.output_size

    def weight(
        self,
        key: Key,
        *shape: int,
        role: str = "in",
        in_axes: tuple[int, ...] | None = None,
        batch_axes: tuple[int, ...] = (),
    ) -> Float[Array, "..."]:
        """Draw a weight from the model's init.

        If `in_axes` is given, the weight is drawn as one or more matrices and then reshaped, so that an init needs to
        handle only matrices.

        Args:
            key: The key of the weight.
            shape: The shape of the weight.
            role: The role of the weight, for its distribution and its group in the optimizer; see `nn.init.ROLES`.
            in_axes: The axes that a product with the weight contracts. By default, this is the first axis of a matrix.
            batch_axes: The axes over independent matrices, such as heads or experts.
        """
        if in_axes is None:
            plain = ((0,), (1,)) if len(shape) == 2 else ((), ())
            return self.record(self.init.draw(self, role, shape, key=key), role, *plain)
        out_axes = tuple(i for i in range(len(shape)) if i not in (*in_axes, *batch_axes))
        order = (*batch_axes, *in_axes, *out_axes)
        copies, inputs, outputs = (prod(shape[i] for i in axes) for axes in (batch_axes, in_axes, out_axes))

        def draw(key: Key) -> Array:
            return self.init.draw(self, role, (inputs, outputs), key=key)

        drawn = jax.vmap(lambda i: draw(named(key, i)))(jnp.arange(copies)) if batch_axes else draw(key)
        turned = drawn.reshape([shape[i] for i in order])
        return self.record(turned.transpose([order.index(i) for i in range(len(shape))]), role, in_axes, out_axes)

    def record(self, array: Array, role: str, in_axes: tuple[int, ...], out_axes: tuple[int, ...]) -> Array:
        """Return a weight. If weights are recorded, it is marked with its number in `drawn` (see `nn.parameters`)."""
        if self.drawn is None:
            return array
        self.drawn.append(Drawn(role, in_axes, out_axes))
        return checkpoint_name(array, str(len(self.drawn) - 1))

    def zeros(self, size: int, bias: bool | None) -> Float[Array, " size"] | None:
        """Return a zero bias vector, or None if there is no bias. `bias=None` uses the model's setting."""
        return jnp.zeros(size) if (self.bias if bias is None else bias) else None


@dataclass(frozen=True)
class AttentionDims:
    """The numbers of query heads and key-value heads of an attention layer, and the width of a head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@jax.tree_util.register_pytree_node_class
class Carried:
    """Arrays that layers hand to later layers, by name: `ctx.carried[name]`, initially zeros.

    A component declares its arrays in `Component.carries`, and assigns to `ctx.carried[name]` to hand a value on.
    """

    def __init__(self, values: Mapping[str, Array], written: Mapping[str, Array]):
        self.values, self.written = dict(values), dict(written)

    @classmethod
    def zeros(cls, shapes: Mapping[str, tuple[int, ...]], batch: int, seq: int, dtype: Any) -> "Carried":
        """Return arrays of zeros with the shapes that components declare."""
        values = {name: jnp.zeros((batch, seq, *shape), dtype) for name, shape in sorted(shapes.items())}
        return cls(values, {name: jnp.zeros((), bool) for name in values})

    def __getitem__(self, name: str) -> Array:
        if name not in self.values:
            near = f"{suggest(name, self.values)} Or return" if self.values else "Return"
            remedy = f"{near} {{{name!r}: shape}} from `carries` of the config class (`carries_heads` in slot values)."
            raise UserError(f"no component declares {name!r} in `carries`", remedy=remedy)
        return self.values[name]

    def __setitem__(self, name: str, value: Array) -> None:
        old = self[name]
        if value.shape != old.shape:
            problem = f"a layer passes on {name!r} with shape {value.shape}, but `carries` declares {old.shape}"
            raise UserError(problem, remedy="Return the same shape, without batch and seq, from `carries`.")
        self.values[name], self.written[name] = value.astype(old.dtype), jnp.ones((), bool)

    def first(self, name: str, value: Array) -> Array:
        """Return the value that the first layer handed on. The layer hands on `value` if no layer has done so yet."""
        self[name] = jnp.where(self.written[name], self.values[name], value)
        return self.values[name]

    def copy(self) -> "Carried":
        """Return a copy, so that assignments in a layer do not change the object of the caller."""
        return Carried(self.values, self.written)

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        """Return the arrays, for JAX."""
        return (self.values, self.written), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any, Any]) -> "Carried":
        """Return the object with the given arrays, for JAX."""
        return cls(*parts)


def declared_arrays(component: Component, dims: Dims) -> dict[str, tuple[int, ...]]:
    """Return the arrays that a component declares in `carries`.

    Raises:
        UserError: if they are not shapes by name.
    """
    shapes = component.carries(dims)
    ok = isinstance(shapes, Mapping) and all(
        isinstance(shape, tuple) and all(isinstance(size, int) for size in shape) for shape in shapes.values()
    )
    if not ok:
        problem = f"carries of {component.slot} {component.kind!r} returns {shapes!r}, expected {{name: shape}}"
        raise UserError(problem, path=("layers",), remedy="Return e.g. {'mine': (dims.dim,)}, without batch and seq.")
    return dict(shapes)


@dataclass(frozen=True)
class Context:
    """The inputs to a component other than the activation."""

    tokens: Int[Array, "batch seq"] | Float[Array, "batch seq features"]
    positions: Int[Array, " seq"] | Int[Array, "batch seq"]
    layer: Any = None  # number of the layer, from 0; a tracer in a rolled stack
    key: Key | None = None  # the random key in training; None in evaluation
    carried: Any = None  # what earlier layers handed on; see `Carried`
    embedded: Any = None  # the stream before the first layer, `(batch, seq, dim)`
    x: Any = None  # in attention: the input of the mixer, `(batch, seq, dim)`
    shared_scores: Any = None  # the model's change of the scores by position, if layers share it
    segments: Any = None  # the document of each token, `(batch, seq)`; None if sequences are single documents
    real: Any = None  # False for padding, `(batch, seq)`; None if no token is padding
    cache: Any = None  # what the layer has cached of earlier tokens, a `LayerCache`; None without a cache
    prefix: Any = None  # the number of tokens of each sequence's prefix, `(batch,)`; None if the task has no prefixes

    @property
    def keys(self) -> "Context":
        """The context of the tokens that can be attended to: those in the cache, or all tokens without a cache."""
        return self if self.cache is None else self.cache.keys

    def of_queries(self, values: Shaped[Array, "batch key"]) -> Shaped[Array, "batch seq"]:
        """Return the part of an array over keys that belongs to the current tokens."""
        if self.cache is None:
            return values
        return jax.lax.dynamic_slice_in_dim(values, self.cache.index, self.tokens.shape[1], axis=1)

    @property
    def position_pairs(self) -> tuple[Array, Array]:
        """The positions of queries and of keys, which broadcast to `(query, key)` or `(batch, 1, query, key)`."""
        queries, keys = self.positions, self.keys.positions
        if queries.ndim == 1:
            return queries[:, None], keys[None, :]
        return queries[:, None, :, None], keys[:, None, None, :]

    @property
    def positions_in_document(self) -> Int[Array, " seq"] | Int[Array, "batch seq"]:
        """The position of each token in its document, from 0; `positions` if sequences are single documents."""
        if self.segments is None:
            return self.positions
        first = jnp.diff(self.segments, axis=1, prepend=-1) != 0
        return self.positions - jax.lax.cummax(jnp.where(first, self.positions, 0), axis=1)


@dataclass(frozen=True)
class LayerCache:
    """What a mixer has stored of earlier tokens, while a sequence is extended.

    Attributes:
        keys: The context of all tokens of the sequence: those before the current ones, the current ones, and unused
            places, which are marked as padding.
        index: The number of tokens before the current ones.
        values: The arrays of this layer, by name (see `cache_shapes` of a mixer). Assign to an entry to store it.
    """

    keys: Context
    index: Int[Array, ""]
    values: dict[str, Array]

    def extend(self, name: str, new: Float[Array, "batch head seq size"]) -> Float[Array, "batch head length size"]:
        """Store an array of the current tokens after those of earlier tokens, and return all of them."""
        at = (0, 0, self.index, 0)
        self.values[name] = jax.lax.dynamic_update_slice(self.values[name], new.astype(self.values[name].dtype), at)
        return self.values[name]


class Fixed(eqx.Module):
    """An untrained number in the model, such as a mask, a scale or a rate, stored with the model's arrays."""

    value: Array

    def __init__(self, value: Any):
        self.value = jnp.asarray(value, jnp.float32)


def check_slots(config: Config, slots: Iterable[str], dims: Dims) -> None:
    """Raise `UserError` if the component in a slot of a config cannot be built at the given sizes."""
    for slot in slots:
        with locate_errors(slot):
            getattr(config, slot).check(dims)


def is_fixed(node: Any) -> bool:
    """Return whether a node is a `Fixed` value, for use as `is_leaf`."""
    return isinstance(node, Fixed)


def partition_trainable(model: Any) -> tuple[Any, Any]:
    """Split a model into its trained arrays and the rest; see `combine_trainable`."""
    return eqx.partition(model, eqx.is_inexact_array, is_leaf=is_fixed)


def combine_trainable(params: Any, rest: Any) -> Any:
    """Return the model that `partition_trainable` split into these two parts."""
    return eqx.combine(params, rest, is_leaf=is_fixed)


def flatten_rows(x: Float[Array, "*lead size"]) -> Float[Array, "rows size"]:
    """Return `x` with all leading axes merged into one."""
    return x.reshape(-1, x.shape[-1])


def project(
    x: Float[Array, "*lead size_in"],
    w: Float[Array, "size_in size_out"],
    b: Float[Array, " size_out"] | None = None,
    *,
    out: Any = None,
) -> Float[Array, "*lead size_out"]:
    """Return `x @ w + b` as one rank-2 product in x's precision, accumulated in `out` (default: x's dtype).

    The product has rank 2, because XLA's CPU backend fuses element-wise operations into the gradients of rank-3
    products and then does not use its fast path. With rank-3 products, a train step was measured to take twice as long.
    """
    y = matmul(flatten_rows(x), w.astype(x.dtype), out)
    y = y if b is None else y + b.astype(y.dtype)
    return y.reshape(*x.shape[:-1], w.shape[-1])


class Identity(eqx.Module):
    """A module that returns its first argument and ignores all others."""

    def __call__(self, x: Array, *rest: Any) -> Array:
        """Return the first argument."""
        return x


class Unchanged(Component):
    """Base of the kinds that change nothing. They build the identity function."""

    def init(self, dims: Dims, *, key: Key) -> Identity:
        """Build the module at the given sizes."""
        return Identity()


class Dropout(eqx.Module):
    """Inverted dropout with probability `rate` if there is a key. Srivastava et al. 2014.

    The rate is float32 for every dtype of `x`. In bfloat16, a keep rate of 0.999 would round to 1 and drop nothing.
    """

    rate: Fixed

    def __call__(self, x: Array, key: Key | None) -> Array:
        """Return `x` with dropout if there is a key."""
        if key is None:
            return x
        keep = 1.0 - self.rate.value
        return jnp.where(jax.random.bernoulli(key, keep, x.shape), x / keep, 0.0).astype(x.dtype)


def build_dropout(dims: Dims) -> "Dropout | Identity":
    """Return the model's dropout, or the identity if the rate is a plain zero."""
    absent = isinstance(dims.dropout, int | float) and dims.dropout == 0
    return Identity() if absent else Dropout(Fixed(dims.dropout))
