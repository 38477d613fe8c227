"""The objective: cross entropy over weighted positions, in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def totals(
    logits: Float[Array, "batch seq vocab"], targets: Int[Array, "batch seq"], weights: Float[Array, "batch seq"]
) -> dict[str, Float[Array, ""]]:
    """Weighted sums over a batch: `nll` in nats, `correct` predictions, and the `weight` they are to be divided by.

    A prediction is correct when no logit is above the target's; logits that share the top share the hit, so that equal
    logits score 1 / vocab. The maximum is needed for the loss anyway, and an argmax is not cheap on a CPU.
    """
    top = jax.lax.stop_gradient(logits.max(-1))
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = jnp.log(jnp.exp(logits - top[..., None]).sum(-1)) + (top - picked)
    # At least 1: no logit reaches a top of nan.
    sharing = jnp.maximum((logits >= top[..., None]).sum(-1), 1)
    hit = (picked >= top) / sharing
    return {"nll": (nll * weights).sum(), "correct": (hit * weights).sum(), "weight": weights.sum()}
