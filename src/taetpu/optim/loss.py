"""The objective: cross entropy over weighted positions, in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def nll(logits: Float[Array, "batch seq vocab"], targets: Int[Array, "batch seq"]) -> Float[Array, "batch seq"]:
    """Negative log-likelihood of each target, in nats."""
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def totals(
    logits: Float[Array, "batch seq vocab"], targets: Int[Array, "batch seq"], weights: Float[Array, "batch seq"]
) -> dict[str, Float[Array, ""]]:
    """Weighted sums over a batch: `nll` in nats, `correct` predictions, and the `weight` they are to be divided by."""
    hit = (logits.argmax(-1) == targets).astype(jnp.float32)
    return {
        "nll": (nll(logits, targets) * weights).sum(),
        "correct": (hit * weights).sum(),
        "weight": weights.sum(),
    }
