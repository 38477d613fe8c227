"""Sampling: tokens drawn one after another, from the model as it is."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from taetpu.core.keys import Key, named
from taetpu.nn.lm import LM


def draw(
    logits: Float[Array, "*lead vocab"], key: Key, *, temperature: float = 1.0, top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Array, "*lead"]:  # fmt: skip
    """A token from each row of logits.

    Args:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: only the k most likely tokens. Fan et al. 2018.
        top_p: only the fewest tokens that together reach this probability (nucleus). Holtzman et al. 2020.
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
    return jax.random.categorical(key, logits).astype(jnp.int32)


def continue_tokens(
    model: LM, prompt: Int[Array, " start"], key: Key, *, length: int, window: int, temperature: float = 1.0,
    top_k: int | None = None, top_p: float | None = None,
) -> Int[Array, " start+length"]:  # fmt: skip
    """`prompt` and `length` more tokens. The model sees the last `window` tokens; each is one whole forward pass.

    Positions after the one that is read hold zeros; a causal model does not see them.
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
