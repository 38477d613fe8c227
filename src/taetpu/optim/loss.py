"""The objective: cross entropy over weighted positions, in float32."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from taetpu.core.keys import Key
from taetpu.core.sites import is_requested
from taetpu.data.batches import Batch
from taetpu.nn.lm import LM

Logits = Float[Array, "batch seq vocab"]
Targets = Int[Array, "batch seq"]
Weights = Float[Array, "batch seq"]


def sum_losses(logits: Logits, targets: Targets, weights: Weights) -> dict[str, Float[Array, ""]]:
    """Weighted sums over a batch: `nll` in nats, `correct` predictions, and the `weight` they are to be divided by."""
    return {name: value.sum() for name, value in position_losses(logits, targets, weights).items()}


def position_losses(logits: Logits, targets: Targets, weights: Weights) -> dict[str, Weights]:
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


def predict(
    model: LM, batch: Batch, *, key: Key | None = None, dtype: Any = jnp.float32, whole: bool = False
) -> tuple[Logits | None, dict[str, Weights]]:
    """A model's logits, and their `positions`.

    Where the model takes its loss in chunks (`LM.loss_chunk`) no logits are given, and those of the whole batch never
    exist. They do where they are asked for: `whole`, or read or edited as site `logits`.
    """
    looked_at = is_requested("logits")
    if model.loss_chunk is None or whole or looked_at or model.loss_chunk >= batch.tokens.size:
        logits = model(batch.tokens, key=key, dtype=dtype)
        return logits, position_losses(logits, batch.targets, batch.weights)
    x = model.final(batch.tokens, key=key, dtype=dtype)
    return None, chunked_losses(model.embedding.decode, x, batch.targets, batch.weights, model.loss_chunk)


def chunked_losses(
    decode: Callable[[Array], Logits], x: Float[Array, "batch seq dim"], targets: Targets, weights: Weights, tokens: int
) -> dict[str, Weights]:
    """`positions` of `decode(x)`, at most so many tokens' logits at once, and at least one of each sequence.

    Every chunk takes the same positions of all sequences, so that a batch may be divided over devices. The backward
    pass computes a chunk's logits again.
    """
    batch, seq = targets.shape
    count = -(-seq // max(1, tokens // batch))
    size = -(-seq // count)

    def cut(a: Array) -> Array:
        """`(batch, seq, ...)` as `(count, batch, size, ...)`, filled up with positions without weight."""
        filled = jnp.pad(a, [(0, 0), (0, count * size - seq), *[(0, 0)] * (a.ndim - 2)])
        return jnp.moveaxis(filled.reshape(batch, count, size, *a.shape[2:]), 1, 0)

    def one(_: None, chunk: tuple[Array, Targets, Weights]) -> tuple[None, dict[str, Weights]]:
        def found(x: Array, targets: Targets, weights: Weights) -> dict[str, Weights]:
            return position_losses(decode(x), targets, weights)

        return None, jax.checkpoint(found, prevent_cse=False)(*chunk)

    _, parts = jax.lax.scan(one, None, (cut(x), cut(targets), cut(weights)))
    return {name: jnp.moveaxis(part, 0, 1).reshape(batch, -1)[:, :seq] for name, part in parts.items()}
