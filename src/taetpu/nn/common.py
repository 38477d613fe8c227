"""What every component is built from: the model's sizes, the call's context, projections, fixed numbers.

Shape legend, here and in the slots: batch, seq, dim; head, head_dim; hidden = the inner size of a feed-forward.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from taetpu.core.keys import Key, named
from taetpu.nn.matmul import matmul


@runtime_checkable
class Init(Protocol):
    """Draws a weight; see `nn/init.py`."""

    def draw(self, dims: "Dims", role: str, shape: tuple[int, ...], *, key: Key) -> Array: ...


@dataclass(frozen=True)
class Dims:
    """The sizes and model-wide settings that components are built with."""

    dim: int
    num_layers: int
    seq_len: int
    vocab_size: int
    bias: bool
    init: Init
    dropout: Any = 0.0  # a rate, a tracer, or 0.0: then no dropout exists in the program

    def weight(
        self,
        key: Key,
        *shape: int,
        role: str = "in",
        in_axes: tuple[int, ...] | None = None,
        batch_axes: tuple[int, ...] = (),
    ) -> Float[Array, "..."]:
        """A weight by the model's init. Roles: `in`, `out` (writes to the residual stream), `embedding`, `position`.

        A weight of more than two axes is drawn as the matrices that it holds, so that an init need know nothing else.

        Args:
            in_axes: the axes that its product sums over; the first one of a matrix.
            batch_axes: the axes that count independent matrices, such as heads or experts.
        """
        if in_axes is None:
            return self.init.draw(self, role, shape, key=key)
        out_axes = tuple(i for i in range(len(shape)) if i not in (*in_axes, *batch_axes))
        order = (*batch_axes, *in_axes, *out_axes)
        copies, inputs, outputs = (prod(shape[i] for i in axes) for axes in (batch_axes, in_axes, out_axes))

        def draw(key: Key) -> Array:
            return self.init.draw(self, role, (inputs, outputs), key=key)

        drawn = jax.vmap(lambda i: draw(named(key, i)))(jnp.arange(copies)) if batch_axes else draw(key)
        turned = drawn.reshape([shape[i] for i in order])
        return turned.transpose([order.index(i) for i in range(len(shape))])

    def zeros(self, size: int, bias: bool | None) -> Float[Array, " size"] | None:
        """A bias vector, or None; `bias=None` follows the model's setting."""
        return jnp.zeros(size) if (self.bias if bias is None else bias) else None


@dataclass(frozen=True)
class Context:
    """What a component may know besides its input."""

    tokens: Int[Array, "batch seq"]
    positions: Int[Array, " seq"]
    layer: Any = None  # number of the layer, from 0; a tracer in a rolled stack
    key: Key | None = None  # what may be drawn from in training; None in evaluation


class Fixed(eqx.Module):
    """A number of the model that is not trained: a mask, a scale, a rate. It travels with the model's arrays."""

    value: Array

    def __init__(self, value: Any):
        self.value = jnp.asarray(value, jnp.float32)


def is_fixed(node: Any) -> bool:
    return isinstance(node, Fixed)


def partition_trainable(model: Any) -> tuple[Any, Any]:
    """Split a model into what is trained and the rest; `join` puts them together."""
    return eqx.partition(model, eqx.is_inexact_array, is_leaf=is_fixed)


def combine_trainable(params: Any, rest: Any) -> Any:
    return eqx.combine(params, rest, is_leaf=is_fixed)


def flatten_rows(x: Float[Array, "*lead size"]) -> Float[Array, "rows size"]:
    """All leading axes as one."""
    return x.reshape(-1, x.shape[-1])


def project(
    x: Float[Array, "*lead size_in"],
    w: Float[Array, "size_in size_out"],
    b: Float[Array, " size_out"] | None = None,
    *,
    out: Any = None,
) -> Float[Array, "*lead size_out"]:
    """`x @ w + b` as one rank-2 product in x's precision, accumulated and returned as `out` (x's unless given).

    Rank 2 because XLA's CPU backend fuses element-wise work into rank-3 gradients and leaves its fast path (measured:
    a whole train step took twice as long).
    """
    y = matmul(flatten_rows(x), w.astype(x.dtype), out)
    y = y if b is None else y + b.astype(y.dtype)
    return y.reshape(*x.shape[:-1], w.shape[-1])


class Identity(eqx.Module):
    """Leaves its first argument as it is."""

    def __call__(self, x: Array, *rest: Any) -> Array:
        return x


class Dropout(eqx.Module):
    """Zeroes entries with probability `rate` while a key is there. Srivastava et al. 2014, inverted.

    The rate stays in float32 whatever x is: in bfloat16 a keep rate of 0.999 is 1, which drops nothing.
    """

    rate: Fixed

    def __call__(self, x: Array, key: Key | None) -> Array:
        if key is None:
            return x
        keep = 1.0 - self.rate.value
        return jnp.where(jax.random.bernoulli(key, keep, x.shape), x / keep, 0.0).astype(x.dtype)


def build_dropout(dims: Dims) -> "Dropout | Identity":
    """The model's dropout as a node: nothing at all when the rate is a plain zero."""
    absent = isinstance(dims.dropout, int | float) and dims.dropout == 0
    return Identity() if absent else Dropout(Fixed(dims.dropout))
