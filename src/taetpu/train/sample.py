"""Autoregressive sampling of tokens."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from taetpu.core.keys import Key, named
from taetpu.nn.lm import LM


def draw(
    logits: Float[Array, "*lead vocab"], key: Key, *, temperature: float = 1.0, top_k: int | None = None,
    top_p: float | None = None, min_p: float | None = None,
) -> Int[Array, "*lead"]:  # fmt: skip
    """Return a token drawn from each row of logits.

    Args:
        logits: unnormalised log probabilities.
        key: the random key.
        temperature: the divisor of the logits; 0 selects the most likely token.
        top_k: the number of most likely tokens to sample from (Fan et al. 2018).
        top_p: the minimum total probability of the tokens to sample from. The smallest such set of tokens is used
            (nucleus sampling; Holtzman et al. 2020).
        min_p: the minimum probability of the tokens to sample from, as a share of the largest (Nguyen et al. 2024).
    """
    if temperature == 0:
        return logits.argmax(-1).astype(jnp.int32)
    logits = logits.astype(jnp.float32) / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        logits = jnp.where(logits < jax.lax.top_k(logits, top_k)[0][..., -1:], -jnp.inf, logits)
    if top_p is not None and top_p < 1:
        ranked = -jnp.sort(-logits, axis=-1)
        before = jnp.cumsum(jax.nn.softmax(ranked, -1), -1) - jax.nn.softmax(ranked, -1)
        least = jnp.min(jnp.where(before < top_p, ranked, jnp.inf), -1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if min_p is not None and min_p > 0:
        logits = jnp.where(logits < logits.max(-1, keepdims=True) + jnp.log(min_p), -jnp.inf, logits)
    return jax.random.categorical(key, logits).astype(jnp.int32)


def continue_tokens(
    model: LM, prompt: Int[Array, " start"], key: Key, *, length: int, window: int, temperature: float = 1.0,
    top_k: int | None = None, top_p: float | None = None,
) -> Int[Array, " start+length"]:  # fmt: skip
    """Return `prompt` continued by `length` tokens, each from a full forward pass over the last `window` tokens.

    Positions after the current token hold zeros, which a causal model does not read. See `draw` for the other
    arguments.
    """
    start = prompt.shape[0]
    total = start + length
    buffer = jnp.zeros(max(total, window), jnp.int32).at[:start].set(prompt)

    def add(buffer: Array, at: Array) -> tuple[Array, None]:
        first = jnp.maximum(at - window, 0)
        logits = model(jax.lax.dynamic_slice(buffer, (first,), (window,))[None])[0, at - first - 1]
        token = draw(logits, named(key, at), temperature=temperature, top_k=top_k, top_p=top_p)
        return buffer.at[at].set(token), None

    return jax.lax.scan(add, buffer, jnp.arange(start, total))[0][:total]


def answer(
    model: LM, prompts: Int[Array, "batches batch seq"], lengths: Int[Array, "batches batch"], *, new: int,
    dtype: DTypeLike = jnp.float32,
) -> Int[Array, "batches batch new"]:  # fmt: skip
    """Return the most likely token at each position after prompts, each from a full forward pass.

    Args:
        model: the model.
        prompts: the prompts, padded on the right with at least `new` tokens, which a causal model does not read.
        lengths: the number of tokens of each prompt.
        new: the number of tokens to generate.
        dtype: dtype of activations and matrix products.
    """

    def continue_batch(batch: tuple[Array, Array]) -> Array:
        tokens, length = batch
        row = jnp.arange(len(tokens))

        def add(tokens: Array, number: Array) -> tuple[Array, Array]:
            place = length + number
            token = model(tokens, dtype=dtype)[row, place - 1].argmax(-1).astype(jnp.int32)
            return tokens.at[row, place].set(token), token

        return jax.lax.scan(add, tokens, jnp.arange(new))[1].T

    return jax.lax.map(continue_batch, (prompts, lengths))
