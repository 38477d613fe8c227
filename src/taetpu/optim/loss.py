"""The objective: cross entropy over weighted positions, in float32."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Logits = Float[Array, "batch seq vocab"]
Targets = Int[Array, "batch seq"]
Weights = Float[Array, "batch seq"]


def totals(logits: Logits, targets: Targets, weights: Weights) -> dict[str, Float[Array, ""]]:
    """Weighted sums over a batch: `nll` in nats, `correct` predictions, and the `weight` they are to be divided by."""
    return {name: value.sum() for name, value in positions(logits, targets, weights).items()}


def by_sequence(logits: Logits, targets: Targets, weights: Weights) -> dict[str, Float[Array, " batch"]]:
    """The same sums, each sequence's apart."""
    return {name: value.sum(-1) for name, value in positions(logits, targets, weights).items()}


def positions(logits: Logits, targets: Targets, weights: Weights) -> dict[str, Weights]:
    """What `totals` sums.

    A prediction is correct when no logit is above the target's; logits that share the top share the hit, so that equal
    logits score 1 / vocab. The maximum is needed for the loss anyway, and an argmax is not cheap on a CPU.
    """
    top = jax.lax.stop_gradient(logits.max(-1))
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = jnp.log(jnp.exp(logits - top[..., None]).sum(-1)) + (top - picked)
    # At least 1: no logit reaches a top of nan.
    sharing = jnp.maximum((logits >= top[..., None]).sum(-1), 1)
    hit = (picked >= top) / sharing
    return {"nll": nll * weights, "correct": hit * weights, "weight": weights}
