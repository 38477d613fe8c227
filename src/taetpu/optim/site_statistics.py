"""Statistics of the activations at a site, for metrics of training and evaluation and for `taetpu lens`."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Tokens: TypeAlias = Float[Array, "batch seq features"]
Real: TypeAlias = Bool[Array, "batch seq"]
"""Whether a position holds a token, not padding."""
PerSequence: TypeAlias = Float[Array, " batch"]
SMALLEST = 1e-30


def attention_entropy(pattern: Float[Array, "*batch query key"]) -> Float[Array, "*batch query"]:
    """Return the entropy of each query's attention weights, in nats."""
    return jax.scipy.special.entr(pattern.astype(jnp.float32)).sum(-1)


def mean_over_tokens(values: Float[Array, "batch seq"], real: Real) -> PerSequence:
    """Return the mean over the tokens of each sequence; 0 for a sequence without tokens."""
    return jnp.where(real, values, 0.0).sum(-1) / jnp.maximum(real.sum(-1), 1)


def token_norm(x: Tokens, real: Real) -> PerSequence:
    """Return the mean Euclidean norm of the tokens of each sequence."""
    return mean_over_tokens(jnp.linalg.norm(x, axis=-1), real)


@jax.custom_batching.sequential_vmap
def matrix_singular_values(matrix: Float[Array, "rows columns"]) -> Float[Array, " value"]:
    """Return the singular values of a matrix, the largest first. Under `vmap`, one matrix is computed at a time.

    With a batch, LAPACK's calls in jaxlib 0.10.2 divide it over the threads of XLA's CPU backend and wait for them. If
    the programs of two devices do so at once, both threads wait, and the evaluation never ends.
    """
    return jnp.linalg.svd(matrix, compute_uv=False)


def singular_values(x: Tokens, real: Real) -> Float[Array, "batch value"]:
    """Return the singular values of the matrix (tokens, features) of each sequence, the largest first."""
    x = jnp.where(real[..., None], x, 0.0)  # rows of zeros add no singular value
    return jax.vmap(matrix_singular_values)(x)


def largest_singular_value(x: Tokens, real: Real) -> PerSequence:
    """Return the spectral norm of the matrix (tokens, features) of each sequence."""
    return singular_values(x, real)[:, 0]


def effective_rank(x: Tokens, real: Real) -> PerSequence:
    """Return the exponential of the entropy of the singular values, divided by their sum. Roy and Vetterli 2007."""
    values = singular_values(x, real)
    shares = values / jnp.maximum(values.sum(-1, keepdims=True), SMALLEST)
    return jnp.exp(jax.scipy.special.entr(shares).sum(-1))


def rank_one_residual(x: Tokens, real: Real) -> PerSequence:
    """Return |X - 1 m| / |X| in the Frobenius norm, where m is the mean of the tokens of a sequence X."""
    x = jnp.where(real[..., None], x, 0.0)
    mean = x.sum(1, keepdims=True) / jnp.maximum(real.sum(-1), 1)[:, None, None]
    rest = jnp.where(real[..., None], x - mean, 0.0)
    return jnp.linalg.norm(rest, axis=(1, 2)) / jnp.maximum(jnp.linalg.norm(x, axis=(1, 2)), SMALLEST)


def token_similarity(x: Tokens, real: Real) -> PerSequence:
    """Return the mean cosine of all pairs of different tokens of each sequence; 0 with fewer than two tokens."""
    x = jnp.where(real[..., None], x, 0.0)
    units = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), SMALLEST)
    count = real.sum(-1)
    pairs = jnp.square(units.sum(1)).sum(-1) - jnp.square(units).sum((1, 2))
    return pairs / jnp.maximum(count * (count - 1), 1)


def active_tokens(x: Tokens, real: Real) -> Float[Array, "batch features"]:
    """Return the number of tokens of each sequence for which a feature is not 0."""
    return ((x != 0) & real[..., None]).sum(1).astype(jnp.float32)
