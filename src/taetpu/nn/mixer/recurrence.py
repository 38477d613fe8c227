"""Recurrences of a matrix state, computed in chunks of tokens: with matrix products within and a scan over chunks.

The state S of a head is `(key, value)`. A token decays it by exp(g), g <= 0, writes to it and reads it: o = S^T q.
Within a chunk, with G_i the sum of g up to token i, token i reads from token j <= i with the factor exp(G_i - G_j).

Everything is float32. In sequences of several documents (`segments`), a token reads only from its own document.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Keys = Float[Array, "batch head seq key"]
Values = Float[Array, "batch head seq value"]
Numbers = Float[Array, "batch head seq"]
State = Float[Array, "batch head key value"]
Segments = Int[Array, "batch seq"] | None


class Chunk(NamedTuple):
    """A chunk of tokens.

    Attributes:
        q, k, v, g, beta: the arrays `(batch, head, chunk, ...)`; beta is None without the delta rule.
        within: the factors exp(G_i - G_j) for j <= i, and 0 elsewhere, `(batch, head, chunk, chunk)`.
        before: the factor exp(G_i) on what token i reads of earlier chunks, `(batch, head, chunk, 1)`.
        after: the factor on what token j leaves for later chunks, `(batch, head, chunk, 1)`.
        kept: the factor on the state of earlier chunks that later chunks read, `(batch, head, 1, 1)`.
    """

    q: Array
    k: Array
    v: Array
    beta: Array | None
    within: Array
    before: Array
    after: Array
    kept: Array


def _split(x: Array, chunk: int) -> Array:
    """Return an array `(batch, head, seq, ...)` as chunks `(chunks, batch, head, chunk, ...)`, padded with zeros."""
    seq = x.shape[2]
    x = jnp.pad(x, [(0, 0), (0, 0), (0, -seq % chunk), *[(0, 0)] * (x.ndim - 3)])
    return jnp.moveaxis(x.reshape(*x.shape[:2], -1, chunk, *x.shape[3:]), 2, 0)


def _chunks(q: Keys, k: Keys, v: Values, g: Numbers, beta: Numbers | None, segments: Segments, chunk: int) -> Chunk:
    """Return all chunks, with a leading axis."""
    chunk = min(chunk, q.shape[2])
    total = jnp.cumsum(_split(g, chunk), -1)
    lower = jnp.tril(jnp.ones((chunk, chunk), bool))
    apart = jnp.where(lower, total[..., :, None] - total[..., None, :], -jnp.inf)
    within, before, after = jnp.exp(apart), jnp.exp(total), jnp.exp(total[..., -1:] - total)
    kept = jnp.exp(total[..., -1:])
    if segments is not None:
        # Padding at the end belongs to the last document. Before the first token, the state is zero.
        padded = jnp.pad(segments, ((0, 0), (0, -segments.shape[1] % chunk)), mode="edge")
        document = jnp.moveaxis(padded.reshape(len(padded), -1, chunk), 1, 0)[:, :, None]
        last = document[..., -1:]
        previous = jnp.concatenate([document[:1, ..., :1], last[:-1]])
        within = jnp.where(document[..., :, None] == document[..., None, :], within, 0.0)
        before, after = jnp.where(document == previous, before, 0.0), jnp.where(document == last, after, 0.0)
        kept = jnp.where(last == previous, kept, 0.0)
    parts = (None if a is None else _split(a, chunk) for a in (q, k, v, beta))
    return Chunk(*parts, within, before[..., None], after[..., None], kept[..., None])  # pyright: ignore


def _join(o: Float[Array, "chunks batch head chunk value"], seq: int) -> Values:
    """Return chunks as a sequence."""
    o = jnp.moveaxis(o, 0, 2)
    return o.reshape(*o.shape[:2], -1, o.shape[-1])[:, :, :seq]


def decayed_sum(
    q: Keys, k: Keys, v: Values, g: Numbers, state: State, segments: Segments = None, chunk: int = 64
) -> tuple[Values, State]:
    """Return o_t = S_t^T q_t with S_t = exp(g_t) S_{t-1} + k_t v_t^T, and the last state.

    Source: Dao and Gu 2024, "Transformers are SSMs", arXiv 2405.21060, section 6 (the chunked computation).
    """

    def step(state: State, part: Chunk) -> tuple[State, Array]:
        inside = (part.q @ jnp.swapaxes(part.k, -1, -2) * part.within) @ part.v
        read = part.before * (part.q @ state)
        return part.kept * state + jnp.swapaxes(part.k * part.after, -1, -2) @ part.v, inside + read

    last, o = jax.lax.scan(step, state, _chunks(q, k, v, g, None, segments, chunk))
    return _join(o, q.shape[2]), last


def gated_delta_rule(
    q: Keys, k: Keys, v: Values, g: Numbers, beta: Numbers, state: State, segments: Segments = None, chunk: int = 64
) -> tuple[Values, State]:
    """Return o_t = S_t^T q_t with R = exp(g_t) S_{t-1} and S_t = R + beta_t k_t (v_t - R^T k_t)^T, and the last state.

    The written values of a chunk, beta_t (v_t - R^T k_t), solve a triangular system.

    Source: Yang et al. 2024, "Gated Delta Networks", arXiv 2412.06464, section 3.3 (the chunked computation).
    """
    chunks = _chunks(q, k, v, g, beta, segments, chunk)
    assert chunks.beta is not None
    pairs = chunks.k @ jnp.swapaxes(chunks.k, -1, -2) * chunks.within
    solved = unit_lower_inverse(chunks.beta[..., None] * pairs) * chunks.beta[..., None, :]

    def step(state: State, now: tuple[Chunk, Array]) -> tuple[State, Array]:
        part, solved = now
        written = solved @ (part.v - part.before * (part.k @ state))
        inside = (part.q @ jnp.swapaxes(part.k, -1, -2) * part.within) @ written
        after = part.kept * state + jnp.swapaxes(part.k * part.after, -1, -2) @ written
        return after, inside + part.before * (part.q @ state)

    last, o = jax.lax.scan(step, state, (chunks, solved))
    return _join(o, q.shape[2]), last


SMALL = 16
"""Blocks on the diagonal up to this size are inverted together; products of smaller matrices would not be faster."""


@jax.custom_vjp
def unit_lower_inverse(a: Float[Array, "*lead size size"]) -> Float[Array, "*lead size size"]:
    """Return the inverse of I + A, with A the part of `a` below the diagonal. Only reverse mode differentiates it.

    Blocks on the diagonal are inverted, and pairs of neighbours are merged: [[P, 0], [C, Q]] has the inverse
    [[P', 0], [-Q' C P', Q']]. jax's triangular solve of a batch is not used, because it can wait forever for a thread
    if a CPU is divided into several devices (seen with jax 0.10.2).
    """
    size = a.shape[-1]
    whole = 1 << (size - 1).bit_length()
    a = jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, whole - size)] * 2)
    block = min(whole, SMALL)
    inverse = _invert_small(_diagonal_blocks(a, block))
    while block < whole:
        first, second = inverse[..., ::2, :, :], inverse[..., 1::2, :, :]
        corner = -second @ _diagonal_blocks(a, 2 * block)[..., block:, :block] @ first
        upper = jnp.concatenate([first, jnp.zeros_like(first)], -1)
        inverse = jnp.concatenate([upper, jnp.concatenate([corner, second], -1)], -2)
        block *= 2
    return inverse[..., 0, :size, :size]


def _inverse_forward(a: Array) -> tuple[Array, Array]:
    inverse = unit_lower_inverse(a)
    return inverse, inverse


def _inverse_backward(inverse: Array, gradient: Array) -> tuple[Array]:
    """Return -Y^T G Y^T below the diagonal, because the inverse Y changes by -Y dA Y."""
    return (jnp.tril(-inverse.mT @ gradient @ inverse.mT, -1),)


unit_lower_inverse.defvjp(_inverse_forward, _inverse_backward)


def _diagonal_blocks(a: Float[Array, "*lead size size"], block: int) -> Float[Array, "*lead count block block"]:
    count = a.shape[-1] // block
    blocks = [a[..., i * block : (i + 1) * block, i * block : (i + 1) * block] for i in range(count)]
    return jnp.stack(blocks, -3)


def _invert_small(a: Float[Array, "*lead size size"]) -> Float[Array, "*lead size size"]:
    """Return the inverse of I + A, with all pairs of blocks of a size merged by two products of whole matrices."""
    size = a.shape[-1]
    row, column = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    inverse, block = jnp.broadcast_to(jnp.eye(size), a.shape), 1
    while block < size:
        between = (row // (2 * block) == column // (2 * block)) & (row // block > column // block)
        inverse = inverse - inverse @ jnp.where(between, a, 0.0) @ inverse
        block *= 2
    return inverse
